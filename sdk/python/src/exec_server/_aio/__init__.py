"""The asynchronous source; `_sync` is generated from it by `tools/unasync.py`, except `runtime.py`."""
