"""What the asynchronous code needs of anyio, on asyncio and trio; `_sync/runtime.py` has the same names with threads."""

from __future__ import annotations

import codecs
import contextlib
import inspect
import io
import os
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar, cast

import anyio
import anyio.lowlevel
from anyio.abc import SocketAttribute, SocketStream

from .._children import end_child, farewell_of, start_child
from .._errors import LinkError
from .._target import Child, Socket

T = TypeVar("T")
_CHUNK = 256 * 1024
_READS_IN_A_ROW = 4
"""Other tasks run at least this often while bytes arrive without a pause."""

now = time.monotonic
closing = contextlib.aclosing


def Lock() -> anyio.Lock:  # noqa: N802
    """A lock that lets no other task run when it is free."""
    return anyio.Lock(fast_acquire=True)


class Opening(Generic[T]):
    """What is opened by `await`, or by `async with`, which also closes it."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._opened: Any = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._make().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._make()
        return await self._opened.__aenter__()

    async def __aexit__(self, *exc: Any) -> None:
        await self._opened.__aexit__(*exc)


def opening(make: Callable[[], Awaitable[T]]) -> Opening[T]:
    """Defers an opening until it is awaited or entered."""
    return Opening(make)


class Notifier:
    """Wakes all that wait for a change of shared state."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def notify(self) -> None:
        """Something changed."""
        if self._event is not None:
            event, self._event = self._event, None
            event.set()

    async def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Waits until the predicate holds; false if the time passed first."""
        if predicate():
            return True
        with anyio.move_on_after(timeout):
            while not predicate():
                if self._event is None:
                    self._event = anyio.Event()
                await self._event.wait()
            return True
        return predicate()


class Gate:
    """Is opened once, by the reader of the link."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def open(self) -> None:
        """Lets the waiting caller go on."""
        self._event.set()

    async def wait(self) -> None:
        """Waits until it is open."""
        await self._event.wait()


class Task:
    """A background task that can be cancelled."""

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()
        self._done = anyio.Event()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            with self._scope:
                await work()
        finally:
            self._done.set()

    def cancel(self) -> None:
        """Ends the task at its next wait."""
        self._scope.cancel()

    async def join(self, timeout: float) -> None:
        """Waits for the end of the task."""
        with anyio.move_on_after(timeout, shield=True):
            await self._done.wait()


def spawn(work: Callable[[], Awaitable[None]], name: str) -> Task:
    """Starts a background task that belongs to no task group, so that machines work without `async with`."""
    task = Task()
    if _library() == "trio":
        import trio

        trio.lowlevel.spawn_system_task(task.run, work, name=name)
    else:
        import asyncio

        running = asyncio.get_running_loop().create_task(task.run(work), name=name)
        _KEPT.add(running)
        running.add_done_callback(_KEPT.discard)
    return task


# A loop holds its tasks weakly.
_KEPT: set[Any] = set()


def _library() -> str:
    import sniffio

    return sniffio.current_async_library()


@contextlib.contextmanager
def shielded(timeout: float) -> Generator[None, None, None]:
    """Lets a clean-up finish although its caller was cancelled."""
    with anyio.move_on_after(timeout, shield=True):
        yield


async def sleep(seconds: float) -> None:
    """Pauses."""
    await anyio.sleep(seconds)


async def in_thread(work: Callable[[], T]) -> T:
    """Runs work that blocks, such as local files."""
    return await anyio.to_thread.run_sync(work)


async def call_back(function: Callable[[Any], object], argument: object) -> None:
    """Calls a function of the user, which may be asynchronous."""
    returned = function(argument)
    if inspect.isawaitable(returned):
        await returned


class _Readiness:
    """Reads what has arrived without asking the event loop, which is asked only when there is nothing."""

    def __init__(self, fd: int, read: Callable[[memoryview], int]) -> None:
        self._fd = fd
        self._read = read
        self._buffer = memoryview(bytearray(_CHUNK))
        self._in_a_row = 0

    async def receive(self, timeout: float) -> memoryview | None:
        """Bytes that are valid until the next call, none of them at the end; `None` if the time passed."""
        if self._in_a_row >= _READS_IN_A_ROW:
            self._in_a_row = 0
            await anyio.lowlevel.checkpoint()
        while True:
            try:
                size = self._read(self._buffer)
            except BlockingIOError:
                self._in_a_row = 0
                with anyio.move_on_after(timeout) as scope:
                    await anyio.wait_readable(self._fd)
                if scope.cancelled_caught:
                    return None
                continue
            self._in_a_row += 1
            return self._buffer[:size]


async def _send_all(fd: int, write: Callable[[memoryview], int], data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[write(rest) :]
        except BlockingIOError:
            # A message that is cut by a cancellation would break the connection.
            with anyio.CancelScope(shield=True):
                await anyio.wait_writable(fd)


class SocketPipe:
    """Bytes over TCP or a unix socket."""

    def __init__(self, stream: SocketStream) -> None:
        self._stream = stream
        # The event loop owns the socket of the stream; a second descriptor of it is read and written here.
        self._socket = socket.socket(fileno=os.dup(stream.extra(SocketAttribute.raw_socket).fileno()))
        self._socket.setblocking(False)
        self._incoming = _Readiness(self._socket.fileno(), self._socket.recv_into)

    async def send(self, data: bytes) -> None:
        try:
            await _send_all(self._socket.fileno(), self._socket.send, data)
        except (OSError, anyio.ClosedResourceError) as error:
            raise LinkError(f"the connection is lost: {_cause(error)}") from error

    async def receive(self, timeout: float) -> memoryview | None:
        """Bytes, none of them at the end, or `None` if the time passed."""
        try:
            return await self._incoming.receive(timeout)
        except (OSError, anyio.ClosedResourceError) as error:
            raise LinkError(f"the connection is lost: {_cause(error)}") from error

    def abort(self) -> None:
        """Ends both directions; the reader sees the end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()
        with anyio.CancelScope(shield=True):
            await anyio.aclose_forcefully(self._stream)


class ChildPipe:
    """Bytes over the stdin and stdout of a child."""

    def __init__(self, process: subprocess.Popen[bytes], child: Child) -> None:
        self._process = process
        self._child = child
        self._stdin, self._stdout = cast("io.FileIO", process.stdin), cast("io.FileIO", process.stdout)
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe.fileno(), False)
        self._incoming = _Readiness(self._stdout.fileno(), lambda buffer: _or_blocks(self._stdout.readinto(buffer)))

    async def send(self, data: bytes) -> None:
        try:
            await _send_all(self._stdin.fileno(), lambda rest: _or_blocks(self._stdin.write(rest)), data)
        except (OSError, ValueError, anyio.ClosedResourceError) as error:
            raise LinkError(f"{self._child.argv[0]} has ended") from error

    async def receive(self, timeout: float) -> memoryview | None:
        """Bytes, none of them at the end, or `None` if the time passed."""
        try:
            return await self._incoming.receive(timeout)
        except (OSError, ValueError, anyio.ClosedResourceError) as error:
            raise LinkError(f"the connection is lost: {_cause(error)}") from error

    def abort(self) -> None:
        """Ends the child; the reader sees the end."""
        self._process.kill()

    async def close(self) -> None:
        if self._stdout.closed:
            return
        for pipe in (self._stdin, self._stdout):
            anyio.notify_closing(pipe)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(end_child, self._process)

    async def farewell(self) -> tuple[int, str]:
        """The exit code and the last words of a child that has closed its stdout."""
        return await anyio.to_thread.run_sync(farewell_of, self._process)


def _or_blocks(size: int | None) -> int:
    """What was read or written; files say by `None` that nothing could be."""
    if size is None:
        raise BlockingIOError
    return size


async def open_socket(target: Socket, timeout: float) -> SocketPipe:
    """Connects to a socket."""
    try:
        with anyio.fail_after(timeout):
            if target.path is not None:
                return SocketPipe(await anyio.connect_unix(target.path))
            stream = await anyio.connect_tcp(target.host, target.port)
            stream.extra(SocketAttribute.raw_socket).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return SocketPipe(stream)
    except TimeoutError as error:
        raise LinkError(f"could not connect to {target.name} within {timeout} s") from error
    except OSError as error:
        raise LinkError(f"could not connect to {target.name}: {_cause(error)}") from error


async def open_child(target: Child) -> ChildPipe:
    """Starts a child."""
    return ChildPipe(start_child(target), target)


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    # Attempts on several addresses fail as a group.
    error = getattr(error, "exceptions", (error,))[0]
    return str(error) or type(error).__name__


def close_at_exit(machine: Any) -> None:
    """No event loop is left; a local server ends with its pipe, processes elsewhere with their session."""
    del machine


class FileBase:
    """What the two kinds of files share."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> Any:
        """Marks the file as closed; a file overrides it with its own end."""
        self.closed = True

    def readable(self) -> bool:
        """Whether it can be read."""
        return False

    def writable(self) -> bool:
        """Whether it can be written."""
        return False

    def seekable(self) -> bool:
        """Whether its position can be set."""
        return False

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        if exc[0] is not None and self.writable():
            cast("Any", self).discard()
        await self.close()


class TextFile:
    """Text on top of a file of bytes."""

    def __init__(self, raw: Any, encoding: str, errors: str, newline: str | None) -> None:
        self._raw = raw
        self._encoding, self._errors, self._newline = encoding, errors, newline
        self._decoder = io.IncrementalNewlineDecoder(
            codecs.getincrementaldecoder(encoding)(errors), translate=newline is None
        )
        self._rest = ""
        self._is_at_end = False

    @property
    def name(self) -> str:
        """The remote path."""
        return self._raw.name

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._raw.closed

    async def read(self, size: int = -1) -> str:
        """Up to `size` characters, or the rest."""
        while not self._is_at_end and (size < 0 or len(self._rest) < size):
            await self._fill()
        end = len(self._rest) if size < 0 else size
        text, self._rest = self._rest[:end], self._rest[end:]
        return text

    async def readline(self) -> str:
        """The next line with its end; empty at the end of the file."""
        while "\n" not in self._rest and not self._is_at_end:
            await self._fill()
        at = self._rest.find("\n")
        return await self.read(len(self._rest) if at < 0 else at + 1)

    def __aiter__(self) -> TextFile:
        return self

    async def __anext__(self) -> str:
        line = await self.readline()
        if not line:
            raise StopAsyncIteration
        return line

    async def write(self, text: str) -> int:
        """Keeps text for `close`."""
        ends = text if self._newline in (None, "", "\n") else text.replace("\n", self._newline)
        await self._raw.write(ends.encode(self._encoding, self._errors))
        return len(text)

    async def close(self) -> None:
        """Closes the file of bytes."""
        await self._raw.close()

    async def __aenter__(self) -> TextFile:
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._raw.__aexit__(*exc)

    async def _fill(self) -> None:
        data = await self._raw.read(_CHUNK)
        self._is_at_end = not data
        self._rest += self._decoder.decode(data, final=not data)


def wrap_file(raw: Any, kind: str, encoding: str | None, errors: str, newline: str | None) -> Any:
    """Text on top of bytes."""
    del kind
    return raw if encoding is None else TextFile(raw, encoding, errors, newline)
