# Generated from _aio/file.py by tools/unasync.py; change that file.
"""File objects: reads go to the machine block by block, writes are kept locally until `close`."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any, cast

from .._errors import Unsupported
from .._protocol import encode, to_uri
from . import runtime
from .blocks import BLOCK_BYTES, BlockReader, write_blocks
from .session import Session

_SPOOL_BYTES = 8 * 1024 * 1024
_READ_AHEAD = BLOCK_BYTES
_MODES = {"r", "w", "x", "a"}


def open_file(
    session: Session, path: str, mode: str, encoding: str, errors: str, newline: str | None
) -> Any:
    """Opens a file object; text is on top of bytes."""
    kind = mode.replace("b", "").replace("t", "")
    if kind not in _MODES or ("b" in mode and "t" in mode):
        raise ValueError(f"mode {mode!r} is none of r, w, x, a, with b or t")
    raw: Any
    if kind == "r":
        raw = ReadFile(session, path)
        raw.start()
    else:
        if kind == "x":
            _check_absent(session, path)
        raw = WriteFile(session, path, kind)
    return runtime.wrap_file(raw, kind, None if "b" in mode else encoding, errors, newline)


def _check_absent(session: Session, path: str) -> None:
    """Tells early that a file exists; `close` checks it again."""
    try:
        session.call("fs/getMetadata", {"path": to_uri(path)}, is_repeatable=True, path=path)
    except FileNotFoundError:
        return
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)


class ReadFile(runtime.FileBase):
    """The bytes of a file that is there."""

    def __init__(self, session: Session, path: str) -> None:
        super().__init__()
        self.name = path
        self.mode = "rb"
        self._reader = BlockReader(session, path)
        self._position = 0
        self._cache = b""
        self._cached_at = 0

    def start(self) -> None:
        """Opens the file."""
        self._reader.open()

    @property
    def size(self) -> int | None:
        """The size at the time of opening."""
        return self._reader.size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence == 2:
            offset += self._reader.size or 0
        elif whence == 1:
            offset += self._position
        if offset < 0:
            raise ValueError("a position before the beginning")
        self._position = offset
        return offset

    def readinto(self, buffer: Any) -> int:
        """Fills a buffer."""
        view = memoryview(buffer).cast("B")
        data = self._some(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, or the rest."""
        parts: list[bytes] = []
        while size != 0:
            data = self._some(BLOCK_BYTES if size < 0 else min(size, BLOCK_BYTES))
            if not data:
                break
            parts.append(data)
            size = size if size < 0 else size - len(data)
        return b"".join(parts)

    def close(self) -> None:
        """Lets the handle go."""
        if not self.closed:
            self._reader.close()
            super().close()

    def _some(self, size: int) -> bytes:
        if self.closed:
            raise ValueError("the file is closed")
        begin = self._position - self._cached_at
        if not 0 <= begin < len(self._cache):
            self._cache, _ = self._reader.block(self._position, max(size, _READ_AHEAD))
            self._cached_at, begin = self._position, 0
        data = self._cache[begin : begin + size]
        self._position += len(data)
        return data


class WriteFile(runtime.FileBase):
    """New content, which takes its place at `close`."""

    def __init__(self, session: Session, path: str, kind: str) -> None:
        super().__init__()
        self.name = path
        self.mode = kind + "b"
        self._session = session
        self._kind = kind
        self._is_discarded = False
        if kind == "a" and not session.capabilities.get("fsAppend"):
            raise Unsupported("the server does not support appending to files")
        if kind == "x" and not session.capabilities.get("fsConditionalWrite"):
            raise Unsupported("the server does not support files that must be new")
        self._spool = cast("IO[bytes]", tempfile.SpooledTemporaryFile(_SPOOL_BYTES))

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._spool.tell()

    def write(self, data: Any) -> int:
        """Keeps data for `close`."""
        if self.closed:
            raise ValueError("the file is closed")
        view = memoryview(data).cast("B")
        self._spool.write(view)
        return len(view)

    def discard(self) -> None:
        """Lets `close` write nothing."""
        self._is_discarded = True

    def close(self) -> None:
        """Puts the content in place, or appends it."""
        if self.closed:
            return
        super().close()
        try:
            if not self._is_discarded:
                self._store()
        finally:
            self._spool.close()

    def _store(self) -> None:
        if self._kind != "a":
            options: dict[str, Any] = {"ifAbsent": True} if self._kind == "x" else {}
            write_blocks(self._session, self.name, self._blocks, options)
            return
        for block in self._blocks():
            params = {"path": to_uri(self.name), "dataBase64": encode(block)}
            self._session.call("fs/append", params, path=self.name)

    def _blocks(self) -> Iterator[bytes]:
        self._spool.seek(0)
        while block := self._spool.read(BLOCK_BYTES):
            yield block
