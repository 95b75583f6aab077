"""Files of the machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from .._errors import RemoteError
from .._protocol import decode, edited_of, encode, entry_of, from_uri, stat_of, to_uri, written_of
from .._protocol import sandbox as sandbox_of
from .._types import Edit, Edited, Entry, Progress, Stat, Written
from .blocks import BLOCK_BYTES, read_blocks, write_blocks
from .confined import AsyncConfined
from .file import open_file
from .runtime import Opening, closing, opening
from .searching import AsyncSearching, RemotePath
from .session import AsyncSession
from .transfer import download, upload

_WHOLE_BYTES = 32 * 1024 * 1024
"""Content up to this size goes in one message; a message has at most 64 MiB, and base64 adds a third."""
_PAGE = 2000


class AsyncFiles(AsyncSearching):
    """`machine.fs`: paths are absolute, or begin in the working directory of the server; `~/` is the user's home."""

    def with_sandbox(
        self, policy: str | Mapping[str, Any], *, cwd: RemotePath | None = None, network: bool = False
    ) -> AsyncFiles:
        """The same files, each call restricted to what a policy of `run` allows; `cwd` is its workspace."""
        directory = self._session.cwd if cwd is None else self._session.absolute(cwd)
        found = sandbox_of(policy, directory, network)
        assert found is not None
        return AsyncFiles(cast("AsyncSession", AsyncConfined(self._session, {"sandbox": found})))

    def with_user(self, user: str) -> AsyncFiles:
        """The same files, each call with the rights of another user of the machine; what it makes belongs to that user."""
        self._session.require("fsUser", "files with the rights of another user")
        return AsyncFiles(cast("AsyncSession", AsyncConfined(self._session, {"user": user})))

    # Content

    async def read_bytes(self, path: RemotePath) -> bytes:
        """The content of a file of any size."""
        where = self._session.absolute(path)
        try:
            params = {"path": to_uri(where)}
            answer = await self._session.call("fs/readFile", params, is_repeatable=True, path=where)
            return decode(answer["dataBase64"])
        except RemoteError as error:
            if error.kind not in ("file_too_large", "reply_too_large"):
                raise
        parts: list[bytes] = []
        async with closing(read_blocks(self._session, where)) as blocks:
            async for block in blocks:
                parts.append(block)
        return b"".join(parts)

    async def read_text(self, path: RemotePath, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The content of a file as text; line ends stay as they are."""
        return (await self.read_bytes(path)).decode(encoding, errors)

    async def write_bytes(
        self,
        path: RemotePath,
        data: bytes,
        *,
        if_match: str | None = None,
        if_absent: bool = False,
        mode: int | None = None,
    ) -> Written:
        """Writes a file: readers see the old or the new content, never a part.

        `if_match` replaces only the version that `stat` or an earlier write has returned, `if_absent` creates and never
        replaces. `Ambiguous` if the connection broke before the answer.
        """
        where = self._session.absolute(path)
        options = self.conditions(if_match, if_absent, mode)
        if len(data) > _WHOLE_BYTES:
            view = memoryview(data)
            blocks = [view[begin : begin + BLOCK_BYTES] for begin in range(0, len(data), BLOCK_BYTES)]
            return await write_blocks(self._session, where, lambda: blocks, options)
        params = {"path": to_uri(where), "dataBase64": encode(data), **options}
        return written_of(await self._session.call("fs/writeFile", params, path=where))

    async def write_text(
        self,
        path: RemotePath,
        text: str,
        encoding: str = "utf-8",
        *,
        if_match: str | None = None,
        if_absent: bool = False,
        mode: int | None = None,
    ) -> Written:
        """Writes a file as text."""
        return await self.write_bytes(
            path, text.encode(encoding), if_match=if_match, if_absent=if_absent, mode=mode
        )

    async def append(self, path: RemotePath, data: bytes | str) -> None:
        """Appends to a file, and creates a missing one."""
        self._session.require("fsAppend", "appending to files")
        where = self._session.absolute(path)
        raw = data.encode() if isinstance(data, str) else data
        for begin in range(0, max(len(raw), 1), _WHOLE_BYTES):
            params = {"path": to_uri(where), "dataBase64": encode(raw[begin : begin + _WHOLE_BYTES])}
            await self._session.call("fs/append", params, path=where)

    async def truncate(self, path: RemotePath, size: int = 0) -> None:
        """Sets the length of a file."""
        self._session.require("fsTruncate", "truncating files")
        where = self._session.absolute(path)
        await self._session.call("fs/truncate", {"path": to_uri(where), "size": size}, path=where)

    def open(
        self,
        path: RemotePath,
        mode: str = "r",
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        newline: str | None = None,
    ) -> Opening[Any]:
        """A file object with the modes `r`, `w`, `x` and `a`, as text or with `b` as bytes.

        New content appears at `close`, all at once; an exception inside `with` discards it.
        """
        where = self._session.absolute(path)
        return opening(lambda: open_file(self._session, where, mode, encoding, errors, newline))

    def conditions(self, if_match: str | None, if_absent: bool, mode: int | None) -> dict[str, Any]:
        """The options of a write."""
        options: dict[str, Any] = {}
        if if_match is not None or if_absent:
            self._session.require("fsConditionalWrite", "conditional writes")
        if if_match is not None:
            options["ifMatch"] = if_match
        if if_absent:
            options["ifAbsent"] = True
        if mode is not None:
            self._session.require("fsWriteAttributes", "permission bits of new files")
            options["modeBits"] = mode
        if self._session.capabilities.get("fsDetailedMetadata"):
            options["detailed"] = True
        return options

    async def edit(
        self,
        path: RemotePath,
        old: str | Sequence[Edit],
        new: str | None = None,
        *,
        replace_all: bool = False,
        if_match: str | None = None,
        dry_run: bool = False,
    ) -> Edited:
        """Replaces `old`, which must occur exactly once, or with `replace_all` at least once, by `new`.

        A list of `Edit` is applied in its order, all or none. Text that does not fit raises `EditMismatch`. Never
        repeated: `Ambiguous` if the connection broke before the answer.
        """
        self._session.require("fsEdit", "editing files")
        where = self._session.absolute(path)
        if isinstance(old, str):
            if new is None:
                raise TypeError("an edit needs the new text")
            edits: Sequence[Edit] = [Edit(old, new, replace_all)]
        else:
            if new is not None or replace_all:
                raise TypeError("a list of edits has its own new texts and its own replace_all")
            edits = old
        params: dict[str, Any] = {
            "path": to_uri(where),
            "edits": [{"old": edit.old, "new": edit.new, "replaceAll": edit.replace_all} for edit in edits],
            "dryRun": dry_run,
        }
        if if_match is not None:
            params["ifMatch"] = if_match
        return edited_of(await self._session.call("fs/edit", params, path=where))

    # Metadata

    async def stat(self, path: RemotePath, *, follow_symlinks: bool = True) -> Stat:
        """Metadata of a path."""
        where = self._session.absolute(path)
        params = {"path": to_uri(where), "followSymlinks": follow_symlinks, "detailed": True}
        return stat_of(where, await self._session.call("fs/getMetadata", params, is_repeatable=True, path=where))

    async def exists(self, path: RemotePath) -> bool:
        """Whether there is such a file or directory; false for a link that leads nowhere."""
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def is_file(self, path: RemotePath) -> bool:
        """Whether there is such a regular file."""
        try:
            return (await self.stat(path)).is_file
        except (FileNotFoundError, NotADirectoryError):
            return False

    async def is_dir(self, path: RemotePath) -> bool:
        """Whether there is such a directory."""
        try:
            return (await self.stat(path)).is_dir
        except (FileNotFoundError, NotADirectoryError):
            return False

    async def list(self, path: RemotePath = ".") -> list[Entry]:
        """The names in a directory, sorted, with their metadata."""
        where = self._session.absolute(path)
        entries: list[Entry] = []
        cursor: str | None = None
        while True:
            params = {"path": to_uri(where), "limit": _PAGE, "cursor": cursor, "detailed": True}
            answer = await self._session.call("fs/readDirectory", params, is_repeatable=True, path=where)
            entries += [entry_of(where, item) for item in answer["entries"]]
            cursor = answer.get("nextCursor")
            if cursor is None:
                return sorted(entries, key=lambda entry: entry.name)

    def walk(self, path: RemotePath = ".") -> AsyncWalk:
        """Each directory of a tree with its directories and its other entries; links are not entered.

        Directories that are removed from the list are not entered, as with `os.walk`.
        """
        return AsyncWalk(self, self._session.absolute(path))

    async def resolve(self, path: RemotePath) -> str:
        """The path without links."""
        where = self._session.absolute(path)
        answer = await self._session.call("fs/canonicalize", {"path": to_uri(where)}, is_repeatable=True, path=where)
        return from_uri(answer["path"])

    async def readlink(self, path: RemotePath) -> str:
        """The text of a link."""
        self._session.require("fsSymlink", "reading links")
        where = self._session.absolute(path)
        answer = await self._session.call("fs/readLink", {"path": to_uri(where)}, is_repeatable=True, path=where)
        raw = answer.get("targetBase64")
        return answer["target"] if raw is None else os.fsdecode(decode(raw))

    # Changes

    async def mkdir(self, path: RemotePath, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Creates a directory, with `parents` also those above it."""
        where = self._session.absolute(path)
        if parents and not exist_ok and await self.exists(where):
            parents = False
        params = {"path": to_uri(where), "recursive": parents}
        try:
            await self._session.call("fs/createDirectory", params, path=where)
        except FileExistsError:
            if not exist_ok or not await self.is_dir(where):
                raise

    async def remove(self, path: RemotePath, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Removes a file, a link or an empty directory, with `recursive` also a whole tree."""
        where = self._session.absolute(path)
        params = {"path": to_uri(where), "recursive": recursive, "force": missing_ok}
        await self._session.call("fs/remove", params, path=where)

    async def copy(self, source: RemotePath, destination: RemotePath, *, recursive: bool = False) -> None:
        """Copies a file, or with `recursive` a tree, on the machine."""
        first, second = self._session.absolute(source), self._session.absolute(destination)
        params = {"sourcePath": to_uri(first), "destinationPath": to_uri(second), "recursive": recursive}
        await self._session.call("fs/copy", params, path=first)

    async def move(self, source: RemotePath, destination: RemotePath, *, replace: bool = True) -> None:
        """Renames a file or a directory."""
        self._session.require("fsRename", "renaming files")
        first, second = self._session.absolute(source), self._session.absolute(destination)
        params = {"sourcePath": to_uri(first), "destinationPath": to_uri(second), "noReplace": not replace}
        await self._session.call("fs/rename", params, path=first)

    async def symlink(self, path: RemotePath, target: RemotePath, *, replace: bool = False) -> None:
        """Creates the link `path` with the text `target`."""
        self._session.require("fsSymlink", "creating links")
        where = self._session.absolute(path)
        raw = os.fsencode(os.fspath(target))
        params: dict[str, Any] = {"path": to_uri(where), "targetBase64": encode(raw), "replace": replace}
        await self._session.call("fs/symlink", params, path=where)

    async def chmod(self, path: RemotePath, mode: int) -> None:
        """Sets the permission bits."""
        self._session.require("fsSetPermissions", "setting permissions")
        where = self._session.absolute(path)
        await self._session.call("fs/setPermissions", {"path": to_uri(where), "mode": mode}, path=where)

    # Between this machine and that one

    async def upload(
        self,
        source: str | os.PathLike[str],
        destination: RemotePath,
        *,
        if_absent: bool = False,
        progress: Callable[[Progress], object] | None = None,
    ) -> int:
        """Copies a local file or tree to `destination`, which becomes its path; returns the bytes.

        Parents are created, permission bits and links are kept; pipes, sockets and devices are left out. `if_absent`
        creates a file and never replaces one, and raises `Ambiguous` if the connection broke before the answer.
        """
        local, where = Path(source), self._session.absolute(destination)
        if if_absent and local.is_dir():
            raise ValueError(f"if_absent is for one file, and {local} is a directory")
        return await upload(self, self._session, local, where, self.conditions(None, if_absent, None), progress)

    async def download(
        self,
        source: RemotePath,
        destination: str | os.PathLike[str],
        *,
        progress: Callable[[Progress], object] | None = None,
    ) -> int:
        """Copies a remote file or tree to `destination`, which becomes its path; returns the bytes."""
        return await download(self, self._session, self._session.absolute(source), Path(destination), progress)


class AsyncWalk:
    """Iterates over the directories of a tree."""

    def __init__(self, files: AsyncFiles, path: str) -> None:
        self._files = files
        self._pending = [path]
        self._below: list[Entry] = []

    def __aiter__(self) -> AsyncWalk:
        return self

    async def __anext__(self) -> tuple[str, list[Entry], list[Entry]]:
        self._pending += [entry.path for entry in reversed(self._below)]
        self._below = []
        if not self._pending:
            raise StopAsyncIteration
        where = self._pending.pop()
        entries = await self._files.list(where)
        self._below = [entry for entry in entries if entry.is_dir and not entry.is_symlink]
        return where, self._below, [entry for entry in entries if not entry.is_dir or entry.is_symlink]
