"""The websocket protocol without I/O: bytes in, messages out, and the other way round."""

from __future__ import annotations

from collections.abc import Sequence

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import WebSocketURI

from ._errors import AuthError, LinkError

_MAX_MESSAGE = 128 * 1024 * 1024
_MAX_FRAME = 8 * 1024 * 1024
"""Servers refuse frames above 16 MiB; longer messages are sent in fragments."""
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
        self._parts: list[bytes] = []
        self.is_open = False

    def outgoing(self) -> bytes:
        """Bytes to send now, such as the handshake or a pong."""
        return b"".join(self._protocol.data_to_send())

    def encode(self, message: bytes) -> bytes:
        """The frames of a message."""
        if len(message) <= _MAX_FRAME:
            self._protocol.send_text(message)
        else:
            self._protocol.send_text(message[:_MAX_FRAME], fin=False)
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

    def feed(self, data: bytes) -> list[bytes]:
        """Bytes from the server, `b""` at their end; the messages that they complete."""
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        messages: list[bytes] = []
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self._check(event)
            elif isinstance(event, Frame):
                self._frame(event, messages)
        if not data and not messages:
            raise LinkError(self._reason())
        return messages

    @property
    def was_moved(self) -> bool:
        """Whether the server closed because another client took the session."""
        received = self._protocol.close_rcvd
        return received is not None and received.code == MOVED

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

    def _frame(self, frame: Frame, messages: list[bytes]) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY) and frame.fin:
            messages.append(bytes(frame.data))
        elif frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            self._parts.append(bytes(frame.data))
            if frame.fin:
                messages.append(b"".join(self._parts))
                self._parts = []

    def _reason(self) -> str:
        if self._protocol.handshake_exc is not None:
            return f"no websocket: {self._protocol.handshake_exc}"
        received = self._protocol.close_rcvd
        if received is not None:
            return f"closed by the server with code {received.code}" + (f": {received.reason}" if received.reason else "")
        return "the connection was closed"
