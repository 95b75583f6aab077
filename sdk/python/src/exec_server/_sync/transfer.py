# Generated from _aio/transfer.py by tools/unasync.py; change that file.
"""Uploads and downloads of files and trees."""

from __future__ import annotations

import os
import secrets
import shutil
import stat as modes
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._protocol import encode, to_uri
from .._types import Progress, Stat
from . import runtime
from .blocks import BLOCK_BYTES, read_blocks, write_blocks
from .session import Session

if TYPE_CHECKING:
    from .files import Files

_SMALL_BYTES = 1024 * 1024


class Meter:
    """Counts what was copied and tells the caller."""

    def __init__(self, function: Callable[[Progress], object] | None) -> None:
        self._function = function
        self.total = 0
        self.files = 0

    def tell(self, path: str, done: int, size: int) -> None:
        """Some of a file was copied."""
        if self._function is not None:
            self._function(Progress(path, done, size, self.files, self.total + done))

    def finish(self, path: str, size: int) -> None:
        """A file is complete."""
        self.total += size
        self.files += 1
        if self._function is not None:
            self._function(Progress(path, size, size, self.files, self.total))


def upload(
    files: Files,
    session: Session,
    source: Path,
    destination: str,
    conditions: dict[str, Any],
    progress: Callable[[Progress], object] | None,
) -> int:
    """Copies a local file or tree; the conditions are those of a file."""
    meter = Meter(progress)
    parent = destination.rstrip("/").rsplit("/", 1)[0]
    if parent:
        files.mkdir(parent, parents=True, exist_ok=True)
    if not source.is_dir():
        _upload_file(session, source, destination, conditions, meter)
        return meter.total
    for directory, names, others in os.walk(source):
        relative = Path(directory).relative_to(source)
        remote = destination.rstrip("/") if str(relative) == "." else f"{destination.rstrip('/')}/{relative}"
        files.mkdir(remote, exist_ok=True)
        for name in sorted(names + others):
            local = Path(directory) / name
            if local.is_symlink():
                files.symlink(f"{remote}/{name}", os.readlink(local), replace=True)
            elif local.is_file():
                _upload_file(session, local, f"{remote}/{name}", {}, meter)
    return meter.total


def _upload_file(
    session: Session, source: Path, destination: str, conditions: dict[str, Any], meter: Meter
) -> None:
    facts = runtime.in_thread(source.stat)
    options = dict(conditions)
    if session.capabilities.get("fsWriteAttributes"):
        options["modeBits"] = modes.S_IMODE(facts.st_mode)
    if facts.st_size <= _SMALL_BYTES:
        data = runtime.in_thread(source.read_bytes)
        params = {"path": to_uri(destination), "dataBase64": encode(data), **options}
        # Without conditions the same content again is the same file, so a lost answer is no obstacle.
        session.call("fs/writeFile", params, is_repeatable=not conditions, path=destination)
        meter.finish(destination, len(data))
        return
    size = facts.st_size
    write_blocks(
        session, destination, lambda: _blocks(source), options, lambda done: meter.tell(destination, done, size)
    )
    meter.finish(destination, size)


def _blocks(source: Path) -> Iterator[bytes]:
    with source.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block


def download(
    files: Files,
    session: Session,
    source: str,
    destination: Path,
    progress: Callable[[Progress], object] | None,
) -> int:
    """Copies a remote file or tree."""
    meter = Meter(progress)
    root = files.stat(source)
    runtime.in_thread(lambda: destination.parent.mkdir(parents=True, exist_ok=True))
    if not root.is_dir:
        _download_file(session, root, destination, meter)
        return meter.total
    for directory, _, others in files.walk(source):
        relative = directory[len(source.rstrip("/")) :].lstrip("/")
        local = destination / relative if relative else destination
        runtime.in_thread(lambda local=local: local.mkdir(exist_ok=True))
        for entry in others:
            place = local / _own_name(entry.name)
            if entry.is_symlink:
                target = files.readlink(entry.path)
                runtime.in_thread(lambda place=place, target=target: _link(place, target))
            elif entry.is_file:
                _download_file(session, entry.stat or files.stat(entry.path), place, meter)
    return meter.total


def _own_name(name: str) -> str:
    """A name that stays in its directory, whatever a server says."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"the server named a file {name!r}, which is no file name")
    return name


def _link(place: Path, target: str) -> None:
    with suppress(FileNotFoundError):
        place.unlink()
    place.symlink_to(target)


def _download_file(session: Session, facts: Stat, destination: Path, meter: Meter) -> None:
    # The file appears under its name only when it is complete.
    partial = destination.with_name(f".{destination.name[:200]}.{secrets.token_hex(6)}")
    done = 0
    try:
        with partial.open("wb") as file:
            with runtime.closing(read_blocks(session, facts.path)) as blocks:
                for block in blocks:
                    runtime.in_thread(lambda file=file, block=block: file.write(block))
                    done += len(block)
                    meter.tell(facts.path, done, facts.size)
        if facts.mode is not None:
            partial.chmod(modes.S_IMODE(facts.mode) & 0o777)
        if destination.is_dir() and not destination.is_symlink():
            raise IsADirectoryError(f"{destination} is a directory")
        shutil.move(partial, destination)
    finally:
        partial.unlink(missing_ok=True)
    meter.finish(facts.path, done)
