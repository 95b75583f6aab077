# Generated from _aio/watch.py by tools/unasync.py; change that file.
"""Follows the changes of a file or a tree.

A watch belongs to the session: it collects while there is no connection, and every read names the last change that
was seen, so that a repeated read loses nothing and reports nothing twice.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from .._errors import Ambiguous, ExecServerError, MachineClosed, remote_error
from .._protocol import change_of, new_id, to_uri
from .._types import Change
from .link import Call
from .session import Session

_WAIT = 30.0
"""Seconds that one request waits for a change."""


class Watch:
    """Iterates over changes; ends after the watched path itself was removed or moved."""

    def __init__(self, session: Session, path: str, recursive: bool, coalesce: float | None) -> None:
        self.path = path
        self.directories = 0
        """How many directories are watched."""
        self.skipped = 0
        """How many directories could not be read and are not watched."""
        self.is_ended = False
        """Whether the watched path was removed or moved."""
        self._session = session
        self._session_id: str | None = None
        self._params: dict[str, Any] = {"path": to_uri(path), "recursive": recursive}
        if coalesce is not None:
            self._params["coalesceMs"] = int(coalesce * 1000)
        self._id = ""
        self._seq = 0
        self._ready: deque[Change] = deque()
        self._pending: Call | None = None
        self._is_closed = False
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def open(self) -> Watch:
        """Begins to watch."""
        self._session.drop_leftovers()
        while True:
            self._id = new_id()
            call = self._session.start_call("fs/watch", {**self._params, "watchId": self._id})
            assert call.gate is not None
            call.gate.wait()
            if not isinstance(call.error, Ambiguous):
                break
            # The watch may exist; a new one takes its place.
            self._session.call("fs/unwatch", {"watchId": self._id}, is_repeatable=True)
        if isinstance(call.error, ExecServerError):
            raise call.error
        if call.error is not None:
            raise remote_error(call.error, self.path)
        self.directories = call.result["directories"]
        self.skipped = call.result.get("skipped", 0)
        self._session_id = self._session.session_id
        self._finalizer = weakref.finalize(self, _leave, self._session, self._id)
        self._finalizer.atexit = False
        return self

    def read(self, timeout: float | None = None) -> list[Change]:
        """The next changes, as many as there are; none if the time passed first, or after the end of the watch."""
        if not self._ready:
            self._fetch(timeout)
        changes = list(self._ready)
        self._ready.clear()
        return changes

    def close(self) -> None:
        """Ends the watch, and a read that waits."""
        if self._is_closed:
            return
        self._is_closed = True
        pending = self._pending
        if pending is not None:
            pending.finish({"changes": [], "ended": False}, None)
        if self._finalizer is not None:
            self._finalizer.detach()
        try:
            self._session.call(
                "fs/unwatch", {"watchId": self._id}, is_repeatable=True, session_id=self._session_id
            )
        except ExecServerError:
            # The watch is gone with its session.
            return

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> Change:
        while not self._ready:
            if self.is_ended or self._is_closed:
                raise StopIteration
            self._fetch(_WAIT)
        return self._ready.popleft()

    def _fetch(self, timeout: float | None) -> None:
        """Waits for changes; without a timeout until there are some."""
        while not (self._ready or self.is_ended or self._is_closed):
            wait = _WAIT if timeout is None else min(max(timeout, 0), _WAIT)
            answer = self._ask(wait)
            # A read that was cancelled is repeated with the same number, and none of its changes are lost.
            for item in answer["changes"]:
                if item["seq"] > self._seq:
                    self._seq = item["seq"]
                    self._ready.append(change_of(item))
            self.is_ended = answer["ended"]
            if timeout is not None:
                timeout -= wait
                if timeout <= 0:
                    return

    def _ask(self, wait: float) -> Any:
        while True:
            params = {"watchId": self._id, "afterSeq": self._seq, "waitMs": int(wait * 1000)}
            call = self._session.start_call("fs/readChanges", params, session_id=self._session_id)
            self._pending = call
            if self._is_closed:
                raise MachineClosed("the watch is closed")
            assert call.gate is not None
            try:
                call.gate.wait()
            finally:
                self._pending = None
            if isinstance(call.error, Ambiguous):
                continue
            if isinstance(call.error, ExecServerError):
                raise call.error
            if call.error is not None:
                raise remote_error(call.error)
            return call.result


def _leave(session: Session, watch_id: str) -> None:
    """A watch that was dropped is ended together with the next one."""
    session.leftovers.append((None, "fs/unwatch", {"watchId": watch_id}))
