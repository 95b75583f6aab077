"""Files of any size in blocks, several of them in flight.

A handle belongs to one connection. A read continues on a new handle if the file is still the same; a write begins
again, because the server discards what was not closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

from .._errors import Ambiguous, ExecServerError, LinkError, MachineClosed, OutputLost, SessionLost, remote_error
from .._protocol import chunk_of, new_id, to_uri, written_of
from .._types import Written
from .link import Call, Link
from .session import AsyncSession

BLOCK_BYTES = 1024 * 1024
_WINDOW = 8
"""Blocks in flight: enough for a link with 50 ms of delay, little enough for memory."""
_ATTEMPTS = 10


class FileChanged(OutputLost):
    """The file became another one while it was read over a connection that was lost."""


class BlockReader:
    """A handle for reading that survives lost connections."""

    def __init__(self, session: AsyncSession, path: str) -> None:
        self._session = session
        self._path = path
        self._handle = ""
        self._link: Link | None = None
        self._version: str | None = None
        self.size: int | None = None

    async def open(self) -> None:
        """Opens the file, again after a lost connection."""
        while True:
            self._handle = new_id()
            params = {"handleId": self._handle, "path": to_uri(self._path), "detailed": True}
            call = await self._session.start_call("fs/open", params)
            answer = await _finish(call, self._path, is_read=True)
            if answer is None:
                continue
            self._link = call.link
            self.size = answer.get("size")
            version = answer.get("versionTag")
            if self._version is not None and version != self._version:
                await self.close()
                raise FileChanged(f"{self._path} changed while it was read")
            self._version = version
            return

    async def request(self, offset: int, length: int) -> Call:
        """Asks for a block; raises `LinkError` if the handle is gone."""
        assert self._link is not None
        call = Call("fs/readBlock")
        await self._link.start_call(call, {"handleId": self._handle, "offset": offset, "len": length})
        self._session.relieve()
        return call

    async def block(self, offset: int, length: int) -> tuple[bytes, bool]:
        """One block, and whether the file ends in it."""
        while True:
            try:
                answer = await _finish(await self.request(offset, length), self._path, is_read=True)
            except MachineClosed:
                raise
            except LinkError:
                answer = None
            if answer is not None:
                return bytes(chunk_of(answer)), answer["eof"]
            await self.open()

    async def close(self) -> None:
        """Lets the handle go; a handle of an old connection is gone already."""
        link, self._link = self._link, None
        if link is not None and link.end is None:
            try:
                await link.start_call(Call("fs/close", _ignore), {"handleId": self._handle})
            except ExecServerError:
                return


def _ignore(call: Call) -> None:
    del call


async def _finish(call: Call, path: str, *, is_read: bool) -> Any:
    """The answer; none if the connection broke and the call changes nothing."""
    assert call.gate is not None
    await call.gate.wait()
    if isinstance(call.error, Ambiguous) and is_read:
        return None
    if isinstance(call.error, ExecServerError):
        raise call.error
    if call.error is not None:
        raise remote_error(call.error, path)
    return call.result


async def read_blocks(session: AsyncSession, path: str) -> AsyncGenerator[bytes, None]:
    """The content of a file, block after block."""
    reader = BlockReader(session, path)
    await reader.open()
    pending: deque[Call] = deque()
    asked = done = 0
    try:
        while True:
            answer = None
            try:
                while len(pending) < _WINDOW and (not pending or asked < (reader.size or 0)):
                    pending.append(await reader.request(asked, BLOCK_BYTES))
                    asked += BLOCK_BYTES
                answer = await _finish(pending.popleft(), path, is_read=True)
            except (MachineClosed, SessionLost):
                raise
            except LinkError:
                answer = None
            if answer is None:
                pending.clear()
                asked = done
                await reader.open()
                continue
            data = bytes(chunk_of(answer))
            done += len(data)
            if data:
                yield data
            if answer["eof"]:
                return
    finally:
        await reader.close()


async def write_blocks(
    session: AsyncSession,
    path: str,
    blocks: Callable[[], Iterable[bytes | memoryview]],
    options: dict[str, Any],
    on_block: Callable[[int], Any] | None = None,
) -> Written:
    """Writes a file from blocks; `blocks` is called again for every attempt."""
    for attempt in range(_ATTEMPTS):
        try:
            return await _write_once(session, path, blocks, options, on_block)
        except (Ambiguous, MachineClosed, SessionLost):
            raise
        except LinkError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


async def _write_once(
    session: AsyncSession,
    path: str,
    blocks: Callable[[], Iterable[bytes | memoryview]],
    options: dict[str, Any],
    on_block: Callable[[int], Any] | None,
) -> Written:
    handle = new_id()
    params = {"handleId": handle, "path": to_uri(path), "mode": "replace", **options}
    opening = await session.start_call("fs/open", params)
    if await _finish(opening, path, is_read=True) is None:
        raise LinkError("the connection broke while the file was opened")
    link = opening.link
    assert link is not None
    pending: deque[Call] = deque()
    offset = 0
    try:
        for block in blocks():
            call = Call("fs/writeBlock")
            await link.start_call(call, {"handleId": handle, "offset": offset}, block)
            pending.append(call)
            offset += len(block)
            if len(pending) >= _WINDOW:
                await _written(pending.popleft(), path)
            if on_block is not None:
                on_block(offset)
        while pending:
            await _written(pending.popleft(), path)
    except BaseException:
        await _discard(link, handle)
        raise
    closing = Call("fs/close")
    await link.start_call(closing, {"handleId": handle})
    return written_of(await _finish(closing, path, is_read=False) or {})


async def _written(call: Call, path: str) -> None:
    if await _finish(call, path, is_read=True) is None:
        raise LinkError("the connection broke before the file was complete")


async def _discard(link: Link, handle: str) -> None:
    if link.end is None:
        try:
            await link.start_call(Call("fs/close", _ignore), {"handleId": handle, "discard": True})
        except ExecServerError:
            return
