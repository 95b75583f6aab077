"""`exec://`: files of a machine as an fsspec file system, for pandas, Dask, DuckDB and everything else that takes one.

    fsspec.open("exec:///var/log/app.log", target="env:build-1")
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from fsspec.spec import AbstractFileSystem

from ._sync.machine import Machine
from ._types import Progress, Stat

_KINDS = {"file": "file", "directory": "directory"}


class ExecServerFileSystem(AbstractFileSystem):
    """Files of one machine. `target` and the other options are those of `Machine.connect`; `machine` is an open one."""

    protocol = "exec"
    root_marker = "/"
    sep = "/"

    def __init__(self, target: str | None = None, *, machine: Machine | None = None, **options: Any) -> None:
        own = {name: options.pop(name) for name in list(options) if name in _CONNECT_OPTIONS}
        super().__init__(**options)
        self._machine = machine if machine is not None else Machine.connect(target, **own)

    @property
    def machine(self) -> Machine:
        """The machine behind it."""
        return self._machine

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        text = os.fspath(path)
        text = text.removeprefix("exec://")
        return "/" + text.strip("/")

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """The entries of a directory, or the file itself."""
        path = self._strip_protocol(path)
        facts = self._machine.fs.stat(path)
        if facts.is_dir:
            listed = [_info(entry.path, entry.stat) for entry in self._machine.fs.list(path) if entry.stat is not None]
        else:
            listed = [_info(path, facts)]
        return listed if detail else [item["name"] for item in listed]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Metadata of a path."""
        path = self._strip_protocol(path)
        return _info(path, self._machine.fs.stat(path))

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is such a path."""
        return self._machine.fs.exists(self._strip_protocol(path))

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Creates a directory."""
        self._machine.fs.mkdir(self._strip_protocol(path), parents=create_parents)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Creates a directory and those above it."""
        self._machine.fs.mkdir(self._strip_protocol(path), parents=True, exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        """Removes an empty directory."""
        path = self._strip_protocol(path)
        if not self._machine.fs.is_dir(path):
            raise NotADirectoryError(path)
        self._machine.fs.remove(path)

    def rm_file(self, path: str) -> None:
        """Removes a file."""
        self._machine.fs.remove(self._strip_protocol(path))

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Removes files, and with `recursive` trees."""
        if maxdepth is not None:
            return super().rm(path, recursive=recursive, maxdepth=maxdepth)
        given = [path] if isinstance(path, (str, os.PathLike)) else path
        for one in [os.fspath(one) for one in given]:
            for found in self.expand_path(one) if _has_magic(one) else [one]:
                self._machine.fs.remove(self._strip_protocol(found), recursive=recursive)
        return None

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copies a file on the machine; a directory is created."""
        source, destination = self._strip_protocol(path1), self._strip_protocol(path2)
        if self._machine.fs.is_dir(source):
            self._machine.fs.mkdir(destination, parents=True, exist_ok=True)
            return
        self._machine.fs.mkdir(self._parent(destination), parents=True, exist_ok=True)
        self._machine.fs.copy(source, destination)

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **kwargs: Any) -> None:
        """Renames a file or a tree, or copies and removes where names are patterns."""
        if isinstance(path1, str) and isinstance(path2, str) and maxdepth is None and not _has_magic(path1):
            source, destination = self._strip_protocol(path1), self._strip_protocol(path2)
            if self._machine.fs.is_dir(destination):
                destination = destination.rstrip("/") + "/" + source.rsplit("/", 1)[1]
            self._machine.fs.move(source, destination)
            return
        super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **kwargs)

    def created(self, path: str) -> datetime:
        """When the file was created, if the file system of the machine knows."""
        facts = self._machine.fs.stat(self._strip_protocol(path))
        return datetime.fromtimestamp(facts.created or facts.modified, timezone.utc)

    def modified(self, path: str) -> datetime:
        """When the content was changed."""
        return datetime.fromtimestamp(self._machine.fs.stat(self._strip_protocol(path)).modified, timezone.utc)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """The content of a file, or a part of it."""
        path = self._strip_protocol(path)
        if start is None and end is None:
            return self._machine.fs.read_bytes(path)
        with self._machine.fs.open(path, "rb") as file:
            size = self._machine.fs.stat(path).size
            begin, stop = slice(start, end).indices(size)[:2]
            file.seek(begin)
            return file.read(max(stop - begin, 0))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        """Writes a file; with the mode `create`, only a new one."""
        path = self._strip_protocol(path)
        self._machine.fs.mkdir(self._parent(path), parents=True, exist_ok=True)
        self._machine.fs.write_bytes(path, value, if_absent=mode == "create")

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Creates an empty file, or empties one."""
        path = self._strip_protocol(path)
        if truncate or not self.exists(path):
            self._machine.fs.mkdir(self._parent(path), parents=True, exist_ok=True)
            self._machine.fs.write_bytes(path, b"")
        else:
            self._machine.fs.append(path, b"")

    def get_file(self, rpath: str, lpath: Any = None, callback: Any = None, outfile: Any = None, **kwargs: Any) -> None:
        """Downloads a file."""
        path = self._strip_protocol(rpath)
        if self._machine.fs.is_dir(path):
            os.makedirs(lpath, exist_ok=True)
            return
        if outfile is not None:
            content = self._machine.fs.read_bytes(path)
            outfile.write(content)
            _meter(callback)(Progress(path, len(content), len(content), 1, len(content)))
            return
        self._machine.fs.download(path, lpath, progress=_meter(callback))

    def put_file(self, lpath: Any, rpath: str, callback: Any = None, mode: str = "overwrite", **kwargs: Any) -> None:
        """Uploads a file; with the mode `create`, only a new one."""
        path = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            self._machine.fs.mkdir(path, parents=True, exist_ok=True)
            return
        self._machine.fs.upload(lpath, path, if_absent=mode == "create", progress=_meter(callback))

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **kwargs: Any,
    ) -> Any:
        if "w" in mode or "x" in mode or "a" in mode:
            self._machine.fs.mkdir(self._parent(path), parents=True, exist_ok=True)
        return self._machine.fs.open(path, mode)


_CONNECT_OPTIONS = set(inspect.signature(Machine.connect).parameters) - {"target"}


def _meter(callback: Any) -> Callable[[Progress], object]:
    """Tells a callback of fsspec how far one file is."""

    def tell(progress: Progress) -> None:
        if callback is not None:
            callback.set_size(progress.size)
            callback.absolute_update(progress.done)

    return tell


def _has_magic(path: str) -> bool:
    return any(character in path for character in "*?[")


def _info(path: str, facts: Stat) -> dict[str, Any]:
    return {
        "name": path.rstrip("/") or "/",
        "size": facts.size if facts.is_file else 0,
        "type": _KINDS.get(facts.kind, "other"),
        "mode": facts.mode,
        "uid": facts.uid,
        "gid": facts.gid,
        "mtime": facts.modified,
        "created": facts.created,
        "islink": facts.is_symlink,
    }
