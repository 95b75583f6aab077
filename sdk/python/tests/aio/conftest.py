"""Fixtures of the asynchronous tests, on asyncio and trio."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from exec_server import AsyncMachine


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """The event loop."""
    return request.param


@pytest.fixture
async def machine(url: str, anyio_backend: str) -> AsyncIterator[AsyncMachine]:
    """A machine."""
    async with AsyncMachine.connect(url) as machine:
        yield machine
