"""Errors of the SDK; those about files are also the builtin ones."""

from __future__ import annotations

import errno as errno_numbers
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ._types import Result


class ExecServerError(Exception):
    """Base of every error of this package."""


class LinkError(ExecServerError, ConnectionError):
    """The server cannot be reached, or the connection is lost; the call was not executed."""


class AuthError(LinkError):
    """The server or the registry refused the token."""


class MachineClosed(LinkError):
    """The machine was closed, or was opened by the parent of this process."""


class SessionLost(LinkError):
    """The session could not be resumed; its processes can no longer be followed."""


class TakenOver(SessionLost):
    """Another client took the session over; its processes keep running there."""


class Ambiguous(LinkError):
    """The connection broke before the answer; the call may or may not have been executed, and was not repeated."""


class SearchLost(LinkError):
    """The connection broke between two pages of a search; start it again."""


class Unsupported(ExecServerError):
    """The server does not have the capability that a call needs."""


class StdinClosed(ExecServerError, BrokenPipeError):
    """The process accepts no more input."""


class OutputLost(ExecServerError):
    """Output was dropped before it was read: by the server's retention, or by the limit of unread output here."""


class RemoteError(ExecServerError):
    """The server answered with an error."""

    def __init__(self, message: str, *, code: int, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.data = data or {}
        self.kind: str | None = self.data.get("kind")
        self.errno_name: str | None = self.data.get("errno")
        self.sandbox_denied = bool(self.data.get("sandboxDenied"))
        self.retryable = bool(self.data.get("retryable"))

    def __str__(self) -> str:
        return self.message


class RemoteFileError(RemoteError, OSError):
    """The system of the machine refused; `errno`, `strerror` and `filename` are set."""

    def __init__(
        self, message: str, *, code: int, data: dict[str, Any] | None = None, path: str | None = None
    ) -> None:
        super().__init__(message, code=code, data=data)
        number = getattr(errno_numbers, self.errno_name or "", None)
        self.errno = number if isinstance(number, int) else None
        self.strerror = message
        self.filename = path

    def __str__(self) -> str:
        filename = cast("str | None", self.filename)
        return self.message if filename is None or filename in self.message else f"{self.message}: {filename!r}"


class RemoteFileNotFound(RemoteFileError, FileNotFoundError):
    """There is no such file or directory on the machine."""


class RemoteFileExists(RemoteFileError, FileExistsError):
    """The file exists."""


class RemotePermissionError(RemoteFileError, PermissionError):
    """The user of the server, or the sandbox, may not do this."""


class RemoteIsADirectory(RemoteFileError, IsADirectoryError):
    """The path is a directory, or no regular file."""


class RemoteNotADirectory(RemoteFileError, NotADirectoryError):
    """A part of the path is no directory."""


class ProgramNotFound(RemoteFileNotFound):
    """The program of a command is not in the `PATH` of the machine."""


class VersionMismatch(RemoteError):
    """The file is no longer the version that `if_match` names."""


class EditMismatch(RemoteError, ValueError):
    """The text of an edit does not occur, or not exactly once; the file is unchanged."""

    def __init__(self, message: str, *, code: int, data: dict[str, Any] | None = None) -> None:
        super().__init__(message, code=code, data=data)
        raw = self.data.get("edit")
        facts = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
        nearest = cast("dict[str, Any]", facts.get("nearest") or {})
        self.index: int = facts.get("index", 0)
        """The number of the edit, from 0."""
        self.occurrences: int = facts.get("occurrences", 0)
        self.lines: list[int] = facts.get("lines", [])
        """The lines of the first occurrences, from 1."""
        self.nearest_line: int | None = nearest.get("line")
        """The line of the most similar text, if the text does not occur."""
        self.nearest_text: str | None = nearest.get("text")


class InvalidPattern(RemoteError, ValueError):
    """The pattern, a glob or a file type of a search cannot be used."""


class CommandError(ExecServerError):
    """A command failed and `check` was asked for; `result` has its output."""

    def __init__(self, result: Result[Any]) -> None:
        self.result = result
        how = f"was ended by {result.signal}" if result.signal else f"exited with {result.returncode}"
        tail = result.stderr if isinstance(result.stderr, str) else result.stderr.decode(errors="replace")
        tail = tail.strip()[-2000:]
        super().__init__(f"command {result.argv!r} {how}" + (f":\n{tail}" if tail else ""))


class TimeoutExpired(ExecServerError, TimeoutError):
    """The server ended a command at its time limit; `result` has the output until then."""

    def __init__(self, result: Result[Any], timeout: float | None) -> None:
        self.result = result
        self.timeout = timeout
        super().__init__(f"command {result.argv!r} was ended after its limit of {timeout} s")

    @property
    def stdout(self) -> str | bytes:
        """The output until the end."""
        return self.result.stdout

    @property
    def stderr(self) -> str | bytes:
        """The error output until the end."""
        return self.result.stderr


_OWN: dict[str, type[RemoteError]] = {
    "version_mismatch": VersionMismatch,
    "edit_not_found": EditMismatch,
    "edit_not_unique": EditMismatch,
    "invalid_pattern": InvalidPattern,
}
_BY_KIND: dict[str, type[RemoteFileError]] = {
    "program_not_found": ProgramNotFound,
    "program_not_executable": RemotePermissionError,
    "cwd_not_found": RemoteFileNotFound,
    "not_found": RemoteFileNotFound,
    "permission_denied": RemotePermissionError,
    "is_a_directory": RemoteIsADirectory,
    "not_a_file": RemoteIsADirectory,
}
_BY_ERRNO: dict[str, type[RemoteFileError]] = {
    "ENOENT": RemoteFileNotFound,
    "EEXIST": RemoteFileExists,
    "EACCES": RemotePermissionError,
    "EPERM": RemotePermissionError,
    "EISDIR": RemoteIsADirectory,
    "ENOTDIR": RemoteNotADirectory,
}
_NOT_FOUND = -32004


def remote_error(error: dict[str, Any], path: str | None = None) -> RemoteError:
    """The exception for the `error` member of a reply; `path` is the file that the call was about."""
    message, code = str(error.get("message", "unknown error")), int(error.get("code", 0))
    raw = error.get("data")
    data = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    kind, name = data.get("kind"), data.get("errno")
    special = _OWN.get(str(kind))
    if special is not None:
        return special(message, code=code, data=data)
    found = _BY_KIND.get(str(kind)) or _BY_ERRNO.get(str(name))
    # A server without `error.data` tells a missing file by its code alone.
    if found is None and code == _NOT_FOUND and path is not None:
        found = RemoteFileNotFound
    if found is None and name is not None:
        found = RemoteFileError
    if found is None:
        return RemoteError(message, code=code, data=data)
    return found(message, code=code, data=data, path=path)
