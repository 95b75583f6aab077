"""Inspect: a machine as the sandbox of evaluations, `sandbox="exec-server"` or `sandbox=("exec-server", "config.yaml")`."""

from __future__ import annotations

import errno
import os
import shlex
from pathlib import Path
from typing import Any, Literal, cast, overload

import yaml
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel

from ._aio.machine import AsyncMachine
from ._errors import LinkError, ProgramNotFound, RemoteError

_NOT_FOUND = 127


class ExecServerConfig(BaseModel, frozen=True):
    """Where the samples run; without a target, `$EXEC_SERVER_URL`, and then a server on this machine."""

    target: str | None = None
    token_file: str | None = None
    registry: str | None = None
    ca_file: str | None = None
    environments: str | None = None
    sandbox: str | None = None
    """The sandbox of every command: `read-only` or `workspace-write`."""
    network: bool = False
    limits: dict[str, int] = {}


class _TooMuch(Exception):
    """A stream is longer than its limit."""


@sandboxenv(name="exec-server")  # pyright: ignore[reportUntypedClassDecorator]
class ExecServerSandboxEnvironment(SandboxEnvironment):
    """A directory on a machine; each sample has its own, and its own session."""

    def __init__(self, machine: AsyncMachine, directory: str, config: ExecServerConfig) -> None:
        super().__init__()
        self._machine = machine
        self._directory = directory
        self._config = config

    @classmethod
    def config_files(cls) -> list[str]:
        """Files that are a configuration by their name."""
        return ["exec-server.yaml"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """A configuration from a log."""
        return ExecServerConfig(**config)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Connects, and makes the directory of the sample."""
        place = _config(config)
        try:
            machine = await _connect(place)
            directory = (await machine.run(["mktemp", "-d"], check=True)).stdout.strip()
            if machine.capabilities.get("processUser"):
                # Commands of other users begin there, too.
                await machine.fs.chmod(directory, 0o755)
        except LinkError as error:
            raise SandboxUnavailableError(str(error)) from error
        return {"default": cls(machine, directory, place)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Removes the directory, and ends everything that the sample started."""
        for environment in environments.values():
            sandbox = environment.as_type(cls)
            try:
                await sandbox._machine.fs.remove(sandbox._directory, recursive=True, missing_ok=True)
            except (LinkError, OSError):
                # A machine that is gone has no directory to remove.
                pass
            await sandbox._machine.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command; a missing program is a failed result."""
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        out, err = bytearray(), bytearray()

        def keep(kept: bytearray, data: bytes) -> None:
            room = limit - len(kept)
            kept += data[:room]
            if len(data) > room:
                raise _TooMuch

        try:
            result = await self._machine.run(
                cmd,
                input=input,
                cwd=self._path(cwd or "."),
                env=env,
                user=self._user(user),
                timeout=timeout,
                sandbox=self._config.sandbox,
                network=self._config.network,
                limits=self._config.limits,
                text=False,
                on_stdout=lambda data: keep(out, data),
                on_stderr=lambda data: keep(err, data),
            )
        except _TooMuch:
            text = (bytes(out) + bytes(err)).decode(errors="replace")
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, text) from None
        except ProgramNotFound as error:
            return ExecResult(False, _NOT_FOUND, "", str(error))
        except LinkError as error:
            raise SandboxUnavailableError(str(error)) from error
        except RemoteError as error:
            if user is not None and error.kind in ("unknown_user", "user_unavailable"):
                raise SandboxUserUnsupportedError(str(error)) from error
            raise
        return ExecResult(
            result.returncode == 0, result.returncode, out.decode(errors="replace"), err.decode(errors="replace")
        )

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file, and makes the directories above it."""
        path = self._path(file)
        data = contents.encode() if isinstance(contents, str) else contents
        try:
            try:
                await self._machine.fs.write_bytes(path, data)
            except FileNotFoundError:
                await self._machine.fs.mkdir(path.rsplit("/", 1)[0], parents=True, exist_ok=True)
                await self._machine.fs.write_bytes(path, data)
        except LinkError as error:
            raise SandboxUnavailableError(str(error)) from error

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Reads a file; one that is too large is refused before it is read."""
        path = self._path(file)
        try:
            facts = await self._machine.fs.stat(path)
            if facts.is_dir:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), file)
            if facts.size > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
                raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
            data = await self._machine.fs.read_bytes(path)
        except LinkError as error:
            raise SandboxUnavailableError(str(error)) from error
        return data.decode() if text else data

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """How a person gets a shell there."""
        target = shlex.quote(self._config.target or self._machine.target)
        command = f"exec-server shell -w {shlex.quote(self._directory)} {target}"
        return SandboxConnection(type="exec-server", command=command)

    def default_polling_interval(self) -> float:
        """A command costs about a millisecond."""
        return 0.2

    def _path(self, path: str) -> str:
        return path if path.startswith("/") else f"{self._directory}/{path}"

    def _user(self, user: str | None) -> str | None:
        host = cast("dict[str, Any]", self._machine.info.get("host") or {})
        if user is None or self._machine.capabilities.get("processUser"):
            return user
        if user == host.get("user"):
            return None
        raise SandboxUserUnsupportedError(f"the server of {self._machine.target} cannot run commands as {user!r}")


def _config(config: SandboxEnvironmentConfigType | None) -> ExecServerConfig:
    if config is None:
        return ExecServerConfig()
    if isinstance(config, ExecServerConfig):
        return config
    if isinstance(config, str):
        return ExecServerConfig(**cast("dict[str, Any]", yaml.safe_load(Path(config).read_text()) or {}))
    raise ValueError(f"unexpected configuration {config!r}; pass a file name or ExecServerConfig")


async def _connect(place: ExecServerConfig) -> AsyncMachine:
    if place.target is None and not os.environ.get("EXEC_SERVER_URL") and place.environments is None:
        return await AsyncMachine.local()
    return await AsyncMachine.connect(
        place.target,
        token_file=place.token_file,
        registry=place.registry,
        ca_file=place.ca_file,
        environments=place.environments,
    )
