"""Several things at once, in tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio


async def together(*functions: Callable[[], Awaitable[Any]]) -> list[Any]:
    """The results of all, in their order."""
    results: list[Any] = [None] * len(functions)

    async def one(number: int) -> None:
        results[number] = await functions[number]()

    async with anyio.create_task_group() as group:
        for number in range(len(functions)):
            group.start_soon(one, number)
    return results
