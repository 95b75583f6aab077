"""One live connection: frames messages, matches replies to calls, and finds out when the peer is gone.

Owner: the driver of the session, which alone receives; callers send under a lock.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from typing import Any, cast

from .._errors import Ambiguous, AuthError, ExecServerError, LinkError
from .._protocol import decode, encode
from .._target import Child, Socket
from .._websocket import WebSocket
from . import runtime

_PING_INTERVAL = 10.0
_REFUSED = 77
_MAX_PENDING = 4096
"""Calls that wait for their reply; beyond it a call fails at once."""

_OUTPUT = b'{"method":"process/output","params":{'
_CHUNK = b'"chunk":"'
_HEAD = 1024
_AFTER = b'"}}'

_BINARY = b"\x01"
"""The first byte of a binary message: the length of its JSON follows, the JSON, and the bytes of its empty `chunk`."""
_PREFIX = 5


Traceparent = str | Callable[[], str | None] | None
"""The W3C trace context of requests, or what returns the current one."""


class Call:
    """One request that waits for its reply."""

    __slots__ = ("method", "result", "error", "gate", "on_result", "is_done", "link", "_claim")

    def __init__(self, method: str, on_result: Callable[[Any], None] | None = None) -> None:
        self.method = method
        self.result: Any = None
        self.error: dict[str, Any] | ExecServerError | None = None
        self.is_done = False
        self.link: Link | None = None
        self._claim = threading.Lock()
        self.on_result = on_result
        self.gate = None if on_result else runtime.Gate()

    def finish(self, result: Any, error: dict[str, Any] | ExecServerError | None) -> None:
        """The reply, or why there is none; the first one counts."""
        # The reader of the link and the thread of a user who closes may come at once.
        if not self._claim.acquire(blocking=False):
            return
        self.result, self.error = result, error
        self.is_done = True
        if self.on_result is not None:
            self.on_result(self)
        elif self.gate is not None:
            self.gate.open()


class Link:
    """A connection from its dial to its end."""

    def __init__(self, pipe: runtime.SocketPipe | runtime.ChildPipe, websocket: WebSocket | None) -> None:
        self._pipe = pipe
        self._websocket = websocket
        self._lock = runtime.Lock()
        self._calls: dict[int, Call] = {}
        self._ids = itertools.count(1)
        self._parts: list[bytes] = []
        self.ready: list[bytes | memoryview] = []
        self.sends_binary = False
        """Whether the server takes binary messages, and the connection has them."""
        self.end: LinkError | None = None
        self.traceparent: Traceparent = None

    @property
    def pending(self) -> int:
        """How many calls wait for their reply."""
        return len(self._calls)

    @property
    def carries_binary(self) -> bool:
        """Whether the connection has binary messages; lines do not."""
        return self._websocket is not None

    async def send(self, message: dict[str, Any], chunk: bytes | memoryview | None = None) -> None:
        """Sends one message, with `chunk` a binary one; the connection is over if that fails."""
        data = json.dumps(message, separators=(",", ":")).encode()
        if chunk is not None:
            data = b"".join((_BINARY, len(data).to_bytes(_PREFIX - 1, "big"), data, chunk))
        async with self._lock:
            if self.end is not None:
                raise self.end
            if self._websocket is None:
                data += b"\n"
            else:
                data = self._websocket.encode(data, is_binary=chunk is not None)
            await self._pipe.send(data)

    async def start_call(self, call: Call, params: Any, chunk: bytes | memoryview | None = None) -> None:
        """Sends a request, with `chunk` as this member of its params; `LinkError` means that it was not sent."""
        if self.end is not None:
            raise self.end
        if len(self._calls) >= _MAX_PENDING:
            raise ExecServerError(f"reached the limit of {_MAX_PENDING} pending requests")
        if chunk is not None:
            params = {**params, "chunk": "" if self.sends_binary else encode(chunk)}
            chunk = chunk if self.sends_binary else None
        number = next(self._ids)
        self._calls[number] = call
        call.link = self
        try:
            request: dict[str, Any] = {"id": number, "method": call.method, "params": params}
            parent = self.traceparent() if callable(self.traceparent) else self.traceparent
            if parent:
                request["trace"] = {"traceparent": parent}
            await self.send(request, chunk)
        except BaseException:
            # A link that ended meanwhile has finished the call already.
            if self._calls.pop(number, None) is not None:
                raise

    def handle(self, message: bytes | memoryview) -> tuple[str, dict[str, Any]] | None:
        """A message of the server: a reply is matched, a notification is returned; a view in it is of the message."""
        chunk: memoryview | None = None
        if bytes(message[:1]) == _BINARY:
            view = memoryview(message)
            end = _PREFIX + int.from_bytes(view[1:_PREFIX], "big")
            message, chunk = view[_PREFIX:end], view[end:]
        elif bytes(message[: len(_OUTPUT)]) == _OUTPUT:
            params = _output_of(memoryview(message))
            if params is not None:
                return "process/output", params
        parsed: Any = json.loads(bytes(message))
        if not isinstance(parsed, dict):
            raise LinkError("the server sent a message that is no object")
        parsed = cast("dict[str, Any]", parsed)
        method = parsed.get("method")
        if chunk is not None:
            payload = parsed.get("params" if method is not None else "result")
            if not isinstance(payload, dict) or cast("dict[str, Any]", payload).get("chunk") != "":
                raise LinkError("the server sent a binary message without a place for its bytes")
            payload["chunk"] = chunk if method is not None else bytes(chunk)
        if method is not None:
            return (method, parsed.get("params") or {}) if "id" not in parsed else None
        call = self._calls.pop(parsed.get("id", -1), None)
        if call is not None:
            call.finish(parsed.get("result"), parsed.get("error"))
        return None

    async def receive(self, deadline: float | None = None) -> list[bytes | memoryview]:
        """The next messages, valid until the next call; raises `LinkError` at the end, or at the deadline."""
        if self.ready:
            ready, self.ready = self.ready, []
            return ready
        is_pinged = False
        while True:
            wait = _PING_INTERVAL if deadline is None else max(min(_PING_INTERVAL, deadline - runtime.now()), 0)
            data = await self._pipe.receive(wait)
            if data is None:
                if deadline is not None and runtime.now() >= deadline:
                    raise LinkError("the server did not answer in time")
                # A child has its own keepalive.
                if self._websocket is None:
                    continue
                if is_pinged:
                    raise LinkError("the server answers no pings")
                is_pinged = True
                async with self._lock:
                    await self._pipe.send(self._websocket.ping())
                continue
            messages: list[bytes | memoryview] = []
            messages += self._lines(bytes(data)) if self._websocket is None else self._websocket.feed(data)
            is_pinged = False
            if self._websocket is not None:
                if self._websocket.must_answer:
                    async with self._lock:
                        await self._pipe.send(self._websocket.answer())
            elif not data:
                raise await self._child_end()
            if messages:
                return messages

    def abort(self) -> None:
        """Ends the connection from any place; the reader sees the end."""
        self._pipe.abort()

    async def close(self, error: LinkError) -> None:
        """Ends the connection and fails its calls."""
        self.end = self.end or error
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.finish(None, Ambiguous(f"the connection broke before `{call.method}` was answered: {error}"))
        self._pipe.abort()
        await self._pipe.close()

    @property
    def was_moved(self) -> bool:
        """Whether another client took the session over."""
        return self._websocket is not None and self._websocket.was_moved

    def _lines(self, data: bytes) -> list[bytes]:
        lines = data.split(b"\n")
        if len(lines) == 1:
            self._parts.append(data)
            return []
        lines[0] = b"".join([*self._parts, lines[0]])
        last = lines.pop()
        self._parts = [last] if last else []
        return [line for line in lines if line]

    async def explain(self, error: LinkError) -> LinkError:
        """The reason of a child that ended before a message was sent, which only it knows."""
        return error if self._websocket is not None else await self._child_end()

    async def _child_end(self) -> LinkError:
        assert isinstance(self._pipe, runtime.ChildPipe)
        code, words = await self._pipe.farewell()
        words = words.removeprefix("exec-server: ") or f"the connecting program exited with {code}"
        return AuthError(words) if code == _REFUSED else LinkError(words)


def _output_of(message: memoryview) -> dict[str, Any] | None:
    """The params of a `process/output`, which is the bulk of the traffic: its base64 needs no JSON parser."""
    head = bytes(message[:_HEAD])
    at = head.find(_CHUNK)
    if at < 0 or bytes(message[-len(_AFTER) :]) != _AFTER:
        return None
    text = message[at + len(_CHUNK) : -len(_AFTER)]
    try:
        data = decode(text)
    except ValueError:
        return None
    # The decoder skips what is not base64, such as the members after a chunk that is not the last one.
    if len(text) % 4 or len(data) != len(text) // 4 * 3 - bytes(text[-2:]).count(b"="):
        return None
    params = json.loads(head[len(_OUTPUT) - 1 : at] + b'"chunk":null}')
    params["chunk"] = data
    return params


async def dial(target: Socket | Child, timeout: float) -> Link:
    """Opens a connection."""
    if isinstance(target, Child):
        return Link(await runtime.open_child(target), None)
    websocket = WebSocket(target.host, target.port, target.resource, target.headers)
    pipe = await runtime.open_socket(target, timeout)
    try:
        await pipe.send(websocket.outgoing())
        deadline = runtime.now() + timeout
        ready: list[bytes | memoryview] = []
        while not websocket.is_open:
            data = await pipe.receive(max(deadline - runtime.now(), 0))
            if data is None:
                raise LinkError(f"{target.name} did not answer within {timeout} s")
            ready += websocket.feed(data)
    except BaseException as error:
        await pipe.close()
        if isinstance(error, LinkError):
            raise type(error)(f"could not connect to {target.name}: {error}") from error
        raise
    link = Link(pipe, websocket)
    link.ready = ready
    return link
