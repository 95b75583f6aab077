"""fsspec's own abstract suites against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from exec_server.fsspec import ExecServerFileSystem


class Fixtures(AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self, url: str) -> Iterator[ExecServerFileSystem]:
        fs = ExecServerFileSystem(url, skip_instance_cache=True)
        yield fs
        fs.machine.close()

    @pytest.fixture
    def fs_path(self, tmp_path: Path) -> str:
        return str(tmp_path)


class TestCopy(AbstractCopyTests, Fixtures):
    pass


class TestGet(AbstractGetTests, Fixtures):
    pass


class TestPut(AbstractPutTests, Fixtures):
    pass


class TestPipe(AbstractPipeTests, Fixtures):
    pass


class TestOpen(AbstractOpenTests, Fixtures):
    pass


class TestOurs(Fixtures):
    def test_a_url_is_opened_through_the_registry_of_fsspec(self, fs: Any, fs_path: str) -> None:
        fsspec.register_implementation("exec", ExecServerFileSystem, clobber=True)
        with fsspec.open(f"exec://{fs_path}/file", "w", machine=fs.machine) as file:
            file.write("line\n")
        assert fs.cat_file(f"{fs_path}/file") == b"line\n"
        assert fs.cat_file(f"{fs_path}/file", 1, -1) == b"ine"
        assert fs.modified(f"{fs_path}/file").tzinfo is not None
        assert [item["name"] for item in fs.ls(fs_path)] == [f"{fs_path}/file"]

    def test_names_are_moved_and_removed(self, fs: Any, fs_path: str) -> None:
        fs.makedirs(f"{fs_path}/a/b")
        fs.pipe_file(f"{fs_path}/a/b/file", b"x")
        fs.mv(f"{fs_path}/a", f"{fs_path}/c")
        assert fs.find(fs_path) == [f"{fs_path}/c/b/file"]
        with pytest.raises(OSError):
            fs.rmdir(f"{fs_path}/c")
        fs.rm(f"{fs_path}/c", recursive=True)
        assert fs.ls(fs_path) == []
        with pytest.raises(FileNotFoundError):
            fs.info(f"{fs_path}/c")
