# Generated from aio/test_chaos.py by tools/unasync.py; change that file.
"""Hundreds of random cuts: no byte is lost or doubled, in either direction."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from exec_server import Machine

from ..support import CuttingProxy, Meeting
from .together import together

pytestmark = pytest.mark.anyio

DIRECT_CUTS = 150
RELAYED_CUTS = 40
LINES = 30_000


def count_lines(machine: Machine) -> None:
    """Output only: every number once and in order."""
    result = machine.run(["seq", "1", str(LINES)])
    assert result.stdout == "".join(f"{number}\n" for number in range(1, LINES + 1))


def echo_input(machine: Machine, source: random.Random) -> None:
    """Both directions: what goes in comes out."""
    data = source.randbytes(source.randint(1, 300_000))
    result = machine.run(["cat"], input=data, text=False)
    assert result.stdout == data


def converse(machine: Machine, source: random.Random) -> None:
    """Many small writes, each answered before the next."""
    with machine.start(["sha256sum"], stdin=True) as digest:
        expected = hashlib.sha256()
        for _ in range(10):
            part = source.randbytes(source.randint(1, 20_000))
            expected.update(part)
            digest.write(part)
        digest.close_stdin()
        assert (digest.read()).split()[0].decode() == expected.hexdigest()
        assert digest.wait() == 0


def work_until(machine: Machine, proxy: CuttingProxy, cuts: int) -> None:
    source = random.Random(7)
    proxy.is_cutting = True
    while proxy.cuts < cuts:
        together(
            lambda: count_lines(machine), lambda: echo_input(machine, source), lambda: converse(machine, source)
        )
    proxy.is_cutting = False


def test_no_byte_is_lost_on_a_direct_connection(proxy: CuttingProxy) -> None:
    with Machine.connect(proxy.url) as machine:
        session = machine.session_id
        work_until(machine, proxy, DIRECT_CUTS)
        assert machine.session_id == session


def test_no_byte_is_lost_through_a_rendezvous(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path, seed=3)
    try:
        with Machine.connect("env:box", env=meeting.env) as machine:
            session = machine.session_id
            work_until(machine, meeting.proxy, RELAYED_CUTS)
            assert machine.session_id == session
    finally:
        meeting.end()
