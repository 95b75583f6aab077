"""Deep Agents: a machine as the sandbox backend of an agent.

    agent = create_deep_agent(backend=ExecServerSandbox("env:build-1"))
"""

from __future__ import annotations

from typing import Any

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from ._errors import ExecServerError, TimeoutExpired
from ._sync.machine import Machine

_OUTPUT_LIMIT = 1024 * 1024
_TIMED_OUT = 124


class ExecServerSandbox(BaseSandbox):
    """A machine; `target` and the other options are those of `Machine.connect`, `machine` is an open one.

    `ls`, `read`, `write`, `edit`, `grep` and `glob` are those of Deep Agents, which run `python3` on the machine.
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        machine: Machine | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        sandbox: str | None = None,
        network: bool = False,
        **options: Any,
    ) -> None:
        self._machine = machine if machine is not None else Machine.connect(target, **options)
        self._owns = machine is None
        self._cwd = cwd
        self._timeout = timeout
        self._sandbox = sandbox
        self._network = network

    @property
    def id(self) -> str:
        """The session on the server."""
        return self._machine.session_id or self._machine.target

    @property
    def machine(self) -> Machine:
        """The machine behind it."""
        return self._machine

    def close(self) -> None:
        """Closes a machine that was not given."""
        if self._owns:
            self._machine.close()

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a command with the shell: both streams together, in the order in which they came."""
        kept = bytearray()
        total = 0

        def keep(data: bytes) -> None:
            nonlocal total
            total += len(data)
            kept.extend(data[: _OUTPUT_LIMIT - len(kept)])

        limit = timeout if timeout is not None else self._timeout
        try:
            result = self._machine.run(
                command,
                shell=True,
                cwd=self._cwd,
                timeout=limit,
                sandbox=self._sandbox,
                network=self._network,
                text=False,
                on_stdout=keep,
                on_stderr=keep,
            )
            code = result.returncode
        except TimeoutExpired as error:
            kept.extend(f"\n{error}".encode())
            code = _TIMED_OUT
        except ExecServerError as error:
            return ExecuteResponse(output=f"Error: {error}", exit_code=1, truncated=False)
        return ExecuteResponse(
            output=kept.decode(errors="replace"), exit_code=code, truncated=total > _OUTPUT_LIMIT
        )

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files; each answer has its own error."""
        return [FileUploadResponse(path=path, error=self._upload(path, data)) for path, data in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files; each answer has its own error."""
        answers: list[FileDownloadResponse] = []
        for path in paths:
            if not path.startswith("/"):
                answers.append(FileDownloadResponse(path=path, error="invalid_path"))
                continue
            try:
                answers.append(FileDownloadResponse(path=path, content=self._machine.fs.read_bytes(path)))
            except (ExecServerError, OSError) as error:
                answers.append(FileDownloadResponse(path=path, error=_code(error)))
        return answers

    def _upload(self, path: str, data: bytes) -> Any:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            try:
                self._machine.fs.write_bytes(path, data)
            except FileNotFoundError:
                self._machine.fs.mkdir(path.rsplit("/", 1)[0] or "/", parents=True, exist_ok=True)
                self._machine.fs.write_bytes(path, data)
        except (ExecServerError, OSError) as error:
            return _code(error)
        return None


def _code(error: BaseException) -> Any:
    """The word of Deep Agents for an error."""
    if isinstance(error, FileNotFoundError):
        return "file_not_found"
    if isinstance(error, PermissionError):
        return "permission_denied"
    if isinstance(error, IsADirectoryError):
        return "is_directory"
    if isinstance(error, NotADirectoryError):
        return "invalid_path"
    return str(error)
