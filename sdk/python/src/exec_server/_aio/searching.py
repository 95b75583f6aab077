"""Searches and watches of `machine.fs`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal, overload

from .._protocol import found_of, from_uri, match_of, search_filter, search_limits, to_uri
from .._types import Found, Match
from .runtime import Opening, opening
from .search import AsyncSearch
from .session import AsyncSession
from .watch import AsyncWatch

RemotePath = str | os.PathLike[str]


class AsyncSearching:
    """The part of `machine.fs` that looks for files and follows their changes."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    @overload
    def search(
        self,
        pattern: str,
        path: RemotePath = ...,
        *,
        files_only: Literal[False] = False,
        literal: bool = ...,
        case: str = ...,
        word: bool = ...,
        before: int = ...,
        after: int = ...,
        binary: str = ...,
        globs: Sequence[str] = ...,
        types: Sequence[str] = ...,
        hidden: bool = ...,
        ignore: bool = ...,
        max_depth: int | None = ...,
        max_file_size: int | None = ...,
        max_matches: int | None = ...,
        max_bytes: int | None = ...,
        timeout: float | None = ...,
    ) -> AsyncSearch[Match]: ...

    @overload
    def search(
        self,
        pattern: str,
        path: RemotePath = ...,
        *,
        files_only: Literal[True],
        literal: bool = ...,
        case: str = ...,
        word: bool = ...,
        before: int = ...,
        after: int = ...,
        binary: str = ...,
        globs: Sequence[str] = ...,
        types: Sequence[str] = ...,
        hidden: bool = ...,
        ignore: bool = ...,
        max_depth: int | None = ...,
        max_file_size: int | None = ...,
        max_matches: int | None = ...,
        max_bytes: int | None = ...,
        timeout: float | None = ...,
    ) -> AsyncSearch[str]: ...

    def search(
        self,
        pattern: str,
        path: RemotePath = ".",
        *,
        files_only: bool = False,
        literal: bool = False,
        case: str = "sensitive",
        word: bool = False,
        before: int = 0,
        after: int = 0,
        binary: str = "skip",
        globs: Sequence[str] = (),
        types: Sequence[str] = (),
        hidden: bool = False,
        ignore: bool = True,
        max_depth: int | None = None,
        max_file_size: int | None = None,
        max_matches: int | None = None,
        max_bytes: int | None = None,
        timeout: float | None = None,
    ) -> AsyncSearch[Match] | AsyncSearch[str]:
        """Lines with a match of a regular expression, or of plain text with `literal`, in a tree or a file.

        `files_only` gives the paths of files with a match. `globs` are those of `.gitignore`, with `!` to leave out;
        `types` are names such as `py`; `ignore` honours `.gitignore`. Files come in any order.
        """
        self._session.require("fsSearch", "searching files")
        where = self._session.absolute(path)
        params = {
            "path": to_uri(where),
            "pattern": pattern,
            "literal": literal,
            "case": case,
            "word": word,
            "before": before,
            "after": after,
            "filesOnly": files_only,
            "binary": binary,
            "filter": search_filter(globs, types, hidden, ignore, max_depth, max_file_size),
            "limits": search_limits(max_matches, max_bytes, timeout),
        }
        if files_only:
            return AsyncSearch(
                self._session, "fs/search", params, where, lambda page: [from_uri(uri) for uri in page.get("files", ())]
            )
        return AsyncSearch(
            self._session, "fs/search", params, where, lambda page: [match_of(item) for item in page["matches"]]
        )

    def find(
        self,
        patterns: str | Sequence[str] = (),
        path: RemotePath = ".",
        *,
        kinds: Sequence[str] = (),
        detailed: bool = False,
        case: str = "sensitive",
        globs: Sequence[str] = (),
        types: Sequence[str] = (),
        hidden: bool = False,
        ignore: bool = True,
        max_depth: int | None = None,
        max_matches: int | None = None,
        timeout: float | None = None,
    ) -> AsyncSearch[Found]:
        """Names in a tree: globs of names at any depth or, with a slash, of paths below `path`; none means all.

        `kinds` are `file`, `directory`, `symlink` and `other`; `detailed` adds size and time. Names come in any order.
        """
        self._session.require("fsSearch", "finding files")
        where = self._session.absolute(path)
        params = {
            "path": to_uri(where),
            "patterns": [patterns] if isinstance(patterns, str) else list(patterns),
            "kinds": list(kinds),
            "detailed": detailed,
            "case": case,
            "filter": search_filter(globs, types, hidden, ignore, max_depth, None),
            "limits": search_limits(max_matches, None, timeout),
        }
        return AsyncSearch(
            self._session, "fs/find", params, where, lambda page: [found_of(item) for item in page["entries"]]
        )

    def watch(
        self, path: RemotePath = ".", *, recursive: bool = False, coalesce: float | None = None
    ) -> Opening[AsyncWatch]:
        """Follows the changes of a file or a directory, with `recursive` of everything below it.

        Changes within `coalesce` seconds (default 0.05) are reported together. Nothing is lost while the connection is
        interrupted; `SessionLost` if the session is gone.
        """
        self._session.require("fsWatch", "watching files")
        watch = AsyncWatch(self._session, self._session.absolute(path), recursive, coalesce)
        return opening(watch.open)
