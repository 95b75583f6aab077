"""Several things at once, in threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def together(*functions: Callable[[], Any]) -> list[Any]:
    """The results of all, in their order."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result() for future in [pool.submit(function) for function in functions]]
