"""HTTP requests that the machine makes: its network, its names, its proxies."""

from __future__ import annotations

import json as json_text
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from .._errors import ExecServerError, LinkError
from .._protocol import decode, encode, new_id
from .._types import Response
from . import runtime
from .runtime import Opening, opening
from .session import UNREAD_PAUSE, AsyncSession

Headers = Mapping[str, str] | Sequence[tuple[str, str]]
_UNREAD_BYTES = 64 * 1024 * 1024
"""Unread parts of one body; beyond it the body fails instead of the memory growing."""


class AsyncHttp:
    """`machine.http`."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Headers | None = None,
        content: bytes | str | None = None,
        json: Any = None,
        timeout: float | None = None,
        follow_redirects: bool = True,
    ) -> Response:
        """Makes a request and returns the whole answer; `Ambiguous` if the connection to the server broke meanwhile."""
        params = _params(method, url, headers, content, json, timeout, follow_redirects)
        answer = await self._session.call("http/request", params)
        return _response(answer, url, decode(answer["bodyBase64"]))

    async def get(self, url: str, *, headers: Headers | None = None, timeout: float | None = None) -> Response:
        """A GET request."""
        return await self.request("GET", url, headers=headers, timeout=timeout)

    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Headers | None = None,
        content: bytes | str | None = None,
        json: Any = None,
        timeout: float | None = None,
        follow_redirects: bool = True,
    ) -> Opening[AsyncBody]:
        """Makes a request whose body is iterated over; leaving `async with` ends the exchange."""
        params = _params(method, url, headers, content, json, timeout, follow_redirects)
        return opening(lambda: self._stream(params))

    async def _stream(self, params: dict[str, Any]) -> AsyncBody:
        params["streamResponse"] = True
        body = AsyncBody(self._session, params["requestId"])
        self._session.bodies[params["requestId"]] = body
        answer = await self._session.call("http/request", params)
        body.response = _response(answer, params["url"], b"")
        return body


class AsyncBody:
    """An answer whose body is still coming."""

    def __init__(self, session: AsyncSession, request_id: str) -> None:
        self.response = Response(0, (), b"", "")
        """Status and headers; its content is empty."""
        self._session = session
        self._id = request_id
        self._parts: deque[bytes] = deque()
        self.unread_bytes = 0
        self._next_seq = 1
        self._is_done = False
        self._error: ExecServerError | None = None
        self._changed = runtime.Notifier()
        self._guard = threading.Lock()

    def chunks(self) -> AsyncChunks:
        """The parts of the body as they come."""
        return AsyncChunks(self)

    async def next_chunk(self) -> bytes | None:
        """The next part; none at the end."""
        await self._changed.wait_for(lambda: bool(self._parts) or self._is_done or self._error is not None)
        with self._guard:
            part = self._parts.popleft() if self._parts else None
            self.unread_bytes -= len(part or b"")
        if self.unread_bytes <= UNREAD_PAUSE:
            self._session.relieve()
        if part is None and self._error is not None:
            raise self._error
        return part

    async def read(self) -> bytes:
        """The rest of the body."""
        parts: list[bytes] = []
        async for part in self.chunks():
            parts.append(part)
        return b"".join(parts)

    async def close(self) -> None:
        """Ends the exchange."""
        self._session.bodies.pop(self._id, None)
        if not self._is_done and self._error is None and self._session.capabilities.get("httpCancel"):
            try:
                await self._session.call("http/cancel", {"requestId": self._id})
            except ExecServerError:
                return

    async def __aenter__(self) -> AsyncBody:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def handle_delta(self, params: dict[str, Any]) -> int:
        """A part of the body, from the driver of the session; returns how much is unread."""
        data = decode(params["deltaBase64"])
        with self._guard:
            if params["seq"] != self._next_seq:
                self._error = LinkError(f"part {self._next_seq} of an HTTP body is missing")
            self._next_seq += 1
            if data:
                self._parts.append(data)
                self.unread_bytes += len(data)
            if self.unread_bytes > _UNREAD_BYTES:
                self._error = LinkError(f"more than {_UNREAD_BYTES} bytes of an HTTP body were not read")
            if params.get("error"):
                self._error = ExecServerError(f"the HTTP body ended early: {params['error']}")
            self._is_done = self._is_done or params["done"]
        self._changed.notify()
        return self.unread_bytes

    def handle_lost(self, error: LinkError) -> None:
        """The connection is lost, from the driver of the session."""
        if not self._is_done:
            self._error = LinkError(f"the HTTP body is lost: {error}")
            self._changed.notify()


class AsyncChunks:
    """Iterates over the parts of a body."""

    def __init__(self, body: AsyncBody) -> None:
        self._body = body

    def __aiter__(self) -> AsyncChunks:
        return self

    async def __anext__(self) -> bytes:
        part = await self._body.next_chunk()
        if part is None:
            raise StopAsyncIteration
        return part


def _params(
    method: str,
    url: str,
    headers: Headers | None,
    content: bytes | str | None,
    json: Any,
    timeout: float | None,
    follow_redirects: bool,
) -> dict[str, Any]:
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers or ())
    if json is not None:
        if content is not None:
            raise ValueError("a request has content or json, not both")
        content = json_text.dumps(json)
        pairs.append(("content-type", "application/json"))
    params: dict[str, Any] = {
        "requestId": new_id(),
        "method": method,
        "url": url,
        "headers": [{"name": name, "value": value} for name, value in pairs],
        "redirectPolicy": "follow" if follow_redirects else "stop",
    }
    if content is not None:
        params["bodyBase64"] = encode(content.encode() if isinstance(content, str) else content)
    if timeout is not None:
        params["timeoutMs"] = max(int(timeout * 1000), 1)
    return params


def _response(answer: dict[str, Any], url: str, content: bytes) -> Response:
    headers = [(item["name"], item["value"]) for item in answer["headers"]]
    return Response(answer["status"], headers, content, answer.get("finalUrl") or url)
