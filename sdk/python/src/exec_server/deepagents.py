"""Deep Agents: a machine as the sandbox backend of an agent.

    agent = create_deep_agent(backend=ExecServerSandbox("env:build-1"))
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

from deepagents.backends.protocol import (
    EditResult,
    ExecuteResponse,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.sandbox import BaseSandbox

from ._errors import EditMismatch, ExecServerError, TimeoutExpired
from ._globs import expand_braces, matches, wants_hidden
from ._sync.machine import Machine
from ._sync.search import Search
from ._types import Match

_OUTPUT_LIMIT = 1024 * 1024
_TIMED_OUT = 124
_TEXT_LIMIT = 500 * 1024
_BINARY_LIMIT = 500 * 1024
_SEARCH_SECONDS = 30.0
_MOST_NAMES = 10_000
_EMPTY = "System reminder: File exists but has empty contents"
_CUT = "\n\n[The text was cut at the size limit. Read on with a larger offset or a smaller limit.]"
# Since 0.7 a write replaces, `glob` gives absolute paths of files, and results say how far they go.
_IS_NEW = tuple(int(part) for part in version("deepagents").split(".")[:2]) >= (0, 7)


class ExecServerSandbox(BaseSandbox):
    """A machine; `target` and the other options are those of `Machine.connect`, `machine` is an open one.

    Everything but `execute` goes over the file methods of the server, under the same sandbox; no program is needed.
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
        self._fs = self._machine.fs
        if sandbox is not None:
            self._fs = self._fs.with_sandbox(sandbox, cwd=cwd, network=network)

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
                answers.append(FileDownloadResponse(path=path, content=self._fs.read_bytes(path)))
            except (ExecServerError, OSError) as error:
                answers.append(FileDownloadResponse(path=path, error=_code(error)))
        return answers

    def ls(self, path: str) -> LsResult:
        """The names in a directory."""
        try:
            entries = self._fs.list(self._absolute(path))
        except (ExecServerError, OSError) as error:
            return LsResult(error=f"Path '{path}': {_code(error)}")
        return LsResult(entries=[_info(entry.path, entry.stat) for entry in entries])

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Lines of a text file, or a whole binary file as base64."""
        offset, limit = max(int(offset), 0), max(int(limit), 0)
        try:
            return self._read(file_path, offset, limit)
        except (ExecServerError, OSError) as error:
            return ReadResult(error=f"File '{file_path}': {_code(error)}")

    def write(self, file_path: str, content: str) -> WriteResult:
        """Writes a file and its parents; before Deep Agents 0.7 only a new one."""
        error = self._upload(file_path, content.encode(), if_absent=not _IS_NEW)
        if error == "exists":
            return WriteResult(error=f"Error: File '{file_path}' already exists")
        if error is not None:
            return WriteResult(error=f"Failed to write file '{file_path}': {error}")
        return WriteResult(path=file_path)

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Replaces text that occurs exactly once, or every occurrence; line ends of the file are kept."""
        if not old_string:
            return EditResult(error="Error: old_string cannot be empty. Provide the exact text to replace.")
        found = 0
        # `read` shows every line end as \\n, also those of a file with \\r\\n.
        for old, new in dict([_ends(old_string, new_string, end) for end in (None, "\r\n", "\n")]).items():
            try:
                edited = self._fs.edit(self._absolute(file_path), old, new, replace_all=replace_all)
                return EditResult(path=file_path, occurrences=edited.edits[0].replacements)
            except EditMismatch as error:
                found = error.occurrences
                if found:
                    break
            except FileNotFoundError:
                return EditResult(error=f"Error: File '{file_path}' not found")
            except (ExecServerError, OSError) as error:
                return EditResult(error=f"Error editing file '{file_path}': {_code(error)}")
        if found:
            return EditResult(
                error=f"Error: String '{old_string}' appears multiple times ({found}). "
                "Use replace_all=True to replace all occurrences."
            )
        return EditResult(error=f"Error: String not found in file: '{old_string}'")

    def delete(self, file_path: str) -> Any:
        """Removes a file or a directory with everything in it; Deep Agents 0.7 and newer."""
        from deepagents.backends.protocol import DeleteResult

        try:
            self._fs.remove(self._absolute(file_path), recursive=True)
        except FileNotFoundError:
            return DeleteResult(error=f"Error: '{file_path}' not found")
        except (ExecServerError, OSError) as error:
            return DeleteResult(error=f"Error deleting file '{file_path}': {_code(error)}")
        return DeleteResult(path=file_path)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Lines that contain a text; `glob` chooses files by name, or by path if it has a slash."""
        root = self._absolute(path or ".")
        wanted = [] if glob is None else [one.lstrip("/") for one in expand_braces(glob)]
        skipped = getattr(self, "grep_exclude_dirs", ())
        globs = [*("\\" + one if one.startswith("!") else one for one in wanted), *(f"!**/{name}/" for name in skipped)]
        try:
            search: Search[Match] = self._fs.search(
                pattern,
                root,
                literal=True,
                hidden=True,
                ignore=False,
                globs=globs,
                timeout=_SEARCH_SECONDS,
                max_matches=max_count,
            )
            found = search.all()
        except (ExecServerError, OSError) as error:
            return GrepResult(error=f"Error: grep of '{root}' failed: {_code(error)}")
        found.sort(key=lambda match: (match.path, match.line))
        lines: list[GrepMatch] = [{"path": match.path, "line": match.line, "text": _line(match)} for match in found]
        if not _IS_NEW:
            return GrepResult(matches=lines)
        return GrepResult(matches=lines, truncated=search.incomplete is not None)

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Files by a pattern: of a name at any depth or, with a slash, of a path below `path`."""
        root = "/" + (path or "").strip("/")
        patterns = [one.lstrip("/") for one in expand_braces(pattern)]
        if any(".." in one.split("/") for one in patterns):
            return GlobResult(error=f"Error: the pattern '{pattern}' leads out of '{root}'")
        if _IS_NEW:
            patterns = [one if "/" in one else f"**/{one}" for one in patterns]
        prefix = root.rstrip("/") + "/"
        try:
            search = self._fs.find(
                # A path below the root needs a slash, or it would be a name at any depth.
                [f"**/{one}" if "/" not in one else one for one in patterns],
                root,
                kinds=["file"] if _IS_NEW else [],
                detailed=True,
                hidden=any(wants_hidden(one) for one in patterns),
                ignore=False,
                max_depth=None if any("**" in one.split("/") for one in patterns) else _depth(patterns),
                max_matches=_MOST_NAMES,
                timeout=_SEARCH_SECONDS,
            )
            found = search.all()
        except (ExecServerError, OSError) as error:
            return GlobResult(error=f"Error: glob of '{root}' failed: {_code(error)}")
        names: list[FileInfo] = [
            _info(entry.path if _IS_NEW else entry.path.removeprefix(prefix), entry)
            for entry in sorted(found, key=lambda entry: entry.path)
            if any(matches(entry.path.removeprefix(prefix), one) for one in patterns)
        ]
        if not _IS_NEW:
            return GlobResult(matches=names)
        why = "budget" if search.incomplete is not None else "unreadable" if search.unreadable_count else None
        return GlobResult(matches=names, truncated=why is not None, truncation_reason=why)

    async def als(self, path: str) -> LsResult:
        """`ls` in a thread."""
        return await asyncio.to_thread(self.ls, path)

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """`read` in a thread."""
        return await asyncio.to_thread(self.read, file_path, offset, limit)

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """`write` in a thread."""
        return await asyncio.to_thread(self.write, file_path, content)

    async def aedit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> EditResult:
        """`edit` in a thread."""
        return await asyncio.to_thread(self.edit, file_path, old_string, new_string, replace_all)

    async def adelete(self, file_path: str) -> Any:
        """`delete` in a thread."""
        return await asyncio.to_thread(self.delete, file_path)

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """`grep` in a thread."""
        return await asyncio.to_thread(self.grep, pattern, path, glob, max_count=max_count)

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """`glob` in a thread."""
        return await asyncio.to_thread(self.glob, pattern, path)

    def _absolute(self, path: str) -> str:
        """Relative paths begin where commands run."""
        if path.startswith(("/", "~")) or self._cwd is None:
            return path
        return self._cwd.rstrip("/") + "/" + path

    def _read(self, file_path: str, offset: int, limit: int) -> ReadResult:
        where = self._absolute(file_path)
        facts = self._fs.stat(where)
        if not facts.is_file:
            return ReadResult(error=f"File '{file_path}': not_a_file")
        if facts.size == 0:
            return ReadResult(file_data=FileData(content=_EMPTY, encoding="utf-8"))
        with self._fs.open(where, "rb") as file:
            page = _Page(offset, limit)
            try:
                for line in file:
                    page.add(line)
            except UnicodeDecodeError:
                return self._read_binary(file_path, where, facts.size)
        return page.result(file_path)

    def _read_binary(self, file_path: str, where: str, size: int) -> ReadResult:
        if size > _BINARY_LIMIT:
            return ReadResult(
                error=f"File '{file_path}': Binary file exceeds maximum preview size of {_BINARY_LIMIT} bytes"
            )
        data = b64encode(self._fs.read_bytes(where)).decode("ascii")
        return ReadResult(file_data=FileData(content=data, encoding="base64"))

    def _upload(self, path: str, data: bytes, *, if_absent: bool = False) -> Any:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            try:
                self._fs.write_bytes(path, data, if_absent=if_absent)
            except FileNotFoundError:
                self._fs.mkdir(path.rsplit("/", 1)[0] or "/", parents=True, exist_ok=True)
                self._fs.write_bytes(path, data, if_absent=if_absent)
        except FileExistsError:
            return "exists"
        except (ExecServerError, OSError) as error:
            return _code(error)
        return None


class _Page:
    """The lines of one read; the rest of the file is only counted."""

    def __init__(self, offset: int, limit: int) -> None:
        self._offset, self._limit = offset, limit
        self._lines: list[str] = []
        self._bytes = 0
        self._is_cut = False
        self._total = 0

    def add(self, raw: bytes) -> None:
        """The next line; raises `UnicodeDecodeError` if the file is not text."""
        text = raw.decode()
        number, self._total = self._total, self._total + 1
        if number < self._offset or len(self._lines) >= self._limit or self._is_cut:
            return
        line = text.removesuffix("\n").removesuffix("\r")
        size = len(line.encode()) + 1
        if self._bytes + size > _TEXT_LIMIT:
            self._is_cut = True
            # A first line that is too long is shown in part, so that reading makes progress.
            if not self._lines:
                self._lines.append(line.encode()[: _TEXT_LIMIT - len(_CUT)].decode(errors="ignore"))
            return
        self._bytes += size
        self._lines.append(line)

    def result(self, file_path: str) -> ReadResult:
        """What was read, and where it goes on."""
        text = "\n".join(self._lines) + (_CUT if self._is_cut else "")
        data = FileData(content=text, encoding="utf-8")
        if self._limit == 0:
            return ReadResult(file_data=data, no_lines_requested=True) if _IS_NEW else ReadResult(file_data=data)
        if not self._lines:
            return ReadResult(
                error=f"File '{file_path}': Line offset {self._offset} exceeds file length ({self._total} lines)"
            )
        if not _IS_NEW:
            return ReadResult(file_data=data)
        end = self._offset + len(self._lines)
        return ReadResult(
            file_data=data,
            total_lines=self._total,
            start_line=self._offset + 1,
            end_line=end,
            next_offset=end if end < self._total else None,
        )


def _info(path: str, facts: Any) -> FileInfo:
    """An entry; `facts` is a `Stat` or a `Found`."""
    info: FileInfo = {"path": path, "is_dir": facts is not None and facts.kind == "directory"}
    if facts is not None and facts.size is not None:
        info["size"] = facts.size
    if facts is not None and facts.modified is not None:
        info["modified_at"] = datetime.fromtimestamp(facts.modified, timezone.utc).isoformat()
    return info


def _ends(old: str, new: str, end: str | None) -> tuple[str, str]:
    """Both texts with one kind of line end."""
    if end is None:
        return old, new
    return tuple(text.replace("\r\n", "\n").replace("\n", end) for text in (old, new))  # type: ignore[return-value]


def _line(match: Match) -> str:
    """The text of a match; what the server left out of a long line is marked."""
    return "…" * (match.cut_before > 0) + match.text + "…" * (match.cut_after > 0)


def _depth(patterns: list[str]) -> int:
    return max((one.count("/") + 1 for one in patterns), default=1)


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
