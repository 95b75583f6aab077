"""Resolves a target: a socket that Python connects to, or `exec-server dial` for everything else."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ._find_binary import find_binary

_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")


@dataclass(frozen=True)
class Socket:
    """A websocket without TLS: TCP, or a unix socket if `path` is set."""

    name: str
    host: str
    port: int
    resource: str = "/"
    path: str | None = None
    headers: Sequence[tuple[str, str]] = field(default=(), repr=False)


@dataclass(frozen=True)
class Child:
    """A program that speaks lines on its stdin and stdout."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] | None = field(default=None, repr=False)


def resolve(
    target: str | None,
    *,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    registry: str | None = None,
    environments: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    binary: str | os.PathLike[str] | None = None,
) -> Socket | Child:
    """How to reach a target: `ws://`, `wss://`, `unix://`, `stdio:COMMAND`, `env:NAME` or a name."""
    variables = {**os.environ, **(env or {})}
    if target is None:
        target = variables.get("EXEC_SERVER_URL", "").strip() or None
    if registry is not None and target is not None and target.startswith(("ws://", "wss://", "unix://", "stdio:")):
        raise ValueError(f"registry= goes with a target like env:NAME, not with {target!r}")
    if target is not None and ca_file is None and registry is None:
        if target.startswith("unix://"):
            headers = _headers(token, token_file, variables)
            return Socket(target, "localhost", 80, path=target[len("unix://") :], headers=headers)
        if target.startswith("ws://") and not any(variables.get(name) for name in _PROXIES):
            parts = urlsplit(target)
            if parts.hostname is None:
                raise ValueError(f"{target!r} has no host; expected ws://HOST:PORT")
            resource = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            headers = _headers(token, token_file, variables)
            return Socket(target, parts.hostname, parts.port or 80, resource, headers=headers)
    argv = [str(find_binary(binary)), "dial"]
    if token_file is not None:
        argv += ["--token-file", os.fspath(token_file)]
    if ca_file is not None:
        argv += ["--ca-file", os.fspath(ca_file)]
    if registry is not None:
        argv += ["--remote", registry]
    if environments is not None:
        argv += ["--environments", os.fspath(environments)]
    if target is not None:
        argv += ["--", target]
    # Tokens travel in variables, because every local user can read arguments.
    given = dict(env or {})
    if token is not None:
        given["EXEC_SERVER_TOKEN"] = token
        given["EXEC_SERVER_TOKEN_FILE"] = ""
        given["EXEC_SERVER_REMOTE_TOKEN"] = token
    return Child(target or "the default server", argv, {**os.environ, **given})


def _headers(
    token: str | None, token_file: str | os.PathLike[str] | None, variables: Mapping[str, str]
) -> list[tuple[str, str]]:
    if token is None:
        path = os.fspath(token_file) if token_file is not None else variables.get("EXEC_SERVER_TOKEN_FILE")
        token = Path(path).read_text().strip() if path else variables.get("EXEC_SERVER_TOKEN")
    return [("Authorization", f"Bearer {token}")] if token else []
