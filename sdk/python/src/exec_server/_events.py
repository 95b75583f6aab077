"""Puts the events of one process in order: each is delivered once, and a gap is never silent.

Owner: the process handle; the reader of the link feeds it. No I/O, no clock.
"""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Mapping
from typing import Any

from ._protocol import decode, exit_of
from ._types import Exit, Output

UNREAD_LIMIT = 64 * 1024 * 1024
"""Unread output of one process that is kept; beyond it the consumer gets `OutputLost` instead of the memory growing."""

_CLOSED = object()


class EventOrder:
    """Events of one process from its first unread sequence number on; a collecting one joins its output at once."""

    def __init__(self, after: int = 0, *, is_collecting: bool = False) -> None:
        self.next_seq = after + 1
        self._is_collecting = is_collecting
        self._out, self._err = io.BytesIO(), io.BytesIO()
        self.unread: deque[Output] = deque()
        self.unread_bytes = 0
        self.exit: Exit | None = None
        self.is_closed = False
        self.lost: str | None = None
        self._early: dict[int, Output | Exit | object] = {}
        self._early_bytes = 0

    def output(self, seq: int, stream: str, data: bytes | memoryview) -> bool:
        """A pushed chunk, which is copied if it is a view; whether it brought something to deliver."""
        if seq == self.next_seq and not self._early:
            self.next_seq = seq + 1
            if self._is_collecting:
                self._collect(stream, data)
                return True
            return self._deliver(Output(stream, bytes(data), seq))
        return self._insert(seq, Output(stream, bytes(data), seq))

    def exited(self, params: Mapping[str, Any]) -> bool:
        """A pushed exit."""
        return self._insert(params["seq"], exit_of(params))

    def closed(self, seq: int) -> bool:
        """A pushed close."""
        return self._insert(seq, _CLOSED)

    def read(self, answer: Mapping[str, Any]) -> bool:
        """The answer to `process/read` after the last delivered number: fills the gap of a lost connection."""
        chunks = {chunk["seq"]: chunk for chunk in answer["chunks"]}
        last = answer["nextSeq"] - 1
        has_news = False
        for seq in range(self.next_seq, last + 1):
            if seq in chunks:
                event: Output | Exit | object = Output(chunks[seq]["stream"], decode(chunks[seq]["chunk"]), seq)
            elif seq in self._early:
                continue
            elif answer["closed"] and seq == last:
                event = _CLOSED
            elif answer["exited"] and not self._knows_exit() and seq >= answer.get("firstSeq", 0):
                event = exit_of(answer)
            else:
                has_news |= self._lose(seq, answer)
                continue
            has_news |= self._insert(seq, event)
        # The number of the exit may be among those that were lost.
        if self.lost is not None and answer["exited"] and self.next_seq > last and not self._knows_exit():
            has_news |= self._deliver(exit_of(answer))
        return has_news

    def take(self) -> Output | None:
        """The next unread output."""
        if not self.unread:
            return None
        output = self.unread.popleft()
        self.unread_bytes -= len(output.data)
        return output

    def collected(self) -> tuple[bytes, bytes]:
        """What was collected: stdout or the terminal, and stderr."""
        return self._out.getvalue(), self._err.getvalue()

    def _collect(self, stream: str, data: bytes | memoryview) -> None:
        (self._err if stream == "stderr" else self._out).write(data)

    def _insert(self, seq: int, event: Output | Exit | object) -> bool:
        if seq < self.next_seq or seq in self._early:
            return False
        if seq > self.next_seq:
            self._early[seq] = event
            self._early_bytes += len(event.data) if isinstance(event, Output) else 0
            if self._early_bytes <= UNREAD_LIMIT:
                return False
            self.lost = "events arrived out of order beyond the limit"
            return True
        self.next_seq += 1
        return self._deliver(event) | self._drain()

    def _drain(self) -> bool:
        has_news = False
        while self.next_seq in self._early:
            event = self._early.pop(self.next_seq)
            self._early_bytes -= len(event.data) if isinstance(event, Output) else 0
            self.next_seq += 1
            has_news |= self._deliver(event)
        return has_news

    def _deliver(self, event: Output | Exit | object) -> bool:
        if isinstance(event, Output):
            if self._is_collecting:
                self._collect(event.stream, event.data)
                return True
            if self.unread_bytes + len(event.data) > UNREAD_LIMIT:
                self.lost = f"more than {UNREAD_LIMIT} bytes of output were not read"
                return True
            self.unread.append(event)
            self.unread_bytes += len(event.data)
        elif isinstance(event, Exit):
            self.exit = event
        else:
            self.is_closed = True
        return True

    def _lose(self, seq: int, answer: Mapping[str, Any]) -> bool:
        if self.lost is None:
            evicted = answer.get("evictedBytes")
            how_much = "" if evicted is None else f" ({evicted} bytes in all)"
            self.lost = f"the server no longer has event {seq}{how_much}"
        if seq == self.next_seq:
            self.next_seq += 1
            self._drain()
        return True

    def _knows_exit(self) -> bool:
        return self.exit is not None or any(isinstance(event, Exit) for event in self._early.values())
