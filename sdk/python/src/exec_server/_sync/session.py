# Generated from _aio/session.py by tools/unasync.py; change that file.
"""The session of a machine: connects, resumes after a lost connection, and repeats what is safe to repeat.

Owner of the link: the driver, a background task; it alone receives. Callers send, wait for their reply, and wait here
while there is no connection.

    idle -open-> ready -link lost-> resuming(until t) -resumed, gaps read-> ready
      ^                               | refused, taken over, or t passes: the processes fail
      +-------------------------------+
"""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from .._errors import (
    Ambiguous,
    AuthError,
    ExecServerError,
    LinkError,
    MachineClosed,
    RemoteError,
    SessionLost,
    TakenOver,
    Unsupported,
    remote_error,
)
from .._protocol import from_uri
from .._target import Child, Socket
from .._version import version
from . import runtime
from .link import Call, Link, Traceparent, dial

if TYPE_CHECKING:
    from .process import Process

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_STILL_ATTACHED = -32010
_PAUSE_LIMIT = 5.0
"""A paused reader looks at its link this often, so that pings are answered."""
_CLOSE_TIMEOUT = 5.0
UNREAD_PAUSE = 4 * 1024 * 1024
"""Unread output of one process at which reading pauses, unless a call waits for its reply."""


class Body(Protocol):
    """A streamed HTTP body that waits for its deltas."""

    @property
    def unread_bytes(self) -> int:
        """Parts that have arrived and were not read."""
        ...

    def handle_delta(self, params: dict[str, Any]) -> int:
        """A part of the body; returns how much is unread."""
        ...

    def handle_lost(self, error: LinkError) -> None:
        """The connection is lost, and the body with it."""
        ...


class Session:
    """What outlives a connection."""

    def __init__(
        self,
        target: Socket | Child,
        *,
        connect_timeout: float = 10.0,
        recovery: float = 55.0,
        session: str | None = None,
        take_over: bool = False,
        linger: float | None = None,
        traceparent: Traceparent = None,
    ) -> None:
        self.target = target
        self.traceparent = traceparent
        self.connect_timeout = connect_timeout
        self.recovery = recovery
        self.linger = linger
        self.session_id: str | None = session
        self.info: dict[str, Any] = {}
        self.capabilities: dict[str, Any] = {}
        self.link: Link | None = None
        self.is_closed = False
        self.owned: set[str] = set()
        self.bodies: weakref.WeakValueDictionary[str, Body] = weakref.WeakValueDictionary()
        self.processes: weakref.WeakValueDictionary[str, Process] = weakref.WeakValueDictionary()
        self.waiting = 0
        self._take_over = take_over
        self._pid = os.getpid()
        self._changed = runtime.Notifier()
        self._opening = runtime.Lock()
        self._driver: runtime.Task | None = None
        self._is_driven = False
        self._was_moved = False
        self._is_paused = False
        self._heavy: weakref.ref[Process] | weakref.ref[Body] | None = None
        self._relief = runtime.Notifier()
        self._count = threading.Lock()
        self._behind: deque[Process] = deque()
        self.leftovers: deque[tuple[Link | None, str, dict[str, Any]]] = deque()
        """Searches and watches that were dropped without a close: their connection or none for any, and the call."""

    # Opening and closing

    def open(self) -> None:
        """Connects; concurrent callers share one attempt."""
        with self._opening:
            if self.is_closed:
                raise MachineClosed("the machine is closed")
            if self._is_driven:
                return
            link = self._attempt(self.session_id, self._take_over)
            self._take_over = False
            self.link = link
            self._is_driven = True
            self._driver = runtime.spawn(self._drive, f"exec-server {self.target.name}")

    def close(self) -> None:
        """Ends the processes that were not detached, and the connection."""
        if self.is_closed:
            return
        link = self.link
        if link is not None and link.end is None and os.getpid() == self._pid:
            with runtime.shielded(_CLOSE_TIMEOUT):
                self._end_processes(link)
        self.is_closed = True
        self._changed.notify()
        self._relief.notify()
        if os.getpid() != self._pid:
            return
        if self.link is not None:
            self.link.abort()
        if self._driver is not None:
            self._driver.cancel()
            self._driver.join(_CLOSE_TIMEOUT)
        self._fail(MachineClosed("the machine is closed"))

    def abandon(self) -> None:
        """Ends the connection without waiting, when the machine was dropped."""
        self.is_closed = True
        if self.link is not None and os.getpid() == self._pid:
            self.link.abort()

    def _end_processes(self, link: Link) -> None:
        calls: list[Call] = []
        for process_id in list(self.owned):
            process = self.processes.get(process_id)
            if process is None or not process.is_closed:
                call = Call("process/terminate")
                try:
                    link.start_call(call, {"processId": process_id})
                except ExecServerError:
                    return
                calls.append(call)
        for call in calls:
            assert call.gate is not None
            call.gate.wait()

    # Calls

    def call(
        self,
        method: str,
        params: dict[str, Any] | None,
        *,
        chunk: bytes | None = None,
        is_repeatable: bool = False,
        path: str | None = None,
        session_id: str | None = None,
    ) -> Any:
        """Calls a method; what is not repeatable raises `Ambiguous` when the connection breaks before the reply."""
        while True:
            call = self.start_call(method, params, chunk=chunk, session_id=session_id)
            assert call.gate is not None
            call.gate.wait()
            if isinstance(call.error, Ambiguous):
                if is_repeatable:
                    continue
                raise call.error
            if isinstance(call.error, ExecServerError):
                raise call.error
            if call.error is not None:
                raise remote_error(call.error, path)
            return call.result

    def start_call(
        self,
        method: str,
        params: dict[str, Any] | None,
        *,
        chunk: bytes | None = None,
        session_id: str | None = None,
    ) -> Call:
        """Sends a request as soon as there is a connection; the caller waits for the gate of the call."""
        while True:
            link = self._live()
            if session_id is not None and session_id != self.session_id:
                raise SessionLost("the session of the process is gone")
            call = Call(method)
            try:
                link.start_call(call, params, chunk)
                if self._is_paused:
                    self._relief.notify()
                return call
            except LinkError:
                # The driver may not have noticed yet.
                link.abort()
                self._changed.wait_for(lambda link=link: self.link is not link or self.is_closed)

    def recover(self, process: Process) -> None:
        """Reads what a process has sent over a connection that is gone."""
        try:
            self._read_missing(self._live(), process)
        except MachineClosed:
            raise
        except LinkError:
            # The next connection reads it.
            return

    def _read_missing(self, link: Link, process: Process) -> None:
        link.start_call(Call("process/read", process.handle_read), process.missing())

    def read_on(self, process: Process) -> None:
        """There is more to read; the driver asks for the next page."""
        self._behind.append(process)

    def require(self, capability: str, what: str) -> None:
        """Raises `Unsupported` unless the server announces the capability."""
        if not self.capabilities.get(capability):
            raise Unsupported(f"the server does not support {what}")

    def count_waiting(self, change: int) -> None:
        """A caller waits for an event; reading does not pause meanwhile."""
        with self._count:
            self.waiting += change
        if self._is_paused:
            self._relief.notify()

    def relieve(self) -> None:
        """A consumer has read output."""
        if self._is_paused:
            self._relief.notify()

    def drop_leftovers(self) -> None:
        """Ends what was dropped without a close; a search of an old connection is gone already."""
        while self.leftovers:
            link, method, params = self.leftovers.popleft()
            live = self._live()
            if link is None or link is live:
                try:
                    live.start_call(Call(method, lambda call: None), params)
                except LinkError:
                    return

    def _live(self) -> Link:
        while True:
            if os.getpid() != self._pid:
                raise MachineClosed("this machine belongs to the parent process; connect again after a fork")
            if self.is_closed:
                raise MachineClosed("the machine is closed")
            link = self.link
            if link is not None and link.end is None:
                return link
            if self._is_driven:
                self._changed.wait_for(
                    lambda: self.is_closed
                    or not self._is_driven
                    or (self.link is not None and self.link.end is None)
                )
            else:
                self.open()

    # The driver

    def _drive(self) -> None:
        error: LinkError = MachineClosed("the event loop has ended")
        try:
            while not self.is_closed and self.link is not None:
                error = self._serve(self.link)
                for body in list(self.bodies.values()):
                    body.handle_lost(error)
                self.link = None
                if self.is_closed or isinstance(error, TakenOver):
                    break
                try:
                    self.link = self._resume()
                except ExecServerError as failure:
                    error = SessionLost(f"{error}; the session could not be resumed: {failure}")
                    break
                self._changed.notify()
        finally:
            link, self.link = self.link, None
            if link is not None:
                link.close(error)
            self.session_id = None
            self._is_driven = False
            self.owned.clear()
            self._fail(MachineClosed("the machine is closed") if self.is_closed else error)
            self._changed.notify()

    def _serve(self, link: Link) -> LinkError:
        error = LinkError("the connection was given up")
        try:
            while True:
                for message in link.receive():
                    self._handle(link, message)
                while self._behind:
                    self._read_missing(link, self._behind.popleft())
                if self._is_flooded(link):
                    self._is_paused = True
                    self._relief.wait_for(lambda: self.is_closed or not self._is_flooded(link), _PAUSE_LIMIT)
                    self._is_paused = False
        except LinkError as failure:
            error = failure
        except (ValueError, KeyError, TypeError) as failure:
            error = LinkError(f"the server sent a malformed message: {failure!r}")
        finally:
            link.close(error)
        if self._was_moved or link.was_moved:
            return TakenOver("another client took the session over")
        return error

    def _is_flooded(self, link: Link) -> bool:
        heavy = None if self._heavy is None else self._heavy()
        if heavy is None or heavy.unread_bytes <= UNREAD_PAUSE:
            self._heavy = None
            return False
        return link.pending == 0 and self.waiting == 0

    def _handle(self, link: Link, message: bytes | memoryview) -> None:
        notification = link.handle(message)
        if notification is None:
            return
        method, params = notification
        if method.startswith("process/"):
            process = self.processes.get(params["processId"])
            if process is not None and process.handle_event(method, params) > UNREAD_PAUSE:
                self._heavy = weakref.ref(process)
            if method == "process/closed":
                self.owned.discard(params["processId"])
        elif method == "http/request/bodyDelta":
            body = self.bodies.get(params["requestId"])
            if body is not None and body.handle_delta(params) > UNREAD_PAUSE:
                self._heavy = weakref.ref(body)
        elif method == "session/moved":
            self._was_moved = True

    def _resume(self) -> Link:
        deadline = runtime.now() + self.recovery
        pause = _FIRST_PAUSE
        while True:
            try:
                return self._attempt(self.session_id, False)
            except (AuthError, SessionLost):
                raise
            except RemoteError as error:
                if error.code != _STILL_ATTACHED and not error.retryable:
                    raise
                if runtime.now() + pause > deadline:
                    raise
            except LinkError:
                if runtime.now() + pause > deadline or self.is_closed:
                    raise
            runtime.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _attempt(self, session_id: str | None, take_over: bool) -> Link:
        link = dial(self.target, self.connect_timeout)
        link.traceparent = self.traceparent
        try:
            self._handshake(link, session_id, take_over)
            # A snapshot: processes that end meanwhile need no recovery.
            for process in list(self.processes.values()):
                if process.needs_recovery:
                    process.reset_page()
                    self._read_missing(link, process)
            return link
        except BaseException as error:
            link.close(error if isinstance(error, LinkError) else LinkError(str(error)))
            raise

    def _handshake(self, link: Link, session_id: str | None, take_over: bool) -> None:
        params: dict[str, Any] = {
            "clientName": f"exec-server-python/{version()}",
            "resumeSessionId": session_id,
            "clientCapabilities": {"sessionMoved": True, "binaryMessages": link.carries_binary},
        }
        if self.linger is not None:
            params["lingerMs"] = int(self.linger * 1000)
        if take_over:
            params["takeOver"] = True
        call = Call("initialize", lambda call: None)
        try:
            link.start_call(call, params)
        except LinkError as error:
            raise link.explain(error) from error
        # A relay may need several steps, each with this timeout.
        deadline = runtime.now() + self.connect_timeout * 2
        answer = self._answer(link, call, deadline)
        if session_id is not None and answer.get("sessionId") != session_id:
            raise SessionLost("the server resumed another session")
        link.send({"method": "initialized", "params": {}})
        info = answer.get("environmentInfo")
        if not info:
            call = Call("environment/info", lambda call: None)
            link.start_call(call, None)
            info = self._answer(link, call, deadline)
        self.session_id = answer["sessionId"]
        self.info = info
        self.capabilities = info.get("capabilities") or {}
        link.sends_binary = link.carries_binary and bool(self.capabilities.get("binaryMessages"))

    def _answer(self, link: Link, call: Call, deadline: float) -> dict[str, Any]:
        """The reply to a call before the driver reads."""
        while not call.is_done:
            for message in link.receive(deadline):
                self._handle(link, message)
        if isinstance(call.error, ExecServerError):
            raise call.error
        if call.error is not None:
            raise remote_error(call.error)
        return call.result

    def _fail(self, error: LinkError) -> None:
        for process in list(self.processes.values()):
            process.handle_failure(error)
        for body in list(self.bodies.values()):
            body.handle_lost(error)

    # Facts about the machine

    @property
    def cwd(self) -> str:
        """The working directory of the server."""
        uri = self.info.get("cwd")
        return from_uri(uri) if uri else "/"

    def absolute(self, path: str | os.PathLike[str]) -> str:
        """A remote path; relative ones begin in the working directory of the server, `~` in the user's home."""
        text = os.fspath(path)
        if text == "~" or text.startswith("~/"):
            uri = self.info.get("userHomeDir")
            if uri:
                text = from_uri(uri).rstrip("/") + text[1:]
        return text if text.startswith("/") else self.cwd.rstrip("/") + "/" + text
