"""Fixtures of the synchronous tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from exec_server import Machine


@pytest.fixture
def machine(url: str) -> Iterator[Machine]:
    """A machine."""
    with Machine.connect(url) as machine:
        yield machine
