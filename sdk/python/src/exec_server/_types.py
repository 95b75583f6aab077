"""Values that calls return."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ._errors import CommandError

Text = TypeVar("Text", str, bytes)


@dataclass(frozen=True)
class Usage:
    """Resources that a process and its children used."""

    user: float
    """Seconds of processor time in user mode."""
    system: float
    """Seconds of processor time in the kernel."""
    max_rss: int | None
    """The largest resident set in bytes, if it is known."""


@dataclass(frozen=True)
class Exit:
    """How a process ended."""

    returncode: int
    """0 to 255, or 128 plus the number of the signal."""
    signal: str | None = None
    """The signal that ended it, such as `SIGKILL`."""
    reason: str | None = None
    """`exited`, `signaled`, `timeout`, `idleTimeout`, `terminated`, `oomKilled` or `serverShutdown`."""
    duration: float | None = None
    """Seconds from start to exit."""
    rusage: Usage | None = None
    sandbox_denied: bool = False
    """Whether a denial of the sandbox made it fail."""


@dataclass(frozen=True)
class Result(Generic[Text]):
    """A finished command."""

    argv: Sequence[str]
    stdout: Text
    stderr: Text
    returncode: int
    signal: str | None
    reason: str | None
    duration: float | None
    rusage: Usage | None
    sandbox_denied: bool

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.returncode == 0

    def check(self) -> Result[Text]:
        """Raises `CommandError` unless it exited with 0."""
        if self.returncode != 0:
            raise CommandError(self)
        return self


@dataclass(frozen=True)
class Output:
    """One piece of output, in the order in which the server read it."""

    stream: str
    """`stdout`, `stderr` or `pty`."""
    data: bytes
    seq: int
    """Its number among the events of the process; `attach(id, after=seq)` continues behind it."""


@dataclass(frozen=True)
class ProcessInfo:
    """One process of a list."""

    id: str
    pid: int
    argv: Sequence[str]
    cwd: str
    tty: bool
    user: str | None
    started_at: float
    session_id: str
    exited: bool
    closed: bool
    returncode: int | None


@dataclass(frozen=True)
class Stat:
    """Metadata of a path; times are Unix seconds."""

    path: str
    kind: str
    """`file`, `directory`, `symlink`, `fifo`, `socket`, `characterDevice`, `blockDevice` or `unknown`."""
    size: int
    modified: float
    created: float | None
    is_symlink: bool
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    owner: str | None = None
    group: str | None = None
    links: int | None = None
    inode: int | None = None
    version: str | None = None
    """Changes with content and attributes; for `if_match`."""
    link_target: str | None = None

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.kind == "file"

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.kind == "directory"


@dataclass(frozen=True)
class Entry:
    """One name in a directory."""

    name: str
    path: str
    is_file: bool
    is_dir: bool
    is_symlink: bool
    stat: Stat | None


@dataclass(frozen=True)
class Written:
    """What a write has stored."""

    version: str | None
    size: int | None
    in_place: bool


@dataclass(frozen=True)
class Match:
    """A line that a search has found."""

    path: str
    line: int
    """From 1."""
    text: str
    """The line without its end; bytes that are not UTF-8 are replaced, and a long line is shortened."""
    ranges: Sequence[tuple[int, int]]
    """Where the matches begin and end in the whole line, in bytes."""
    offset: int
    """Where the line begins in the file, in bytes."""
    before: Sequence[str]
    after: Sequence[str]
    raw: bytes
    """The bytes of `text`."""
    cut_before: int
    """Bytes of the line that are missing before `text`."""
    cut_after: int
    """Bytes of the line that are missing after `text`."""


@dataclass(frozen=True)
class Found:
    """A name that a search has found."""

    path: str
    kind: str
    """`file`, `directory`, `symlink` or `other`."""
    size: int | None
    modified: float | None
    """Unix seconds."""


@dataclass(frozen=True)
class Unreadable:
    """A path that a search could not read."""

    path: str
    message: str


@dataclass(frozen=True)
class Change:
    """A change below a watched path."""

    kind: str
    """`create`, `write`, `remove`, `rename`, `chmod`, or `rescan`: changes were lost, look again at all below `path`."""
    path: str
    old_path: str | None
    """The name before a rename."""
    seq: int
    """From 1, without gaps."""


@dataclass(frozen=True)
class Edit:
    """One replacement of text; `old` must occur exactly once unless `replace_all` is set."""

    old: str
    new: str
    replace_all: bool = False


@dataclass(frozen=True)
class AppliedEdit:
    """What one edit did."""

    replacements: int
    line: int
    """The line of the first replacement, from 1."""


@dataclass(frozen=True)
class Edited:
    """A file after its edits."""

    edits: Sequence[AppliedEdit]
    size: int
    version: str | None
    """None after a dry run."""
    in_place: bool


@dataclass(frozen=True)
class Progress:
    """How far an upload or download is."""

    path: str
    """The remote file that is being copied."""
    done: int
    """Bytes of this file so far."""
    size: int
    """Bytes of this file."""
    files: int
    """Files that are complete."""
    total: int
    """Bytes of all files so far."""


@dataclass(frozen=True)
class Response:
    """The answer to an HTTP request that the machine made."""

    status: int
    headers: Sequence[tuple[str, str]]
    content: bytes
    url: str
    """The URL after redirects."""

    @property
    def ok(self) -> bool:
        """Whether the status is below 400."""
        return self.status < 400

    @property
    def text(self) -> str:
        """The content as UTF-8."""
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        """The content as JSON."""
        return json.loads(self.content)

    def header(self, name: str) -> str | None:
        """The first header of this name, in any case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)
