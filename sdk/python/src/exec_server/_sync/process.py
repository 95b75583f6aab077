# Generated from _aio/process.py by tools/unasync.py; change that file.
"""A process on the machine: its output in order, its input, and its end."""

from __future__ import annotations

import codecs
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from .._errors import Ambiguous, ExecServerError, LinkError, OutputLost, StdinClosed, remote_error
from .._events import EventOrder
from .._protocol import chunk_of, signal_name
from .._types import Exit, Output
from . import runtime
from .link import Call
from .session import UNREAD_PAUSE, Session

_WRITE_BYTES = 64 * 1024
"""Small enough to arrive on a link that breaks often; each piece is repeated as a whole."""
_ANSWER_TIMEOUT = 5.0
_SMALLEST_PAGE = 16 * 1024
_LARGEST_PAGE = 1024 * 1024


class Process:
    """A started command; `with` ends it on the way out."""

    def __init__(
        self,
        session: Session,
        process_id: str,
        argv: Sequence[str],
        *,
        after: int = 0,
        is_collecting: bool = False,
    ) -> None:
        self.id = process_id
        self.argv = tuple(argv)
        self.session_id = session.session_id
        self.is_started = False
        self._session = session
        self._order = EventOrder(after, is_collecting=is_collecting)
        self._is_collecting = is_collecting
        self._error: LinkError | None = None
        self._changed = runtime.Notifier()
        # The reader and the consumer may be different threads.
        self._guard = threading.Lock()
        self._writing = runtime.Lock()
        self._writes = 0
        self._page = _SMALLEST_PAGE

    # State

    @property
    def exit(self) -> Exit | None:
        """How it ended; none while it runs."""
        return self._order.exit

    @property
    def returncode(self) -> int | None:
        """The exit code; none while it runs."""
        return None if self._order.exit is None else self._order.exit.returncode

    @property
    def is_closed(self) -> bool:
        """Whether it has exited and all of its output has arrived."""
        return self._order.is_closed

    @property
    def seq(self) -> int:
        """The number of the last event that arrived; `attach(id, after=seq)` continues behind it."""
        return self._order.next_seq - 1

    @property
    def unread_bytes(self) -> int:
        """Output that has arrived and was not read."""
        return self._order.unread_bytes

    # Output

    @property
    def output(self) -> Outputs:
        """The output of both streams in its order, until all of it was read."""
        return Outputs(self)

    def lines(self, encoding: str = "utf-8", errors: str = "replace") -> Lines:
        """The lines of both streams as they are completed, without their line ends."""
        return Lines(self, encoding, errors)

    def next_output(self) -> Output | None:
        """The next piece of output; none at the end."""
        while True:
            output = self._take()
            if output is not None:
                return output
            if self._order.lost is not None:
                raise OutputLost(f"output of process {self.id} is lost: {self._order.lost}")
            if self._order.is_closed:
                return None
            if self._error is not None:
                raise self._error
            self._changed.wait_for(self._has_news)

    def read(self) -> bytes:
        """The rest of the output of both streams."""
        parts: list[bytes] = []
        for output in self.output:
            parts.append(output.data)
        return b"".join(parts)

    def _take(self) -> Output | None:
        with self._guard:
            before = self._order.unread_bytes
            output = self._order.take()
            after = self._order.unread_bytes
        if before > UNREAD_PAUSE >= after:
            self._session.relieve()
        return output

    def _has_news(self) -> bool:
        order = self._order
        return bool(order.unread) or order.is_closed or order.lost is not None or self._error is not None

    def _is_over(self) -> bool:
        return self._order.is_closed or self._error is not None or self._order.lost is not None

    def wait_closed(self, timeout: float | None = None) -> bool:
        """Waits until it has exited and all output has arrived; false if the time passed first."""
        self._session.count_waiting(1)
        try:
            if not self._changed.wait_for(self._is_over, timeout):
                return False
        finally:
            self._session.count_waiting(-1)
        if not self._order.is_closed and self._error is not None:
            raise self._error
        return True

    def collected(self) -> tuple[bytes, bytes]:
        """Everything that has arrived, of a process that collects: stdout or the terminal, and stderr."""
        if self._order.lost is not None:
            raise OutputLost(f"output of process {self.id} is lost: {self._order.lost}")
        with self._guard:
            return self._order.collected()

    # Control

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the exit and returns its code; `TimeoutError` leaves the process running."""
        self._session.count_waiting(1)
        try:
            is_over = self._changed.wait_for(
                lambda: self._order.exit is not None or self._error is not None, timeout
            )
        finally:
            self._session.count_waiting(-1)
        if self._order.exit is not None:
            return self._order.exit.returncode
        if not is_over:
            raise TimeoutError(f"process {self.id} is still running after {timeout} s")
        assert self._error is not None
        raise self._error

    def write(self, data: bytes | str) -> None:
        """Writes to its stdin; a lost connection neither loses nor doubles anything."""
        raw = data.encode() if isinstance(data, str) else data
        with self._writing:
            for begin in range(0, len(raw), _WRITE_BYTES):
                self._write(raw[begin : begin + _WRITE_BYTES])

    def close_stdin(self) -> None:
        """Ends its input; a terminal gets Ctrl-D."""
        with self._writing:
            if self._session.capabilities.get("processCloseStdin"):
                self._call("process/closeStdin", {"processId": self.id}, is_repeatable=True)
                return
            self._write(b"\x04")

    def resize(self, rows: int, cols: int) -> None:
        """Sets the size of its terminal."""
        self._session.require("processResize", "resizing a terminal")
        params = {"processId": self.id, "rows": rows, "cols": cols}
        self._call("process/resize", params, is_repeatable=True)

    def signal(self, signal: str | int) -> None:
        """Sends a signal to the whole tree: `"int"`, `"SIGTERM"`, `signal.SIGHUP`; `Ambiguous` if the link broke."""
        self._call("process/signal", {"processId": self.id, "signal": signal_name(signal)})

    def stop(self, grace: float = 5.0) -> int:
        """Ends the whole tree: SIGTERM, SIGKILL after `grace` seconds; returns the exit code."""
        params: dict[str, Any] = {"processId": self.id}
        if grace > 0 and self._session.capabilities.get("processTerminateGrace"):
            params["graceMs"] = int(grace * 1000)
        self._call("process/terminate", params, is_repeatable=True)
        return self.wait()

    def detach(self, linger: float | None = None) -> str:
        """Leaves it running when the machine is closed and returns its id; it ends with its session.

        `linger` is how many seconds the session waits for a client after the connection ended.
        """
        self._session.owned.discard(self.id)
        if linger is not None:
            self._session.require("sessionLinger", "a linger time")
            params = {"lingerMs": int(linger * 1000)}
            self._session.call("session/setLinger", params, is_repeatable=True)
        return self.id

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.id in self._session.owned and self.returncode is None and self._error is None:
            with runtime.shielded(_ANSWER_TIMEOUT):
                self.end()

    def __repr__(self) -> str:
        state = "running" if self.exit is None else f"exited with {self.exit.returncode}"
        return f"<{type(self).__name__} {self.id} {' '.join(self.argv)!r} {state}>"

    def end(self) -> None:
        """Kills the tree, if the server can be reached; for clean-up."""
        try:
            self._call("process/terminate", {"processId": self.id}, is_repeatable=True)
            self._changed.wait_for(self._is_over, _ANSWER_TIMEOUT)
        except ExecServerError:
            # The server ends what is left when the session expires.
            return

    def _call(
        self, method: str, params: dict[str, Any], chunk: bytes | None = None, *, is_repeatable: bool = False
    ) -> Any:
        if self._error is not None:
            raise self._error
        return self._session.call(
            method, params, chunk=chunk, is_repeatable=is_repeatable, session_id=self.session_id
        )

    def _write(self, chunk: bytes) -> None:
        self._writes += 1
        params = {"processId": self.id, "writeId": str(self._writes)}
        answer = self._call("process/write", params, chunk, is_repeatable=True)
        if answer["status"] != "accepted":
            raise StdinClosed(f"process {self.id} takes no input ({answer['status']})")

    # Events, from the driver of the session

    @property
    def needs_recovery(self) -> bool:
        """Whether events may have been missed with the last connection."""
        return self.is_started and not self._is_over()

    def missing(self) -> dict[str, Any]:
        """The read that fills the gap after a lost connection."""
        page, self._page = self._page, min(self._page * 2, _LARGEST_PAGE)
        return {"processId": self.id, "afterSeq": self._order.next_seq - 1, "maxBytes": page, "waitMs": 0}

    def reset_page(self) -> None:
        """Begins with small pages again: on a link that breaks often, only those arrive."""
        self._page = _SMALLEST_PAGE

    def handle_event(self, method: str, params: dict[str, Any]) -> int:
        """A notification; returns how much output is unread."""
        order = self._order
        with self._guard:
            if method == "process/output":
                has_news = order.output(params["seq"], params["stream"], chunk_of(params))
            elif method == "process/exited":
                has_news = order.exited(params)
            elif method == "process/closed":
                has_news = order.closed(params["seq"])
            else:
                return 0
        if has_news and not (self._is_collecting and not self._is_over()):
            self._changed.notify()
        return self.unread_bytes

    def handle_read(self, call: Call) -> None:
        """The answer to the read of a recovery."""
        if isinstance(call.error, Ambiguous):
            return
        if isinstance(call.error, LinkError):
            self.handle_failure(call.error)
        elif isinstance(call.error, dict):
            self.handle_failure(LinkError(f"failed to recover process {self.id}: {remote_error(call.error)}"))
        else:
            self.feed(call.result)

    def feed(self, answer: dict[str, Any]) -> None:
        """A page of events after the last one that has arrived; an empty one ends the recovery."""
        with self._guard:
            self._order.read(answer)
        self._changed.notify()
        if answer["chunks"]:
            self._session.read_on(self)

    def handle_failure(self, error: LinkError) -> None:
        """The process cannot be followed any further."""
        if not self._is_over():
            self._error = error
            self._changed.notify()


class Outputs:
    """Iterates over the output of a process."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __iter__(self) -> Outputs:
        return self

    def __next__(self) -> Output:
        output = self._process.next_output()
        if output is None:
            raise StopIteration
        return output


class Lines:
    """Iterates over the lines of a process, each stream for itself."""

    def __init__(self, process: Process, encoding: str, errors: str) -> None:
        self._process = process
        self._make = lambda: codecs.getincrementaldecoder(encoding)(errors)
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._rests: dict[str, str] = {}
        self._ready: deque[str] = deque()
        self._is_at_end = False

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        while not self._ready:
            if self._is_at_end:
                raise StopIteration
            self._add(self._process.next_output())
        return self._ready.popleft()

    def _add(self, output: Output | None) -> None:
        if output is None:
            self._is_at_end = True
            rests = [rest + self._decoders[stream].decode(b"", final=True) for stream, rest in self._rests.items()]
            self._ready.extend(rest for rest in rests if rest)
            return
        decoder = self._decoders.setdefault(output.stream, self._make())
        text = self._rests.get(output.stream, "") + decoder.decode(output.data)
        *lines, self._rests[output.stream] = text.split("\n")
        self._ready.extend(line.removesuffix("\r") for line in lines)
