"""The synchronous twin: generated from `_aio` by `tools/unasync.py`, except `runtime.py`."""
