# Generated from aio/test_binary.py by tools/unasync.py; change that file.
"""Bytes beside their JSON, where the connection has binary messages, and as base64 where it has none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from exec_server import Machine
from exec_server._sync.link import Link

from ..support import CuttingProxy, binary


def exchange(machine: Machine, place: str) -> None:
    """Bytes in all directions."""
    data = os.urandom(3_000_001)
    result = machine.run(["cat"], input=data, text=False)
    assert result.stdout == data
    machine.fs.write_bytes(place + "/small", data[:1000])
    Path(place, "large").write_bytes(data)
    assert machine.fs.upload(place + "/large", place + "/copy") == len(data)
    assert Path(place, "copy").read_bytes() == data
    assert machine.fs.download(place + "/copy", place + "/back") == len(data)
    assert Path(place, "back").read_bytes() == data
    with machine.fs.open(place + "/copy", "rb") as file:
        file.seek(1_000_000)
        assert file.read(10) == data[1_000_000:1_000_010]
    process = machine.start(["sh", "-c", "cat; exit 3"], stdin=True)
    process.write(b"\x00\xff")
    process.close_stdin()
    assert (process.read(), process.wait()) == (b"\x00\xff", 3)
    again = machine.attach(process.id)
    assert again.read() == b"\x00\xff"


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


def test_bytes_travel_in_binary_messages(url: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Machine.connect(url) as machine:
        link = machine._session.link
        assert link is not None and link.sends_binary
        noted = note_large_messages(monkeypatch)
        exchange(machine, place)
        assert set(noted) == {b"\x01"}


def test_lines_have_no_binary_messages(place: str, tmp_path: Path) -> None:
    target = f"stdio:{binary()} --listen stdio --state-dir {tmp_path / 'state'}"
    with Machine.connect(target) as machine:
        link = machine._session.link
        assert link is not None and not link.sends_binary
        exchange(machine, place)


def test_a_client_that_does_not_ask_gets_json(url: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Link, "carries_binary", False)
    with Machine.connect(url) as machine:
        link = machine._session.link
        assert link is not None and not link.sends_binary
        noted = note_large_messages(monkeypatch)
        exchange(machine, place)
        assert set(noted) == {b"{"}


def test_the_form_may_change_with_the_connection(
    proxy: CuttingProxy, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Machine.connect(proxy.url) as machine:
        process = machine.start(["cat"], stdin=True)
        lines = process.lines()
        for number in range(6):
            monkeypatch.setattr(Link, "carries_binary", number % 2 == 0)
            proxy.cut_all()
            process.write(f"{number}\n")
            for line in lines:
                assert line == str(number)
                break
