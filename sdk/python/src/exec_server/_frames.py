"""Frames of a websocket from a server: received bytes in, messages and control frames out, with one copy at most.

Owner: `WebSocket`, which answers control frames. No I/O.
"""

from __future__ import annotations

from typing import NamedTuple

from ._errors import LinkError

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
_KNOWN = (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG)
_LONGEST_HEADER = 10


class Message(NamedTuple):
    """A whole message or a control frame."""

    opcode: int
    data: memoryview


class FrameReader:
    """Puts frames together; messages inside one received block are views of it, and nothing else keeps a view."""

    def __init__(self, max_message: int) -> None:
        self._max_message = max_message
        self._head = b""
        """The beginning of a frame whose header is not complete."""
        self._parts: list[bytes] = []
        """What has arrived of the payload of the current frame."""
        self._missing = 0
        self._opcode = CONTINUATION
        self._is_last = True
        self._fragments: list[bytes] = []
        self._fragments_bytes = 0
        self._message = CONTINUATION

    def feed(self, data: bytes | memoryview) -> list[Message]:
        """The messages that these bytes complete; their views are valid as long as the bytes are."""
        messages: list[Message] = []
        view = memoryview(data)
        if self._head:
            view = memoryview(self._head + bytes(data))
            self._head = b""
        elif self._missing:
            part = view[: self._missing]
            self._parts.append(bytes(part))
            self._missing -= len(part)
            if self._missing:
                return messages
            view = view[len(part) :]
            parts, self._parts = self._parts, []
            self._frame(memoryview(b"".join(parts)), messages)
        while view:
            size = self._header(view)
            if size is None:
                self._head = bytes(view)
                break
            begin, length = size
            end = begin + length
            if end > len(view):
                self._parts = [bytes(view[begin:])]
                self._missing = end - len(view)
                break
            self._frame(view[begin:end], messages)
            view = view[end:]
        return messages

    def _header(self, view: memoryview) -> tuple[int, int] | None:
        """Where the payload begins and how long it is; none if the header is not complete."""
        if len(view) < 2:
            return None
        first, length = view[0], view[1]
        opcode = first & 0x0F
        if first & 0x70 or opcode not in _KNOWN or length & 0x80:
            raise LinkError("the server sent a frame that is against the websocket protocol")
        begin = 2
        if length >= 126:
            begin = 4 if length == 126 else _LONGEST_HEADER
            if len(view) < begin:
                return None
            length = int.from_bytes(view[2:begin], "big")
        is_control = opcode >= CLOSE
        if is_control and (length > 125 or not first & 0x80):
            raise LinkError("the server sent a control frame that is too long")
        if not is_control and self._fragments_bytes + length > self._max_message:
            raise LinkError(f"the server sent a message of more than {self._max_message} bytes")
        self._opcode, self._is_last = opcode, bool(first & 0x80)
        return begin, length

    def _frame(self, payload: memoryview, messages: list[Message]) -> None:
        if self._opcode >= CLOSE or (self._is_last and self._opcode != CONTINUATION and not self._message):
            messages.append(Message(self._opcode, payload))
            return
        if (self._opcode == CONTINUATION) is not bool(self._message):
            raise LinkError("the server sent fragments of messages out of order")
        self._message = self._message or self._opcode
        self._fragments.append(bytes(payload))
        self._fragments_bytes += len(payload)
        if self._is_last:
            whole = memoryview(b"".join(self._fragments))
            messages.append(Message(self._message, whole))
            self._fragments = []
            self._fragments_bytes = 0
            self._message = CONTINUATION
