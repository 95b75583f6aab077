"""Bytes beside their JSON, where the connection has binary messages, and as base64 where it has none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from exec_server import AsyncMachine
from exec_server._aio.link import Link

from ..support import CuttingProxy, binary

pytestmark = pytest.mark.anyio


async def exchange(machine: AsyncMachine, place: str) -> None:
    """Bytes in all directions."""
    data = os.urandom(3_000_001)
    result = await machine.run(["cat"], input=data, text=False)
    assert result.stdout == data
    await machine.fs.write_bytes(place + "/small", data[:1000])
    Path(place, "large").write_bytes(data)
    assert await machine.fs.upload(place + "/large", place + "/copy") == len(data)
    assert Path(place, "copy").read_bytes() == data
    assert await machine.fs.download(place + "/copy", place + "/back") == len(data)
    assert Path(place, "back").read_bytes() == data
    async with machine.fs.open(place + "/copy", "rb") as file:
        file.seek(1_000_000)
        assert await file.read(10) == data[1_000_000:1_000_010]
    process = await machine.start(["sh", "-c", "cat; exit 3"], stdin=True)
    await process.write(b"\x00\xff")
    await process.close_stdin()
    assert (await process.read(), await process.wait()) == (b"\x00\xff", 3)
    again = await machine.attach(process.id)
    assert await again.read() == b"\x00\xff"


def note_large_messages(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The first byte of each message that is too long for a reply without content."""
    noted: list[bytes] = []
    handle = Link.handle

    def note(link: Link, message: bytes | memoryview) -> Any:
        if len(message) > 1000:
            noted.append(bytes(message[:1]))
        return handle(link, message)

    monkeypatch.setattr(Link, "handle", note)
    return noted


async def test_bytes_travel_in_binary_messages(url: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncMachine.connect(url) as machine:
        link = machine._session.link
        assert link is not None and link.sends_binary
        noted = note_large_messages(monkeypatch)
        await exchange(machine, place)
        assert set(noted) == {b"\x01"}


async def test_lines_have_no_binary_messages(place: str, tmp_path: Path) -> None:
    target = f"stdio:{binary()} --listen stdio --state-dir {tmp_path / 'state'}"
    async with AsyncMachine.connect(target) as machine:
        link = machine._session.link
        assert link is not None and not link.sends_binary
        await exchange(machine, place)


async def test_a_client_that_does_not_ask_gets_json(url: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "carries_binary", False)
    async with AsyncMachine.connect(url) as machine:
        link = machine._session.link
        assert link is not None and not link.sends_binary
        noted = note_large_messages(monkeypatch)
        await exchange(machine, place)
        assert set(noted) == {b"{"}


async def test_the_form_may_change_with_the_connection(
    proxy: CuttingProxy, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncMachine.connect(proxy.url) as machine:
        process = await machine.start(["cat"], stdin=True)
        lines = process.lines()
        for number in range(6):
            monkeypatch.setattr(Link, "carries_binary", number % 2 == 0)
            proxy.cut_all()
            await process.write(f"{number}\n")
            async for line in lines:
                assert line == str(number)
                break
