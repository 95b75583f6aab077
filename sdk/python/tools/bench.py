#!/usr/bin/env python3
"""Measures the SDK against a server of its own, each row beside a peer in the same run.

    EXEC_SERVER_BIN=target/release/exec-server PYTHONPATH=sdk/python/src python sdk/python/tools/bench.py [ROW...]

Rows: start, stdout, stdin, file, import, many, memory. The peers: a loop on the synchronous client of the `websockets` package
that only counts, and for bytes a plain socket that looks at nothing. Needs trio besides the dependencies of the SDK.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Generator
from pathlib import Path
from typing import Any

import anyio
from websockets.sync.client import ClientConnection, connect

from exec_server import AsyncMachine, Machine, find_binary
from exec_server._aio.link import Link as AsyncLink
from exec_server._sync.link import Link

MIB = 1024 * 1024
BYTES = 256 * MIB
STARTS = 500
ROUNDS = 3
MANY = 1000


def show(row: str, what: str, figure: str) -> None:
    """One line of the report."""
    print(f"{row:8} {what:34} {figure}", flush=True)


def rate(row: str, what: str, size: int, work: Callable[[], None]) -> None:
    """The best of some rounds, with the processor time of this process."""
    best, cpu = float("inf"), 0.0
    for _ in range(ROUNDS):
        begin, used = time.perf_counter(), time.process_time()
        work()
        took = time.perf_counter() - begin
        if took < best:
            best, cpu = took, time.process_time() - used
    show(row, what, f"{size / best / 1e6:7.0f} MB/s   {cpu:.2f} s of processor time here")


def median_ms(row: str, what: str, times: list[float]) -> None:
    """Half of the calls took less."""
    show(row, what, f"{statistics.median(times) * 1000:7.2f} ms median of {len(times)}")


def head(size: int) -> list[str]:
    """A command that writes this many bytes."""
    return ["head", "-c", str(size), "/dev/zero"]


# The peers


def start_params(number: int, argv: list[str]) -> dict[str, Any]:
    """A start as the SDK sends it, as far as it matters."""
    env = {"PATH": os.environ["PATH"]}
    return {"processId": f"p{number}", "argv": argv, "cwd": "file:///", "env": env, "tty": False}


class Peer:
    """A bare loop on the client of the `websockets` package."""

    def __init__(self, url: str) -> None:
        self._opened = connect(url, compression=None, max_size=None)
        self._socket: ClientConnection = self._opened.__enter__()
        self._number = 0
        self._call("initialize", {"clientName": "bench"})
        self._socket.send('{"method":"initialized"}')

    def _call(self, method: str, params: dict[str, Any]) -> None:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while not json.loads(self._socket.recv()).get("id"):
            pass

    def run(self, argv: list[str]) -> int:
        """Runs a command; the characters of its output messages."""
        self._call("process/start", start_params(self._number, argv))
        size = 0
        while True:
            message = self._socket.recv()
            size += len(message)
            if len(message) < 200 and "process/closed" in str(message):
                return size

    def close(self) -> None:
        """Ends the connection."""
        self._opened.__exit__(None, None, None)


class Drain:
    """A plain socket that waits for the end of the command and looks at nothing else; its client asks for no binary messages."""

    def __init__(self, url: str, is_binary: bool) -> None:
        host, port = url.removeprefix("ws://").split(":")
        self._socket = socket.create_connection((host, int(port)))
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET / HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._until(b"\r\n\r\n")
        capabilities = {"binaryMessages": is_binary}
        self._send({"id": 1, "method": "initialize", "params": {"clientName": "b", "clientCapabilities": capabilities}})
        self._until(b'"sessionLingerMs"')
        self._send({"method": "initialized"})
        self._number = 1

    def _send(self, message: dict[str, Any]) -> None:
        # Frames below 126 bytes have another header.
        data = json.dumps(message).encode().ljust(126)
        # Masked with zeros.
        self._socket.sendall(b"\x81\xfe" + len(data).to_bytes(2, "big") + bytes(4) + data)

    def _until(self, mark: bytes) -> None:
        tail = b""
        while True:
            data = self._socket.recv(MIB)
            if mark in tail + data[-300:]:
                return
            check(bool(data))
            tail = data[-300:]

    def run(self, argv: list[str]) -> None:
        """Runs a command to its end."""
        self._number += 1
        params = start_params(self._number, argv)
        self._send({"id": self._number, "method": "process/start", "params": params})
        self._until(b"process/closed")

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()


# The rows


def measure_start(url: str) -> None:
    """Commands one after another."""

    async def asynchronous() -> list[float]:
        times: list[float] = []
        async with AsyncMachine.connect(url) as machine:
            for _ in range(STARTS + 20):
                begin = time.perf_counter()
                await machine.run(["true"])
                times.append(time.perf_counter() - begin)
        return times[20:]

    peer = Peer(url)
    times: list[float] = []
    for _ in range(STARTS + 20):
        begin = time.perf_counter()
        peer.run(["true"])
        times.append(time.perf_counter() - begin)
    peer.close()
    median_ms("start", "peer: websockets, bare loop", times[20:])
    with Machine.connect(url) as machine:
        times.clear()
        for _ in range(STARTS + 20):
            begin = time.perf_counter()
            machine.run(["true"])
            times.append(time.perf_counter() - begin)
    median_ms("start", "run, threads", times[20:])
    for backend in ("asyncio", "trio"):
        median_ms("start", f"run, {backend}", anyio.run(asynchronous, backend=backend))


def measure_stdout(url: str) -> None:
    """256 MiB of output."""
    for is_binary in (False, True):
        drain = Drain(url, is_binary)
        form = "binary messages" if is_binary else "JSON"
        rate("stdout", f"limit: socket, {form}", BYTES, lambda drain=drain: drain.run(head(BYTES)))
        drain.close()
    peer = Peer(url)
    rate("stdout", "peer: websockets, JSON, not decoded", BYTES, lambda: check(peer.run(head(BYTES)) > BYTES))
    peer.close()
    with Machine.connect(url) as machine:

        def collect() -> None:
            check(len(machine.run(head(BYTES), text=False).stdout) == BYTES)

        rate("stdout", "run, threads", BYTES, collect)

        def pass_on() -> None:
            sizes: list[int] = []
            machine.run(head(BYTES), on_stdout=lambda data: sizes.append(len(data)))
            check(sum(sizes) == BYTES)

        rate("stdout", "run, threads, on_stdout", BYTES, pass_on)
    with without_binary(), Machine.connect(url) as machine:
        rate("stdout", "run, threads, JSON", BYTES, collect)
    # A file of certificates makes even a plain target the work of `exec-server dial`.
    with tempfile.NamedTemporaryFile() as file, Machine.connect(url, ca_file=file.name) as machine:
        rate("stdout", "run, threads, dial", BYTES, collect)

    async def asynchronous() -> None:
        async with AsyncMachine.connect(url) as machine:
            check(len((await machine.run(head(BYTES), text=False)).stdout) == BYTES)

    for backend in ("asyncio", "trio"):
        rate("stdout", f"run, {backend}", BYTES, lambda backend=backend: anyio.run(asynchronous, backend=backend))
        with without_binary():
            work = lambda backend=backend: anyio.run(asynchronous, backend=backend)  # noqa: E731
            rate("stdout", f"run, {backend}, JSON", BYTES, work)


@contextlib.contextmanager
def without_binary() -> Generator[None, None, None]:
    """Connections that are made here ask for no binary messages, as with a server that has none."""
    links: list[Any] = [AsyncLink, Link]
    kept = [link.carries_binary for link in links]
    for link in links:
        link.carries_binary = False
    try:
        yield
    finally:
        for link, carries in zip(links, kept, strict=True):
            link.carries_binary = carries


def measure_stdin(url: str) -> None:
    """64 MiB of input."""
    data = bytes(64 * MIB)
    with Machine.connect(url) as machine:
        rate("stdin", "run, threads, input", len(data), lambda: check(machine.run(["wc", "-c"], input=data).ok))


def measure_file(url: str) -> None:
    """256 MiB of a file, cached by the system."""
    with tempfile.TemporaryDirectory() as place, Machine.connect(url) as machine:
        source = f"{place}/source"
        with open(source, "wb") as file:
            file.truncate(BYTES)
        rate("file", "limit: copy here", BYTES, lambda: check(len(Path(source).read_bytes()) == BYTES))
        rate("file", "read_bytes, threads", BYTES, lambda: check(len(machine.fs.read_bytes(source)) == BYTES))
        rate("file", "download, threads", BYTES, lambda: check(machine.fs.download(source, f"{place}/a") == BYTES))
        rate("file", "upload, threads", BYTES, lambda: check(machine.fs.upload(source, f"{place}/b") == BYTES))


def measure_import(url: str) -> None:
    """New interpreters, which is what the difference of the rows is about."""
    del url
    for what in ("pass", "import exec_server", "from exec_server import Machine", "from exec_server import AsyncMachine"):
        times: list[float] = []
        for _ in range(20):
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", what], check=True)
            times.append(time.perf_counter() - begin)
        median_ms("import", what, times)


def measure_many(url: str) -> None:
    """Many commands at once on one connection."""

    async def all_at_once() -> None:
        async with AsyncMachine.connect(url) as machine:

            async def one() -> None:
                check((await machine.run(["true"])).ok)

            await machine.run(["true"])
            begin = time.perf_counter()
            await together(one, MANY)
            took = time.perf_counter() - begin
            show("many", f"{MANY} at once, {backend}", f"{took:7.2f} s")

    for backend in ("asyncio", "trio"):
        anyio.run(all_at_once, backend=backend)


async def together(work: Callable[[], Coroutine[Any, Any, None]], count: int) -> None:
    """Runs it this many times at once."""
    async with anyio.create_task_group() as group:
        for _ in range(count):
            group.start_soon(work)


def measure_memory(url: str) -> None:
    """The resident size after so many commands."""
    with Machine.connect(url) as machine:
        for number in range(1, 10_001):
            machine.run(["true"])
            if number in (1000, 5000, 10_000):
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                show("memory", f"after {number} commands", f"{pages * resource.getpagesize() / MIB:7.1f} MiB")


def check(is_right: bool) -> None:
    """A figure counts only if the work was done."""
    if not is_right:
        raise SystemExit("the result is wrong")


ROWS: dict[str, Callable[[str], None]] = {
    "start": measure_start,
    "stdout": measure_stdout,
    "stdin": measure_stdin,
    "file": measure_file,
    "import": measure_import,
    "many": measure_many,
    "memory": measure_memory,
}


def main() -> None:
    """Runs the rows that are named, or all."""
    rows = sys.argv[1:] or list(ROWS)
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        raise SystemExit(f"unknown row {unknown[0]!r}; known are {', '.join(ROWS)}")
    load = os.getloadavg()[0]
    print(f"Python {sys.version.split()[0]}, {find_binary()}, {os.cpu_count()} cores, load {load:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as state:
        argv = [str(find_binary()), "--listen", "ws://127.0.0.1:0", "--state-dir", state]
        server = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            for row in rows:
                ROWS[row](url)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
