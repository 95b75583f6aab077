"""The websocket protocol without I/O: bytes in, messages out, and the other way round.

The library does the handshake and frames what is sent; what is received is the bulk of the traffic, and `_frames` reads it.
"""

from __future__ import annotations

from collections.abc import Sequence

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import WebSocketURI

from ._errors import AuthError, LinkError
from ._frames import BINARY, CLOSE, PING, TEXT, FrameReader, Message

_MAX_MESSAGE = 128 * 1024 * 1024
_MAX_FRAME = 8 * 1024 * 1024
"""Servers refuse frames above 16 MiB; longer messages are sent in fragments."""
_MAX_HANDSHAKE = 64 * 1024
_END_OF_HEAD = b"\r\n\r\n"
_NO_CODE = 1005
MOVED = 4001
"""The close code of a connection whose session was taken over."""


class WebSocket:
    """One connection; the owner passes bytes on."""

    def __init__(self, host: str, port: int, path: str, headers: Sequence[tuple[str, str]]) -> None:
        uri = WebSocketURI(False, host, port, path, "", None, None)
        self._protocol = ClientProtocol(uri, max_size=_MAX_MESSAGE)
        request = self._protocol.connect()
        for name, value in headers:
            request.headers[name] = value
        self._protocol.send_request(request)
        self._handshake = b""
        self._has_head = False
        self._frames = FrameReader(_MAX_MESSAGE)
        self._closed: tuple[int, str] | None = None
        self._pings: list[bytes] = []
        self.is_open = False

    def outgoing(self) -> bytes:
        """Bytes to send now, such as the handshake."""
        return b"".join(self._protocol.data_to_send())

    def encode(self, message: bytes, *, is_binary: bool = False) -> bytes:
        """The frames of a message."""
        if self._protocol.state is not State.OPEN:
            raise LinkError(self._reason())
        is_whole = len(message) <= _MAX_FRAME
        send = self._protocol.send_binary if is_binary else self._protocol.send_text
        send(message if is_whole else message[:_MAX_FRAME], fin=is_whole)
        for begin in range(_MAX_FRAME, len(message), _MAX_FRAME):
            end = begin + _MAX_FRAME
            self._protocol.send_continuation(message[begin:end], fin=end >= len(message))
        return self.outgoing()

    def ping(self) -> bytes:
        """A ping."""
        self._protocol.send_ping(b"")
        return self.outgoing()

    def close(self) -> bytes:
        """A close frame."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
        return self.outgoing()

    @property
    def must_answer(self) -> bool:
        """Whether a ping or a close of the server waits for `answer`."""
        return bool(self._pings) or (self._closed is not None and self._protocol.state is State.OPEN)

    def answer(self) -> bytes:
        """Pongs, and a close; unlike `feed`, it must not run beside `encode`."""
        pings, self._pings = self._pings, []
        if self._protocol.state is State.OPEN:
            for data in pings:
                self._protocol.send_pong(data)
            if self._closed is not None:
                self._protocol.send_close(1000)
        return self.outgoing()

    def feed(self, data: bytes | memoryview) -> list[memoryview]:
        """Bytes from the server, `b""` at their end; the messages that they complete, as views of them."""
        messages: list[memoryview] = []
        if not self.is_open:
            data = self._answer(bytes(data))
            if not self.is_open:
                return messages
        elif not data:
            raise LinkError(self._reason())
        for message in self._frames.feed(data):
            if message.opcode in (TEXT, BINARY):
                messages.append(message.data)
            else:
                self._control(message)
        return messages

    @property
    def was_moved(self) -> bool:
        """Whether the server closed because another client took the session."""
        return self._closed is not None and self._closed[0] == MOVED

    def _answer(self, data: bytes) -> bytes:
        """Reads the answer to the handshake; returns what follows it."""
        rest = b""
        if not data:
            self._protocol.receive_eof()
        elif self._has_head:
            # The body of a refusal.
            self._protocol.receive_data(data)
        else:
            self._handshake += data
            head, end, rest = self._handshake.partition(_END_OF_HEAD)
            if not end:
                if len(head) > _MAX_HANDSHAKE:
                    raise LinkError("no websocket: the server sent no end of its answer")
                return b""
            self._has_head = True
            self._handshake = b""
            self._protocol.receive_data(head + end)
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self._check(event)
        if self.is_open:
            return rest
        if rest:
            return self._answer(rest)
        if not data or self._protocol.handshake_exc is not None:
            raise LinkError(self._reason())
        return b""

    def _check(self, response: Response) -> None:
        if self._protocol.handshake_exc is None:
            self.is_open = True
            return
        error = self._protocol.handshake_exc
        if isinstance(error, InvalidStatus) and response.status_code in (401, 403):
            said = (response.body or b"").decode(errors="replace").strip()
            what = "refused the token" if response.status_code == 401 else "does not serve this user or host name"
            raise AuthError(f"the server {what} ({response.status_code}{': ' + said if said else ''})")
        raise LinkError(f"no websocket: {error}")

    def _control(self, frame: Message) -> None:
        if self._protocol.state is not State.OPEN:
            return
        if frame.opcode == PING:
            self._pings.append(bytes(frame.data))
        elif frame.opcode == CLOSE:
            code = int.from_bytes(frame.data[:2], "big") if len(frame.data) >= 2 else _NO_CODE
            self._closed = (code, bytes(frame.data[2:]).decode(errors="replace"))

    def _reason(self) -> str:
        if self._protocol.handshake_exc is not None:
            return f"no websocket: {self._protocol.handshake_exc}"
        if self._closed is not None:
            code, reason = self._closed
            return f"closed by the server with code {code}" + (f": {reason}" if reason else "")
        return "the connection was closed" if self.is_open else "no websocket: the server closed the connection"
