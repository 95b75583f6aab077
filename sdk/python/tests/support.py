"""Fixtures without a test framework: real servers, a rendezvous, and a proxy that cuts connections."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from exec_server import find_binary

DEADLINE = 60.0


def binary() -> str:
    """The program under test."""
    return str(find_binary())


def clean_environment(**more: str) -> dict[str, str]:
    """Variables without the settings of the user."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EXEC_SERVER_", "CODEX_"))}
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        kept.pop(name, None)
    return {**kept, **more}


class Program:
    """A running program whose first lines on stdout are known."""

    def __init__(
        self,
        arguments: Sequence[str],
        env: dict[str, str] | None = None,
        program: Sequence[str] = (),
        cwd: str | None = None,
    ) -> None:
        self.child = subprocess.Popen(
            [*(program or [binary()]), *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env or clean_environment(),
        )
        assert self.child.stdout is not None
        self.line = self.child.stdout.readline().strip()

    def end(self) -> None:
        self.child.terminate()
        self.child.wait(DEADLINE)
        assert self.child.stdout is not None
        self.child.stdout.close()


@contextlib.contextmanager
def server(*options: str) -> Iterator[str]:
    """A server; its URL."""
    with tempfile.TemporaryDirectory() as state:
        program = Program(["--listen", "ws://127.0.0.1:0", "--state-dir", state, *options])
        try:
            yield program.line
        finally:
            program.end()


@contextlib.contextmanager
def as_user() -> Iterator[str]:
    """A server of an ordinary user: of this one, or of nobody if this is root."""
    if os.getuid() != 0:
        with server() as url:
            yield url
        return
    place = tempfile.mkdtemp()
    try:
        # The build directory may be closed to other users.
        copy = shutil.copy(binary(), place)
        # Some suites call `python`, which a system may not have under this name.
        os.mkdir(place + "/bin")
        os.symlink("/usr/bin/python3", place + "/bin/python")
        os.chown(place, 65534, 65534)
        env = clean_environment(HOME=place, USER="nobody", PATH=f"{place}/bin:/usr/bin:/bin")
        options = ["--listen", "ws://127.0.0.1:0", "--state-dir", place + "/state"]
        wrapper = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", copy]
        program = Program(options, env, wrapper, cwd="/tmp")
        try:
            yield program.line
        finally:
            program.end()
    finally:
        shutil.rmtree(place, ignore_errors=True)


# Users are added to a copy of /etc, and their homes and mail to empty directories, which only this server sees.
_PRIVATE_USERS = """
set -e
mount -t tmpfs -o mode=755 exec-server-test "$0"
cp -a /etc "$0/etc"
for name in home var/mail var/log; do
    mkdir -p "$0/$name"
    if [ -d "/$name" ]; then mount --bind "$0/$name" "/$name"; fi
done
mount --bind "$0/etc" /etc
exec "$@"
"""


def lacks_private_users() -> str | None:
    """Why `as_root` is not possible here; none if it is."""
    if os.getuid() != 0:
        return "a server that becomes other users needs root"
    tried = subprocess.run(
        ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /mnt"], capture_output=True, text=True
    )
    return None if tried.returncode == 0 else f"mount namespaces are not possible here: {tried.stderr.strip()}"


@contextlib.contextmanager
def as_root() -> Iterator[str]:
    """A server of root in a mount namespace with users of its own, so that no test changes those of this machine."""
    place = tempfile.mkdtemp()
    try:
        with tempfile.TemporaryDirectory() as state:
            wrapper = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _PRIVATE_USERS, place, binary()]
            options = ["--listen", "ws://127.0.0.1:0", "--state-dir", state]
            program = Program(options, clean_environment(HOME="/root", USER="root"), wrapper, cwd="/")
            try:
                yield program.line
            finally:
                program.end()
    finally:
        os.rmdir(place)


def make_authority(directory: Path, name: str) -> Path:
    """The certificate of an authority; beside it are `NAME.crt` for a server on 127.0.0.1, and `NAME.crt.key`."""
    authority, server = directory / f"{name}.pem", directory / f"{name}.crt"
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    signer = ["-CA", str(authority), "-CAkey", f"{authority}.key"]
    about = ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", "subjectAltName=IP:127.0.0.1"]
    for place, options in [(authority, []), (server, [*signer, *about])]:
        command = [*new, "-subj", f"/CN={place.name}", *options, "-keyout", f"{place}.key", "-out", str(place)]
        subprocess.run(command, check=True, capture_output=True)
    return authority


class CuttingProxy:
    """Passes TCP on, and cuts connections after a random number of bytes."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, seed: int = 1, only: bytes = b"") -> None:
        self.destination = (host, port)
        self.cuts = 0
        self.is_cutting = False
        self.most_cuts: int | None = None
        self.smallest, self.largest = 200, 300_000
        self._only = only
        self._random = random.Random(seed)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    def cut_all(self) -> None:
        """Cuts what is connected now."""
        for pair in list(self._pairs):
            self._cut(pair)

    def close(self) -> None:
        self.is_cutting = False
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.destination)
            except OSError:
                near.close()
                continue
            pair = (near, far)
            self._pairs.add(pair)
            # One budget for both directions, so that cuts hit requests, replies and output alike.
            budget = [self._random.randint(self.smallest, self.largest)]
            may_cut = [not self._only]
            threads = [
                threading.Thread(target=self._carry, args=(*ends, pair, budget, may_cut), daemon=True)
                for ends in (pair, pair[::-1])
            ]
            threading.Thread(target=self._watch, args=(pair, threads), daemon=True).start()

    def _watch(self, pair: tuple[socket.socket, socket.socket], threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one in pair:
            one.close()

    def _carry(
        self,
        source: socket.socket,
        sink: socket.socket,
        pair: tuple[socket.socket, socket.socket],
        budget: list[int],
        may_cut: list[bool],
    ) -> None:
        try:
            while data := source.recv(16384):
                if self._only and self._only in data[:2048]:
                    may_cut[0] = True
                if self.is_cutting and may_cut[0] and len(data) >= budget[0]:
                    sink.sendall(data[: budget[0]])
                    self.cuts += 1
                    if self.cuts == self.most_cuts:
                        self.is_cutting = False
                    break
                budget[0] -= len(data) if self.is_cutting and may_cut[0] else 0
                sink.sendall(data)
        except OSError:
            pass
        self._cut(pair)

    def _cut(self, pair: tuple[socket.socket, socket.socket]) -> None:
        self._pairs.discard(pair)
        for one in pair:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Meeting:
    """A rendezvous behind a cutting proxy, and an executor that waits there as `box`."""

    def __init__(self, directory: Path, seed: int = 1) -> None:
        self._programs: list[Program] = []
        self.proxy = CuttingProxy(seed=seed, only=b"role=harness")
        data = str(directory / "data")
        public = f"http://127.0.0.1:{self.proxy.port}"
        rendezvous = Program(
            ["rendezvous", "--listen", "http://127.0.0.1:0", "--data", data, "--public-url", public],
        )
        self._programs.append(rendezvous)
        self.proxy.destination = ("127.0.0.1", _port_of(data, rendezvous))
        tokens = {role: self._token(data, role) for role in ("executor", "harness")}
        executor = Program(
            ["--remote", public, "--environment-id", "box", "--state-dir", str(directory / "state")],
            clean_environment(EXEC_SERVER_REMOTE_TOKEN=tokens["executor"]),
        )
        self._programs.append(executor)
        self.env = {
            "EXEC_SERVER_REMOTE_URL": public,
            "EXEC_SERVER_REMOTE_TOKEN": tokens["harness"],
            "EXEC_SERVER_STATE_DIR": str(directory / "client"),
        }

    def _token(self, data: str, role: str) -> str:
        command = [binary(), "token", "create", "--environment", "box", "--role", role, "--data", data]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment())
        found = re.search(r"xs_\w+", ran.stdout + ran.stderr)
        assert found is not None, ran
        return found.group()

    def end(self) -> None:
        self.proxy.is_cutting = False
        for program in reversed(self._programs):
            program.end()
        self.proxy.close()


def _port_of(data: str, program: Program) -> int:
    """The port that the rendezvous listens on, behind its public name."""
    del data
    deadline = time.monotonic() + DEADLINE
    inodes = f"/proc/{program.child.pid}/net/tcp"
    own = {os.readlink(f"/proc/{program.child.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{program.child.pid}/fd")}
    while time.monotonic() < deadline:
        for line in Path(inodes).read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in own:
                return int(words[1].split(":")[1], 16)
    raise AssertionError("the rendezvous does not listen")


def as_installed(directory: Path) -> dict[str, str]:
    """Variables for an interpreter that sees the source as an installed package, with the entry points of pyproject.toml."""
    root = Path(__file__).parent.parent
    groups = _load_toml(root / "pyproject.toml")["project"]["entry-points"]
    lines = [
        line
        for group, points in groups.items()
        for line in [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    ]
    facts = directory / "exec_server-0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: exec-server\nVersion: 0\n")
    (facts / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return clean_environment(EXEC_SERVER_BIN=binary(), PYTHONPATH=f"{root / 'src'}{os.pathsep}{directory}")


def _load_toml(file: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        # pytest needs it there.
        import tomli as tomllib
    return tomllib.loads(file.read_text())
