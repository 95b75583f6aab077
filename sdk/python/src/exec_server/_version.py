"""The version of the installed package; it is written only in the workspace of the crates."""

from __future__ import annotations

from functools import cache


@cache
def version() -> str:
    """The version, or a word for a source tree that is not installed."""
    from importlib import metadata

    try:
        return metadata.version("exec-server")
    except metadata.PackageNotFoundError:
        return "0+source"
