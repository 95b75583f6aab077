"""fsspec's own abstract suites against a real server."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.callbacks import Callback
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)

from exec_server.fsspec import ExecServerFileSystem

from ..support import as_installed


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

    def test_patterns_are_expanded_before_trees_are_removed(self, fs: Any, fs_path: str) -> None:
        for name in ["a/1", "a/2/deep", "b/3"]:
            fs.pipe_file(f"{fs_path}/{name}", b"x")
        fs.rm(f"{fs_path}/a/*", recursive=True)
        assert fs.ls(f"{fs_path}/a") == [] and fs.find(fs_path) == [f"{fs_path}/b/3"]
        fs.rm(Path(fs_path, "b"), recursive=True)
        assert not fs.exists(f"{fs_path}/b")

    @pytest.mark.parametrize("size", [0, 1000, 3_000_000])
    def test_callbacks_are_told_the_progress_of_a_file(self, fs: Any, fs_path: str, tmp_path: Path, size: int) -> None:
        local, callback = tmp_path / "local", Callback()
        local.write_bytes(bytes(size))
        fs.put_file(str(local), f"{fs_path}/remote", callback=callback)
        assert (callback.size, callback.value) == (size, size)
        for options in [{"lpath": str(tmp_path / "back")}, {"outfile": io.BytesIO()}]:
            callback = Callback()
            fs.get_file(f"{fs_path}/remote", callback=callback, **options)
            assert (callback.size, callback.value) == (size, size)

    @pytest.mark.parametrize("size", [3, 2_000_000])
    def test_a_new_file_is_put_by_one_request(
        self, fs: Any, fs_path: str, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "local").write_bytes(bytes(size))
        # A file that appears after a check must not be replaced.
        monkeypatch.setattr(fs, "exists", lambda path: False)
        fs.put_file(tmp_path / "local", f"{fs_path}/new", mode="create")
        fs.pipe_file(f"{fs_path}/old", b"old")
        with pytest.raises(FileExistsError):
            fs.put_file(tmp_path / "local", f"{fs_path}/old", mode="create")
        assert fs.cat_file(f"{fs_path}/old") == b"old" and fs.info(f"{fs_path}/new")["size"] == size

    def test_every_option_of_a_connection_is_one(self, url: str) -> None:
        with pytest.raises(ValueError, match="registry= goes with"):
            ExecServerFileSystem(url, registry="https://relay.example.org", skip_instance_cache=True)
        parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        fs = ExecServerFileSystem(url, traceparent=parent, skip_instance_cache=True)
        assert fs.machine._session.traceparent == parent
        fs.machine.close()


def test_the_protocol_is_found_by_its_entry_point(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("found\n")
    program = "import sys, fsspec; fs = fsspec.filesystem('exec', target=sys.argv[1]); print(fs.cat(sys.argv[2]))"
    ran = subprocess.run(
        [sys.executable, "-c", program, url, str(tmp_path / "file")],
        capture_output=True,
        text=True,
        env=as_installed(tmp_path),
    )
    assert ran.stdout == "b'found\\n'\n", ran
