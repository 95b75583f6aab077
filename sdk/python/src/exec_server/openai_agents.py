"""OpenAI Agents SDK: a machine as the sandbox of an agent.

    RunConfig(sandbox=SandboxRunConfig(client=ExecServerSandboxClient(), options=ExecServerSandboxClientOptions(target="env:build-1")))
"""

from __future__ import annotations

import asyncio
import io
import tarfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
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
from agents.sandbox.types import ExecResult, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, validate_tarfile

from ._aio.machine import AsyncMachine
from ._aio.process import AsyncProcess
from ._errors import Ambiguous, ExecServerError, LinkError, ProgramNotFound, TimeoutExpired

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
    sandbox: str | None = None
    """The sandbox of every command: `read-only` or `workspace-write`."""
    network: bool = False


class ExecServerSandboxSessionState(SandboxSessionState):
    """What a session needs to go on elsewhere; it has no secrets."""

    type: Literal["exec_server"] = _BACKEND  # pyright: ignore[reportIncompatibleVariableOverride]
    target: str | None = None
    token_file: str | None = None
    sandbox: str | None = None
    network: bool = False
    workspace_root_owned: bool = False


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

    async def machine(self) -> AsyncMachine:
        """The machine, connected at the first use."""
        if self._machine is None:
            self._machine = await AsyncMachine.connect(self.state.target, token_file=self.state.token_file)
        return self._machine

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

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        words = [str(word) for word in command]
        try:
            machine = await self.machine()
            result = await machine.run(words, text=False, timeout=timeout, **await self._options())
        except TimeoutExpired as error:
            raise ExecTimeoutError(command=command, timeout_s=timeout, cause=error) from error
        except ProgramNotFound as error:
            return ExecResult(stdout=b"", stderr=f"{error}\n".encode(), exit_code=_NOT_FOUND)
        except LinkError as error:
            context = {"retry_safe": not isinstance(error, Ambiguous)}
            raise ExecTransportError(command=command, context=context, cause=error) from error
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
        words = self._prepare_exec_command(*command, shell=shell, user=user)
        try:
            machine = await self.machine()
            process = await machine.start(words, pty=tty, timeout=timeout, **await self._options())
        except LinkError as error:
            raise ExecTransportError(command=command, cause=error) from error
        if len(self._terminals) >= PTY_PROCESSES_MAX:
            meta = [(number, entry.last_used, entry.is_closed) for number, entry in self._terminals.items()]
            oldest = process_id_to_prune_from_meta(meta)
            if oldest is not None:
                await self._terminals.pop(oldest).process.end()
        number = allocate_pty_process_id(set(self._terminals))
        self._terminals[number] = _Terminal(process, has_input=tty)
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
        asked = int((_WRITE_YIELD if yield_time_s is None else yield_time_s) * 1000)
        wait = resolve_pty_write_yield_time_ms(yield_time_ms=asked, input_empty=not chars)
        entry.last_used = time.monotonic()
        return await self._update(session_id, wait / 1000, max_output_tokens)

    async def pty_terminate_all(self) -> None:
        """Ends every command that was left running."""
        entries, self._terminals = list(self._terminals.values()), {}
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
            if output is None:
                entry.is_closed = True
            else:
                parts.append(output.data)
        text, count = truncate_text_by_tokens(b"".join(parts).decode(errors="replace"), max_output_tokens)
        if not entry.is_closed:
            return PtyExecUpdate(number, text.encode(), None, count)
        self._terminals.pop(number, None)
        return PtyExecUpdate(None, text.encode(), entry.process.returncode, count)

    # Files

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """The content of a file."""
        where = await self._validate_path_access(path)
        if user is not None:
            await self._check_read_with_exec(path, user=user)
        try:
            return io.BytesIO(await (await self.machine()).fs.read_bytes(str(where)))
        except FileNotFoundError as error:
            raise WorkspaceReadNotFoundError(path=path, cause=error) from error
        except (ExecServerError, OSError) as error:
            raise WorkspaceArchiveReadError(path=path, cause=error) from error

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Writes a file, and makes the directories above it."""
        where = str(await self._validate_path_access(path, for_write=True))
        if user is not None:
            await self._check_write_with_exec(path, user=user)
        content = data.read()
        raw = content.encode() if isinstance(content, str) else bytes(content)
        try:
            fs = (await self.machine()).fs
            await fs.mkdir(where.rsplit("/", 1)[0] or "/", parents=True, exist_ok=True)
            await fs.write_bytes(where, raw)
        except (ExecServerError, OSError) as error:
            raise WorkspaceArchiveWriteError(path=path, cause=error) from error

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
        machine = await AsyncMachine.connect(options.target, token_file=options.token_file)
        is_owned = manifest.root == _DEFAULT_ROOT
        if is_owned:
            directory = (await machine.run(["mktemp", "-d"], check=True)).stdout.strip()
            manifest = manifest.model_copy(update={"root": directory}, deep=True)
        number = uuid.uuid4()
        state = ExecServerSandboxSessionState(
            session_id=number,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(number)),
            target=options.target,
            token_file=options.token_file,
            sandbox=options.sandbox,
            network=options.network,
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
        """The same directory on the same machine."""
        if not isinstance(state, ExecServerSandboxSessionState):
            raise TypeError("expected a state of ExecServerSandboxClient")
        return self._wrap_session(ExecServerSandboxSession(state))

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """A state from its JSON."""
        return self._deserialize_session_state_payload(payload, ExecServerSandboxSessionState)
