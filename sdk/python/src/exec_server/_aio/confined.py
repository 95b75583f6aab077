"""File calls under a sandbox policy, or with the rights of another user."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .._errors import Unsupported
from .link import Call
from .session import AsyncSession

# These name a handle, a search or a watch, whose first request had the members.
_WITHOUT = {
    "fs/readBlock",
    "fs/writeBlock",
    "fs/close",
    "fs/nextPage",
    "fs/cancelSearch",
    "fs/readChanges",
    "fs/unwatch",
}


class AsyncConfined:
    """A session whose file calls have the members `sandbox` or `user`; everything else is that of the session."""

    def __init__(self, session: AsyncSession, members: Mapping[str, Any]) -> None:
        self._session = session
        self._members = members

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def call(self, method: str, params: dict[str, Any] | None, **options: Any) -> Any:
        """Calls a method of the session."""
        return await self._session.call(method, self._confined(method, params), **options)

    async def start_call(self, method: str, params: dict[str, Any] | None, **options: Any) -> Call:
        """Sends a request of the session."""
        return await self._session.start_call(method, self._confined(method, params), **options)

    def absolute(self, path: str | os.PathLike[str]) -> str:
        """A remote path; the home of another user is not known."""
        user = self._members.get("user")
        first = os.fspath(path).split("/", 1)[0]
        host: dict[str, Any] = self._session.info.get("host") or {}
        if first == "~" and user is not None and user != host.get("user"):
            told = f"{os.fspath(path)!r} begins in the home of the server's user, not of {user!r}; pass an absolute path"
            raise ValueError(told)
        return self._session.absolute(path)

    def _confined(self, method: str, params: dict[str, Any] | None) -> dict[str, Any] | None:
        if method in _WITHOUT:
            return params
        if not method.startswith("fs/"):
            raise Unsupported(f"`{method}` takes neither a sandbox nor another user")
        return {**(params or {}), **self._members}
