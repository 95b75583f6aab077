"""OpenAI Agents SDK: a machine as the sandbox of an agent.

    RunConfig(sandbox=SandboxRunConfig(client=ExecServerSandboxClient(), options=ExecServerSandboxClientOptions(target="env:build-1")))
"""

from __future__ import annotations

import asyncio
import io
import tarfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    PtySessionNotFoundError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    clamp_pty_yield_time_ms,
    process_id_to_prune_from_meta,
    resolve_pty_write_yield_time_ms,
    truncate_text_by_tokens,
)
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tarfile
from pydantic import BaseModel

from ._aio.files import AsyncFiles
from ._aio.machine import AsyncMachine
from ._aio.process import AsyncProcess
from ._errors import (
    Ambiguous,
    ExecServerError,
    LinkError,
    MachineClosed,
    OutputLost,
    ProgramNotFound,
    RemoteError,
    SessionLost,
    TimeoutExpired,
)
from ._target import Socket

_BACKEND = "exec_server"
_DEFAULT_ROOT = Manifest.model_fields["root"].default
_NOT_FOUND = 127
_START_YIELD = 10.0
_WRITE_YIELD = 0.25


class ExecServerSandboxClientOptions(BaseSandboxClientOptions):
    """Where the agent works; without a target, `$EXEC_SERVER_URL` and the default of environments.toml count."""

    type: Literal["exec_server"] = _BACKEND  # pyright: ignore[reportIncompatibleVariableOverride]
    target: str | None = None
    token_file: str | None = None
    registry: str | None = None
    sandbox: str | None = None
    """The sandbox of every command: `read-only` or `workspace-write`."""
    network: bool = False
    linger: float | None = None
    """Seconds that the server keeps running commands for a `resume` after the connection is lost; none: its own time."""
    exposed_ports: tuple[int, ...] = ()


class ExecServerTerminalState(BaseModel):
    """A command that was left running."""

    process_id: str
    seq: int = 0
    """The last event that was returned."""
    has_input: bool


class ExecServerSandboxSessionState(SandboxSessionState):
    """What a session needs to go on elsewhere; it has no secrets."""

    type: Literal["exec_server"] = _BACKEND  # pyright: ignore[reportIncompatibleVariableOverride]
    target: str | None = None
    token_file: str | None = None
    registry: str | None = None
    sandbox: str | None = None
    network: bool = False
    linger: float | None = None
    workspace_root_owned: bool = False
    server_session: str | None = None
    terminals: dict[int, ExecServerTerminalState] = {}


@dataclass
class _Terminal:
    process: AsyncProcess
    has_input: bool
    is_closed: bool = False
    last_used: float = field(default_factory=time.monotonic)


class ExecServerSandboxSession(BaseSandboxSession):
    """A directory on a machine."""

    state: ExecServerSandboxSessionState

    def __init__(self, state: ExecServerSandboxSessionState, machine: AsyncMachine | None = None) -> None:
        self.state = state  # pyright: ignore[reportIncompatibleVariableOverride]
        self._machine = machine
        self._terminals: dict[int, _Terminal] = {}
        self._connecting = asyncio.Lock()

    async def machine(self) -> AsyncMachine:
        """The machine, connected at the first use."""
        async with self._connecting:
            if self._machine is None:
                self._machine = await self._resume()
            self.state.server_session = self._machine.session_id
            return self._machine

    async def _resume(self) -> AsyncMachine:
        """Continues the session of the state with the commands that still run there, or begins a new one."""
        session, terminals, self.state.terminals = self.state.server_session, self.state.terminals, {}
        if session is None:
            return await _connect(self.state)
        try:
            # The connection of a client that is gone may still look alive to the server.
            machine = await _connect(self.state, session=session, take_over=True)
        except (RemoteError, SessionLost):
            # A new session decides what is wrong, unless the old one has expired.
            return await _connect(self.state)
        for number, terminal in terminals.items():
            try:
                process = await machine.attach(terminal.process_id, after=terminal.seq)
            except RemoteError:
                # The server has forgotten a process that was closed long ago.
                continue
            self._terminals[number] = _Terminal(process, terminal.has_input)
            self.state.terminals[number] = terminal
        return machine

    async def _ensure_backend_started(self) -> None:
        await self.machine()

    async def _prepare_backend_workspace(self) -> None:
        root = Path(self.state.manifest.root)
        try:
            await (await self.machine()).fs.mkdir(str(root), parents=True, exist_ok=True)
        except (ExecServerError, OSError) as error:
            raise WorkspaceStartError(path=root, cause=error) from error

    async def _shutdown_backend(self) -> None:
        machine, self._machine = self._machine, None
        if machine is not None:
            await machine.close()

    async def running(self) -> bool:
        """Whether the machine answers and the directory is there."""
        try:
            return await (await self.machine()).fs.is_dir(self.state.manifest.root)
        except (ExecServerError, OSError):
            return False

    # Commands

    async def _options(self) -> dict[str, Any]:
        return {
            "cwd": self.state.manifest.root,
            "env": dict(await self.state.manifest.environment.resolve()),
            "sandbox": self.state.sandbox,
            "network": self.state.network,
        }

    async def exec(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
    ) -> ExecResult:
        """Runs a command; the server becomes the user if it can, else `sudo` on the machine does."""
        words, as_user = await self._words(command, shell, user)
        return await self._run(words, timeout, as_user)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        return await self._run([str(word) for word in command], timeout, None)

    async def _words(
        self, command: Sequence[str | Path], shell: bool | list[str], user: str | User | None
    ) -> tuple[list[str], str | None]:
        """The words of a command, and the user for the server; none if `sudo` is among the words."""
        name = _name_of(user)
        try:
            is_ours = name is not None and bool((await self.machine()).capabilities.get("processUser"))
        except LinkError as error:
            raise _transport_error(command, error) from error
        words = self._prepare_exec_command(*command, shell=shell, user=None if is_ours else user)
        return words, name if is_ours else None

    async def _run(self, command: list[str], timeout: float | None, user: str | None) -> ExecResult:
        try:
            machine = await self.machine()
            result = await machine.run(command, text=False, timeout=timeout, user=user, **await self._options())
        except TimeoutExpired as error:
            raise ExecTimeoutError(command=command, timeout_s=timeout, cause=error) from error
        except ProgramNotFound as error:
            return ExecResult(stdout=b"", stderr=f"{error}\n".encode(), exit_code=_NOT_FOUND)
        except ExecServerError as error:
            raise _transport_error(command, error) from error
        return ExecResult(stdout=result.stdout, stderr=result.stderr, exit_code=result.returncode)

    def supports_pty(self) -> bool:
        """Commands can be left running and written to."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Starts a command and returns what it has written after the yield time."""
        words, as_user = await self._words(command, shell, user)
        try:
            machine = await self.machine()
            process = await machine.start(words, pty=tty, timeout=timeout, user=as_user, **await self._options())
        except ProgramNotFound as error:
            return PtyExecUpdate(None, f"{error}\n".encode(), _NOT_FOUND, None)
        except ExecServerError as error:
            raise _transport_error(command, error) from error
        if len(self._terminals) >= PTY_PROCESSES_MAX:
            meta = [(number, entry.last_used, entry.is_closed) for number, entry in self._terminals.items()]
            oldest = process_id_to_prune_from_meta(meta)
            if oldest is not None:
                self.state.terminals.pop(oldest, None)
                await self._terminals.pop(oldest).process.end()
        number = allocate_pty_process_id(set(self._terminals))
        self._terminals[number] = _Terminal(process, has_input=tty)
        self.state.terminals[number] = ExecServerTerminalState(process_id=process.id, has_input=tty)
        wait = clamp_pty_yield_time_ms(int((_START_YIELD if yield_time_s is None else yield_time_s) * 1000))
        return await self._update(number, wait / 1000, max_output_tokens)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Writes to a command, or polls it with no characters."""
        command = ["write_stdin", str(session_id)]
        try:
            # After a resume, the commands are known once there is a connection.
            await self.machine()
        except ExecServerError as error:
            raise _transport_error(command, error) from error
        entry = self._terminals.get(session_id)
        if entry is None:
            raise PtySessionNotFoundError(session_id=session_id)
        if chars:
            if not entry.has_input:
                raise RuntimeError("stdin is not available for this process")
            try:
                await entry.process.write(chars)
            except BrokenPipeError:
                # It has ended; the update tells.
                pass
            except ExecServerError as error:
                raise _transport_error(command, error) from error
        asked = int((_WRITE_YIELD if yield_time_s is None else yield_time_s) * 1000)
        wait = resolve_pty_write_yield_time_ms(yield_time_ms=asked, input_empty=not chars)
        entry.last_used = time.monotonic()
        return await self._update(session_id, wait / 1000, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        """Ends every command that was left running."""
        if self.state.terminals and self._machine is None:
            try:
                await self.machine()
            except ExecServerError:
                # The server ends what is left when the session expires.
                pass
        entries, self._terminals = list(self._terminals.values()), {}
        self.state.terminals = {}
        for entry in entries:
            await entry.process.end()

    async def _update(self, number: int, wait: float, max_output_tokens: int | None) -> PtyExecUpdate:
        entry = self._terminals[number]
        deadline = time.monotonic() + wait
        parts: list[bytes] = []
        while not entry.is_closed and (left := deadline - time.monotonic()) > 0:
            try:
                output = await asyncio.wait_for(entry.process.next_output(), left)
            except asyncio.TimeoutError:
                break
            except ExecServerError as error:
                # What has arrived is returned first; the next update fails again.
                if parts:
                    break
                raise _transport_error(entry.process.argv, error, has_started=True) from error
            if output is None:
                entry.is_closed = True
            else:
                parts.append(output.data)
                self.state.terminals[number].seq = output.seq
        text, count = truncate_text_by_tokens(b"".join(parts).decode(errors="replace"), max_output_tokens)
        if not entry.is_closed:
            return PtyExecUpdate(number, text.encode(), None, count)
        self._terminals.pop(number, None)
        self.state.terminals.pop(number, None)
        return PtyExecUpdate(None, text.encode(), entry.process.returncode, count)

    # Files

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """The content of a file."""
        where = await self._validate_path_access(path)
        fs = await self._files(user)
        if fs is None:
            await self._check_read_with_exec(path, user=user)
        try:
            return io.BytesIO(await (fs or (await self.machine()).fs).read_bytes(str(where)))
        except FileNotFoundError as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except (ExecServerError, OSError) as error:
            raise WorkspaceArchiveReadError(path=path, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Writes a file, and makes the directories above it."""
        where = str(await self._validate_path_access(path, for_write=True))
        fs = await self._files(user)
        if fs is None:
            await self._check_write_with_exec(path, user=user)
        content = data.read()
        raw = content.encode() if isinstance(content, str) else bytes(content)
        try:
            fs = fs or (await self.machine()).fs
            await fs.mkdir(where.rsplit("/", 1)[0] or "/", parents=True, exist_ok=True)
            await fs.write_bytes(where, raw)
        except (ExecServerError, OSError) as error:
            raise WorkspaceArchiveWriteError(path=path, cause=error) from error

    async def _files(self, user: str | User | None) -> AsyncFiles | None:
        """The files with the rights of the user; none if the server cannot become one, and `sudo` must look."""
        try:
            machine = await self.machine()
        except LinkError as error:
            raise _transport_error(["files"], error) from error
        name = _name_of(user)
        if name is None:
            return machine.fs
        return machine.fs.with_user(name) if machine.capabilities.get("fsUser") else None

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        try:
            target = (await self.machine())._session.target
        except ExecServerError as error:
            raise self._no_port(port, str(error), error) from error
        if not isinstance(target, Socket):
            told = f"the ports of {target.name} cannot be reached from here; the server forwards none"
            raise self._no_port(port, told)
        return ExposedPortEndpoint(host="127.0.0.1" if target.path is not None else target.host, port=port)

    def _no_port(self, port: int, told: str, cause: Exception | None = None) -> ExposedPortUnavailableError:
        context, ports = {"backend": _BACKEND, "detail": told}, self.state.exposed_ports
        return ExposedPortUnavailableError(
            port=port, exposed_ports=ports, reason="backend_unavailable", context=context, cause=cause
        )

    async def persist_workspace(self) -> io.IOBase:
        """The directory as a tar archive with relative names."""
        root = Path(self.state.manifest.root)
        skipped = [f"--exclude=./{path.as_posix()}" for path in sorted(self._persist_workspace_skip_relpaths())]
        try:
            machine = await self.machine()
            result = await machine.run(["tar", "-C", str(root), *skipped, "-cf", "-", "."], text=False, check=True)
        except (ExecServerError, OSError) as error:
            raise WorkspaceArchiveReadError(path=root, cause=error) from error
        return io.BytesIO(result.stdout)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpacks a tar archive into the directory; names that lead out of it are refused."""
        root = Path(self.state.manifest.root)
        raw = data.read()
        try:
            with tarfile.open(fileobj=io.BytesIO(raw), mode="r:*") as archive:
                validate_tarfile(archive, allow_external_symlink_targets=False)
            machine = await self.machine()
            await machine.fs.mkdir(str(root), parents=True, exist_ok=True)
            await machine.run(["tar", "-C", str(root), "-xf", "-"], input=raw, text=False, check=True)
        except UnsafeTarMemberError as error:
            context = {"reason": error.reason, "member": error.member}
            raise WorkspaceArchiveWriteError(path=root, context=context, cause=error) from error
        except (ExecServerError, OSError, tarfile.TarError) as error:
            raise WorkspaceArchiveWriteError(path=root, cause=error) from error


def _name_of(user: str | User | None) -> str | None:
    return user.name if isinstance(user, User) else user or None


def _transport_error(
    command: Sequence[str | Path], error: ExecServerError, *, has_started: bool = False
) -> ExecTransportError:
    """The error of the SDK; another attempt is safe only if the command cannot have run."""
    may_have_run = has_started or isinstance(error, (Ambiguous, SessionLost, MachineClosed, OutputLost))
    context = {"retry_safe": isinstance(error, LinkError) and not may_have_run}
    message = f"exec transport error: {error}"
    return ExecTransportError(command=command, context=context, cause=error, message=message)


async def _connect(
    place: ExecServerSandboxClientOptions | ExecServerSandboxSessionState,
    *,
    session: str | None = None,
    take_over: bool = False,
) -> AsyncMachine:
    return await AsyncMachine.connect(
        place.target,
        token_file=place.token_file,
        registry=place.registry,
        linger=place.linger,
        session=session,
        take_over=take_over,
    )


class ExecServerSandboxClient(BaseSandboxClient[ExecServerSandboxClientOptions]):
    """Creates, resumes and deletes sessions."""

    backend_id = _BACKEND

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: ExecServerSandboxClientOptions,
    ) -> SandboxSession:
        """A session with a directory of its own, unless the manifest names one."""
        manifest = manifest if manifest is not None else Manifest()
        self._validate_manifest_for_create(manifest)
        machine = await _connect(options)
        is_owned = manifest.root == _DEFAULT_ROOT
        if is_owned:
            directory = (await machine.run(["mktemp", "-d"], check=True)).stdout.strip()
            if machine.capabilities.get("processUser"):
                # Commands of other users begin there, too.
                await machine.fs.chmod(directory, 0o755)
            manifest = manifest.model_copy(update={"root": directory}, deep=True)
        number = uuid.uuid4()
        state = ExecServerSandboxSessionState(
            session_id=number,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(number)),
            target=options.target,
            token_file=options.token_file,
            registry=options.registry,
            sandbox=options.sandbox,
            network=options.network,
            linger=options.linger,
            exposed_ports=options.exposed_ports,
            server_session=machine.session_id,
            workspace_root_owned=is_owned,
        )
        return self._wrap_session(ExecServerSandboxSession(state, machine))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Removes a directory that `create` made."""
        inner = session._inner
        if not isinstance(inner, ExecServerSandboxSession):
            raise TypeError("expected a session of ExecServerSandboxClient")
        try:
            if inner.state.workspace_root_owned:
                machine = await inner.machine()
                await machine.fs.remove(inner.state.manifest.root, recursive=True, missing_ok=True)
        except (ExecServerError, OSError):
            # A machine that is gone has no directory to remove.
            pass
        await inner._shutdown_backend()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The same directory on the same machine, with the commands that the server still has."""
        if not isinstance(state, ExecServerSandboxSessionState):
            raise TypeError("expected a state of ExecServerSandboxClient")
        return self._wrap_session(ExecServerSandboxSession(state))

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """A state from its JSON."""
        return self._deserialize_session_state_payload(payload, ExecServerSandboxSessionState)
