"""Fixtures of both halves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from .support import CuttingProxy, clean_environment, server

for _name in set(os.environ) - set(clean_environment()):
    if _name != "EXEC_SERVER_BIN":
        del os.environ[_name]


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """A server for all tests."""
    with server() as url:
        yield url


@pytest.fixture
def proxy(url: str) -> Iterator[CuttingProxy]:
    """A proxy in front of it that cuts when it is told to."""
    host, port = url.removeprefix("ws://").split(":")
    proxy = CuttingProxy(host, int(port))
    yield proxy
    proxy.close()


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A directory on the machine, which is this one."""
    return str(tmp_path)
