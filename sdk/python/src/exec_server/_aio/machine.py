"""A machine: the entry point of the SDK."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

from .._errors import Ambiguous, ExecServerError, RemoteError, SessionLost, TimeoutExpired, remote_error
from .._local import LocalServer
from .._protocol import argv_of, env_policy, limits as limits_of, new_id, process_info, sandbox as sandbox_of, to_uri
from .._target import resolve
from .._types import Exit, ProcessInfo, Result
from . import runtime
from .files import AsyncFiles
from .http import AsyncHttp
from .link import Link, Traceparent
from .process import AsyncProcess
from .runtime import Opening, opening
from .session import AsyncSession

_RETAINED = 16 * 1024 * 1024
"""Output that the server keeps of each process: more than a relay can have in flight."""

_OPEN: weakref.WeakSet[AsyncMachine] = weakref.WeakSet()


class AsyncMachine:
    """A machine behind an exec-server; `async with AsyncMachine.connect("ws://…") as machine` closes it at the end."""

    def __init__(self, session: AsyncSession, server: LocalServer | None = None) -> None:
        self._session = session
        self._server = server
        self.fs = AsyncFiles(session)
        """Files of the machine."""
        self.http = AsyncHttp(session)
        """HTTP requests from the machine."""
        self._abandon = weakref.finalize(self, session.abandon)
        self._abandon.atexit = False
        _OPEN.add(self)

    @classmethod
    def connect(
        cls,
        target: str | None = None,
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        registry: str | None = None,
        environments: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        session: str | None = None,
        take_over: bool = False,
        linger: float | None = None,
        connect_timeout: float = 10.0,
        recovery: float = 55.0,
        traceparent: Traceparent = None,
        binary: str | os.PathLike[str] | None = None,
    ) -> Opening[AsyncMachine]:
        """Connects to a target: `ws://`, `wss://`, `unix://`, `stdio:COMMAND`, `env:NAME`, or a name.

        Without a target, `$EXEC_SERVER_URL` and then the default of environments.toml are used. `registry` is the URL of
        the rendezvous of `env:NAME` (default `$EXEC_SERVER_REMOTE_URL`); `token` and `token_file` are for the server, or for
        that registry. `session` resumes an old session; `recovery` is how many seconds a lost connection is retried; `env` has variables for `exec-server dial`,
        which connects to everything but plain `ws://` and `unix://`. `traceparent` is the W3C trace context that requests
        carry, or a function that returns the current one, called for each request.
        """
        place = resolve(
            target,
            token=token,
            token_file=token_file,
            ca_file=ca_file,
            registry=registry,
            environments=environments,
            env=env,
            binary=binary,
        )
        opened = AsyncSession(
            place,
            connect_timeout=connect_timeout,
            recovery=recovery,
            session=session,
            take_over=take_over,
            linger=linger,
            traceparent=traceparent,
        )
        return opening(lambda: cls._open(opened, None))

    @classmethod
    def local(
        cls, *, binary: str | os.PathLike[str] | None = None, options: Sequence[str] = ()
    ) -> Opening[AsyncMachine]:
        """Starts a server on this machine, on a private socket; it ends with the machine object or this process."""
        return opening(lambda: cls._open_local(binary, options))

    @classmethod
    async def _open_local(cls, binary: str | os.PathLike[str] | None, options: Sequence[str]) -> AsyncMachine:
        server = await runtime.in_thread(lambda: LocalServer(binary, options))
        return await cls._open(AsyncSession(resolve(server.url)), server)

    @classmethod
    async def _open(cls, session: AsyncSession, server: LocalServer | None) -> AsyncMachine:
        try:
            await session.open()
        except BaseException:
            if server is not None:
                server.stop()
            raise
        return cls(session, server)

    async def close(self) -> None:
        """Ends the processes that were not detached, the connection, and a local server; safe to repeat."""
        _OPEN.discard(self)
        await self._session.close()
        server, self._server = self._server, None
        if server is not None:
            await runtime.in_thread(server.stop)

    async def __aenter__(self) -> AsyncMachine:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.target}>"

    @property
    def target(self) -> str:
        """What it is connected to."""
        return self._session.target.name

    @property
    def session_id(self) -> str | None:
        """The session; `connect(target, session=…)` resumes it from elsewhere."""
        return self._session.session_id

    @property
    def info(self) -> Mapping[str, Any]:
        """What the server says about its machine: `shell`, `host`, `platformOs`, `executorVersion` and more."""
        return self._session.info

    @property
    def capabilities(self) -> Mapping[str, Any]:
        """What the server can do."""
        return self._session.capabilities

    @property
    def cwd(self) -> str:
        """The working directory of the server, in which relative paths begin."""
        return self._session.cwd

    # Processes

    @overload
    async def run(
        self,
        command: str | Sequence[str],
        *,
        text: Literal[True] = True,
        shell: bool = ...,
        cwd: str | os.PathLike[str] | None = ...,
        env: Mapping[str, str] | None = ...,
        inherit: str = ...,
        input: bytes | str | None = ...,
        timeout: float | None = ...,
        check: bool = ...,
        user: str | None = ...,
        sandbox: str | Mapping[str, Any] | None = ...,
        network: bool = ...,
        limits: Mapping[str, int] | None = ...,
        on_stdout: Callable[[bytes], object] | None = ...,
        on_stderr: Callable[[bytes], object] | None = ...,
        encoding: str = ...,
        errors: str = ...,
    ) -> Result[str]: ...

    @overload
    async def run(
        self,
        command: str | Sequence[str],
        *,
        text: Literal[False],
        shell: bool = ...,
        cwd: str | os.PathLike[str] | None = ...,
        env: Mapping[str, str] | None = ...,
        inherit: str = ...,
        input: bytes | str | None = ...,
        timeout: float | None = ...,
        check: bool = ...,
        user: str | None = ...,
        sandbox: str | Mapping[str, Any] | None = ...,
        network: bool = ...,
        limits: Mapping[str, int] | None = ...,
        on_stdout: Callable[[bytes], object] | None = ...,
        on_stderr: Callable[[bytes], object] | None = ...,
        encoding: str = ...,
        errors: str = ...,
    ) -> Result[bytes]: ...

    async def run(
        self,
        command: str | Sequence[str],
        *,
        text: bool = True,
        shell: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        inherit: str = "all",
        input: bytes | str | None = None,
        timeout: float | None = None,
        check: bool = False,
        user: str | None = None,
        sandbox: str | Mapping[str, Any] | None = None,
        network: bool = False,
        limits: Mapping[str, int] | None = None,
        on_stdout: Callable[[bytes], object] | None = None,
        on_stderr: Callable[[bytes], object] | None = None,
        encoding: str = "utf-8",
        errors: str = "replace",
    ) -> Result[str] | Result[bytes]:
        """Runs a command to its end. A code other than 0 raises only with `check`.

        The server enforces `timeout` on the whole tree; `TimeoutExpired` has the output until then. With callbacks,
        output goes to them piece by piece and is not collected.
        """
        params = self._params(
            command, shell, cwd, env, inherit, user, sandbox, network, limits, timeout=timeout, stdin=input is not None
        )
        has_callbacks = on_stdout is not None or on_stderr is not None
        process = await self._start(params, is_collecting=not has_callbacks)
        parts: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
        try:
            if input is not None:
                await self._feed(process, input.encode(encoding) if isinstance(input, str) else input)
            if has_callbacks:
                await self._call_back(process, {"stdout": on_stdout, "stderr": on_stderr}, parts)
            own_limit = None if "timeoutMs" in params else timeout
            is_timed_out = not await process.wait_closed(own_limit)
            if is_timed_out:
                await process.end()
        except BaseException:
            with runtime.shielded(5.0):
                await process.end()
            raise
        if has_callbacks:
            out, err = b"".join(parts["stdout"]), b"".join(parts["stderr"])
        else:
            out, err = process.collected()
        exit = process.exit or Exit(-1)
        facts = (exit.returncode, exit.signal, exit.reason, exit.duration, exit.rusage, exit.sandbox_denied)
        result: Result[str] | Result[bytes] = (
            Result(process.argv, out.decode(encoding, errors), err.decode(encoding, errors), *facts)
            if text
            else Result(process.argv, out, err, *facts)
        )
        if exit.reason == "timeout" or is_timed_out:
            raise TimeoutExpired(result, timeout)
        return result.check() if check else result

    def start(
        self,
        command: str | Sequence[str],
        *,
        shell: bool = False,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        inherit: str = "all",
        stdin: bool = False,
        pty: bool | tuple[int, int] = False,
        timeout: float | None = None,
        user: str | None = None,
        sandbox: str | Mapping[str, Any] | None = None,
        network: bool = False,
        limits: Mapping[str, int] | None = None,
        id: str | None = None,
        wait_when_detached: bool | None = None,
    ) -> Opening[AsyncProcess]:
        """Starts a command and returns at once. `pty=(rows, cols)` gives it a terminal, `stdin=True` keeps its input open.

        Output of a command with pipes waits while no client is connected; `wait_when_detached=False` lets it run on, and
        its oldest output is dropped.
        """
        params = self._params(
            command, shell, cwd, env, inherit, user, sandbox, network, limits, timeout=timeout, stdin=stdin
        )
        if pty:
            params["tty"] = True
            rows, cols = (24, 80) if pty is True else pty
            if self._session.capabilities.get("processResize"):
                params["size"] = {"rows": rows, "cols": cols}
            params["env"].setdefault("TERM", "xterm-256color")
        if id is not None:
            params["processId"] = id
            if self._session.capabilities.get("processUniqueId"):
                params["uniqueId"] = True
        if wait_when_detached is None:
            wait_when_detached = not pty
        if not wait_when_detached:
            params.pop("waitWhenDetached", None)
        return opening(lambda: self._start(params))

    async def attach(self, id: str, *, after: int = 0) -> AsyncProcess:
        """Follows a process of this session from the event after number `after`; it is not ended with the machine."""
        known = self._session.processes.get(id)
        if known is not None and known.seq >= after and not known.is_closed:
            return known
        process = AsyncProcess(self._session, id, (), after=after)
        process.is_started = True
        self._session.processes[id] = process
        try:
            process.feed(await self._session.call("process/read", process.missing(), is_repeatable=True))
            await self._session.recover(process)
        except RemoteError as error:
            self._session.processes.pop(id, None)
            others = [item for item in await self.ps(all=True) if item.id == id]
            if others:
                raise RemoteError(
                    f"process {id} belongs to another session; "
                    f"connect(target, session={others[0].session_id!r}) resumes it",
                    code=error.code,
                    data=error.data,
                ) from error
            raise
        return process

    async def ps(self, *, all: bool = False) -> list[ProcessInfo]:
        """The processes of this session, or with `all` of every session that this credential may use."""
        if not all:
            self._session.require("processList", "listing processes")
            answer = await self._session.call("process/list", None, is_repeatable=True)
            return [process_info(item, self._session.session_id or "") for item in answer["processes"]]
        self._session.require("sessionDirectory", "listing sessions")
        answer = await self._session.call("session/list", None, is_repeatable=True)
        return [
            process_info(item, session["sessionId"])
            for session in answer["sessions"]
            for item in session["processes"]
        ]

    async def call(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Calls any method of the protocol; not repeated after a lost connection."""
        return await self._session.call(method, params)

    def _params(
        self,
        command: str | Sequence[str],
        shell: bool,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        inherit: str,
        user: str | None,
        sandbox: str | Mapping[str, Any] | None,
        network: bool,
        limits: Mapping[str, int] | None,
        *,
        timeout: float | None,
        stdin: bool,
    ) -> dict[str, Any]:
        session = self._session
        can = session.capabilities
        directory = session.absolute(cwd) if cwd is not None else session.cwd
        shell_path = session.info.get("shell", {}).get("path") or "/bin/sh"
        params: dict[str, Any] = {
            "processId": new_id(),
            "argv": argv_of(command, shell, shell_path),
            "cwd": to_uri(directory),
            "env": dict(env or {}),
            "envPolicy": env_policy(inherit),
            "tty": False,
            "pipeStdin": stdin,
            "sandbox": sandbox_of(sandbox, directory, network),
        }
        if timeout is not None and can.get("processTimeouts"):
            params["timeoutMs"] = max(int(timeout * 1000), 1)
        if user is not None:
            session.require("processUser", "commands that run as another user")
            params["user"] = user
        if limits:
            session.require("processLimits", "resource limits")
            params["limits"] = limits_of(limits)
        if can.get("processWaitWhenDetached"):
            params["waitWhenDetached"] = True
        if can.get("processOutputRetention"):
            params["outputRetention"] = _RETAINED
        return params

    async def _start(self, params: dict[str, Any], *, is_collecting: bool = False) -> AsyncProcess:
        session = self._session
        # A connection that is being resumed decides which session the process belongs to.
        if session.session_id is None:
            await session.open()
        process = AsyncProcess(session, params["processId"], params["argv"], is_collecting=is_collecting)
        session.processes[process.id] = process
        session.owned.add(process.id)
        try:
            link = await self._start_call(process, params)
        except BaseException as error:
            if isinstance(error, (RemoteError, SessionLost)):
                session.owned.discard(process.id)
            else:
                with runtime.shielded(5.0):
                    await process.end()
            raise
        process.is_started = True
        # Events of a connection that ended meanwhile were not recovered, because the process was not known as started.
        if session.link is not link:
            await session.recover(process)
        return process

    async def _start_call(self, process: AsyncProcess, params: dict[str, Any]) -> Link | None:
        """Starts the process; returns the first connection, over which its first events came."""
        session = self._session
        first: Link | None = None
        while True:
            call = await session.start_call("process/start", params, session_id=process.session_id)
            first = first or call.link
            assert call.gate is not None
            await call.gate.wait()
            if isinstance(call.error, Ambiguous) and session.capabilities.get("processStartRetry"):
                continue
            if isinstance(call.error, ExecServerError):
                raise call.error
            if call.error is not None:
                raise remote_error(call.error, params["argv"][0])
            return first

    async def _feed(self, process: AsyncProcess, data: bytes) -> None:
        try:
            await process.write(data)
            await process.close_stdin()
        except (BrokenPipeError, RemoteError):
            # A command may end before it has read everything; its result tells.
            return

    async def _call_back(
        self,
        process: AsyncProcess,
        functions: Mapping[str, Callable[[bytes], object] | None],
        parts: dict[str, list[bytes]],
    ) -> None:
        async for output in process.output:
            function = functions.get(output.stream)
            if function is not None:
                await runtime.call_back(function, output.data)
            else:
                parts[output.stream].append(output.data)


def _close_all() -> None:
    for machine in list(_OPEN):
        runtime.close_at_exit(machine)


atexit.register(_close_all)
