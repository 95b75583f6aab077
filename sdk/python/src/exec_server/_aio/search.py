"""Searches of a tree, page by page.

A search belongs to one connection. Before its first page it is repeated on the next connection; afterwards a lost
connection is an error, because the order of the matches is not fixed.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from .._errors import Ambiguous, ExecServerError, LinkError, SearchLost, remote_error
from .._protocol import from_uri, new_id
from .._types import Unreadable
from .link import Call, Link
from .session import AsyncSession

T = TypeVar("T")


class AsyncSearch(Generic[T]):
    """Iterates over the results of a search; `async with` ends it early, `all()` collects everything."""

    def __init__(
        self,
        session: AsyncSession,
        method: str,
        params: dict[str, Any],
        path: str,
        items: Callable[[Mapping[str, Any]], Sequence[T]],
    ) -> None:
        self.incomplete: str | None = None
        """The limit that ended the search early: `maxMatches`, `maxBytes` or `timeout`."""
        self.visited = 0
        """Files searched, or names looked at, so far."""
        self.binary_files = 0
        """Files with NUL bytes that were skipped so far."""
        self.binary_matches: list[str] = []
        """Files with NUL bytes that match, with `binary="report"`."""
        self.unreadable: list[Unreadable] = []
        """Paths that could not be read; only the first ones of a page."""
        self.unreadable_count = 0
        self._session = session
        self._method = method
        self._params = params
        self._path = path
        self._items = items
        self._ready: deque[T] = deque()
        self._link: Link | None = None
        self._id = ""
        self._is_over = False
        self._finalizer: weakref.finalize[Any, Any] | None = None

    async def all(self) -> list[T]:
        """All results; repeated from the beginning if the connection breaks and nothing was taken yet."""
        found: list[T] = list(self._ready)
        is_fresh = self._link is None
        self._ready.clear()
        while True:
            try:
                while await self._fetch():
                    found += self._ready
                    self._ready.clear()
                return found
            except SearchLost:
                if not is_fresh:
                    raise
                found.clear()
                self._restart()

    async def close(self) -> None:
        """Ends the search."""
        self._ready.clear()
        await self._cancel()

    async def __aenter__(self) -> AsyncSearch[T]:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncSearch[T]:
        return self

    async def __anext__(self) -> T:
        while not self._ready:
            if not await self._fetch():
                raise StopAsyncIteration
        return self._ready.popleft()

    async def _fetch(self) -> bool:
        """Reads the next page; false after the last one."""
        if self._is_over:
            return False
        try:
            page = await self._first() if self._link is None else await self._next(self._link)
        except BaseException:
            await self._cancel()
            raise
        self._ready.extend(self._items(page))
        self.visited = page["visited"]
        self.binary_files = page.get("binaryFiles", 0)
        self.binary_matches += [from_uri(uri) for uri in page.get("binaryMatches", ())]
        self.unreadable += [Unreadable(from_uri(item["path"]), item["message"]) for item in page.get("errors", ())]
        self.unreadable_count = page.get("errorCount", 0)
        if page["done"]:
            self.incomplete = page.get("incomplete")
            self._finish()
        return True

    async def _first(self) -> Any:
        await self._session.drop_leftovers()
        while True:
            self._id = new_id()
            call = await self._session.start_call(self._method, {**self._params, "searchId": self._id})
            self._link = call.link
            self._finalizer = weakref.finalize(self, _leave, self._session, call.link, self._id)
            self._finalizer.atexit = False
            try:
                return await _answer(call, self._path)
            except Ambiguous:
                self._finish()
                self._is_over = False

    async def _next(self, link: Link) -> Any:
        call = Call("fs/nextPage")
        try:
            await link.start_call(call, {"searchId": self._id})
            return await _answer(call, self._path)
        except LinkError as error:
            raise SearchLost(f"the search of {self._path} ended with its connection: {error}") from error

    async def _cancel(self) -> None:
        link = self._link
        if not self._is_over and link is not None and link.end is None:
            try:
                await link.start_call(Call("fs/cancelSearch", _ignore), {"searchId": self._id})
            except ExecServerError:
                pass
        self._finish()

    def _restart(self) -> None:
        self._link, self._is_over = None, False
        self.unreadable.clear()
        self.binary_matches.clear()

    def _finish(self) -> None:
        self._is_over = True
        if self._finalizer is not None:
            self._finalizer.detach()
            self._finalizer = None


def _leave(session: AsyncSession, link: Link | None, search_id: str) -> None:
    """A search that was dropped before its end is cancelled together with the next one."""
    if link is not None:
        session.leftovers.append((link, "fs/cancelSearch", {"searchId": search_id}))


def _ignore(call: Call) -> None:
    del call


async def _answer(call: Call, path: str) -> Any:
    assert call.gate is not None
    await call.gate.wait()
    if isinstance(call.error, ExecServerError):
        raise call.error
    if call.error is not None:
        raise remote_error(call.error, path)
    return call.result
