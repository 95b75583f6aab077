"""What the synchronous code needs of threads; the names are those of `_aio/runtime.py`."""

from __future__ import annotations

import contextlib
import io
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar, cast

from .._children import end_child, farewell_of, start_child
from .._errors import LinkError
from .._target import Child, Socket

T = TypeVar("T")
_CHUNK = 256 * 1024

now = time.monotonic
closing = contextlib.closing
sleep = time.sleep
Lock = threading.Lock


def opening(make: Callable[[], T]) -> T:
    """Opens at once."""
    return make()


class Notifier:
    """Wakes all that wait for a change of shared state."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def notify(self) -> None:
        """Something changed."""
        with self._condition:
            self._condition.notify_all()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Waits until the predicate holds; false if the time passed first."""
        with self._condition:
            return self._condition.wait_for(predicate, timeout)


class Gate:
    """Is opened once, by the reader of the link."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def open(self) -> None:
        """Lets the waiting caller go on."""
        self._lock.release()

    def wait(self) -> None:
        """Waits until it is open."""
        self._lock.acquire()


class Task:
    """A background thread."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def cancel(self) -> None:
        """Threads end when their connection does."""

    def join(self, timeout: float) -> None:
        """Waits for the end of the thread."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)


def spawn(work: Callable[[], None], name: str) -> Task:
    """Starts a background thread that does not keep the interpreter alive."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    return Task(thread)


@contextlib.contextmanager
def shielded(timeout: float) -> Generator[None, None, None]:
    """Threads are not cancelled."""
    del timeout
    yield


def in_thread(work: Callable[[], T]) -> T:
    """Runs work that blocks."""
    return work()


def call_back(function: Callable[[Any], object], argument: object) -> None:
    """Calls a function of the user."""
    function(argument)


def _is_ready(poll: select.poll, timeout: float) -> bool:
    return bool(poll.poll(timeout * 1000))


class SocketPipe:
    """Bytes over TCP or a unix socket."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._poll = select.poll()
        self._poll.register(stream, select.POLLIN)
        self._buffer = memoryview(bytearray(_CHUNK))

    def send(self, data: bytes) -> None:
        try:
            self._stream.sendall(data)
        except OSError as error:
            raise LinkError(f"the connection is lost: {error}") from error

    def receive(self, timeout: float) -> memoryview | None:
        """Bytes that are valid until the next call, none of them at the end, or `None` if the time passed."""
        try:
            while True:
                try:
                    return self._buffer[: self._stream.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)]
                except BlockingIOError:
                    if not _is_ready(self._poll, timeout):
                        return None
        except OSError as error:
            raise LinkError(f"the connection is lost: {error}") from error

    def abort(self) -> None:
        """Ends both directions; the reader sees the end."""
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._stream.close()


class ChildPipe:
    """Bytes over the stdin and stdout of a child."""

    def __init__(self, process: subprocess.Popen[bytes], child: Child) -> None:
        self._process = process
        self._child = child
        assert process.stdin is not None and process.stdout is not None
        self._stdin = process.stdin.fileno()
        self._stdout = process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN)

    def send(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._stdin, rest) :]
        except OSError as error:
            raise LinkError(f"{self._child.argv[0]} has ended") from error

    def receive(self, timeout: float) -> bytes | None:
        """Bytes, `b""` at the end, or `None` if the time passed."""
        try:
            return os.read(self._stdout, _CHUNK) if _is_ready(self._poll, timeout) else None
        except OSError as error:
            raise LinkError(f"the connection is lost: {error}") from error

    def abort(self) -> None:
        """Ends the child; the reader sees the end."""
        self._process.kill()

    def close(self) -> None:
        end_child(self._process)

    def farewell(self) -> tuple[int, str]:
        """The exit code and the last words of a child that has closed its stdout."""
        return farewell_of(self._process)


def open_socket(target: Socket, timeout: float) -> SocketPipe:
    """Connects to a socket."""
    try:
        if target.path is not None:
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            stream.settimeout(timeout)
            try:
                stream.connect(target.path)
            except BaseException:
                stream.close()
                raise
        else:
            stream = socket.create_connection((target.host, target.port), timeout)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.settimeout(None)
        return SocketPipe(stream)
    except TimeoutError as error:
        raise LinkError(f"could not connect to {target.name} within {timeout} s") from error
    except OSError as error:
        raise LinkError(f"could not connect to {target.name}: {error}") from error


def open_child(target: Child) -> ChildPipe:
    """Starts a child."""
    return ChildPipe(start_child(target), target)


def close_at_exit(machine: Any) -> None:
    """Ends what the program has left open."""
    with contextlib.suppress(Exception):
        machine.close()


FileBase = io.RawIOBase
_BUFFER = 1024 * 1024


class _Reader(io.BufferedReader):
    """Bytes of a remote file."""


class _Writer(io.BufferedWriter):
    """New bytes of a remote file; an exception inside `with` discards them."""

    def __exit__(self, *exc: Any) -> None:
        if exc[0] is not None:
            cast("Any", self.raw).discard()
        super().__exit__(*exc)


class _TextWriter(io.TextIOWrapper):
    """New text of a remote file; an exception inside `with` discards it."""

    def __exit__(self, *exc: Any) -> None:
        if exc[0] is not None:
            cast("Any", self.buffer).raw.discard()
        super().__exit__(*exc)


def wrap_file(raw: Any, kind: str, encoding: str | None, errors: str, newline: str | None) -> Any:
    """The file object of Python on top of raw bytes."""
    if kind == "r":
        reader = _Reader(raw, _BUFFER)
        return reader if encoding is None else io.TextIOWrapper(reader, encoding, errors, newline)
    writer = _Writer(raw, _BUFFER)
    return writer if encoding is None else _TextWriter(writer, encoding, errors, newline)
