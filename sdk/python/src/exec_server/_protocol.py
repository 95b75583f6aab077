"""Between Python values and the JSON of the protocol."""

from __future__ import annotations

import os
import uuid
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

from ._types import AppliedEdit, Change, Edited, Entry, Exit, Found, Match, ProcessInfo, Stat, Usage, Written

_SAFE = "/!$&'()*+,-.:;=@[]^_|~"
_OPAQUE = "file:///%00/bad/path/"

SIGNALS = {
    "INT": "interrupt",
    "TERM": "terminate",
    "KILL": "kill",
    "HUP": "hangup",
    "QUIT": "quit",
    "USR1": "usr1",
    "USR2": "usr2",
    "STOP": "stop",
    "CONT": "continue",
    "WINCH": "winch",
}


def encode(data: bytes | bytearray | memoryview) -> str:
    """Base64 as the protocol has it."""
    return b2a_base64(data, newline=False).decode("ascii")


def decode(text: str | memoryview) -> bytes:
    """Bytes of base64."""
    return a2b_base64(text)


def chunk_of(payload: Mapping[str, Any]) -> bytes | memoryview:
    """The bytes of the member `chunk`, which is base64 or, in a binary message, bytes; a view is of the message."""
    chunk = payload["chunk"]
    return a2b_base64(chunk) if isinstance(chunk, str) else chunk


def new_id() -> str:
    """A random id that fits processes and file handles."""
    return uuid.uuid4().hex


def native(path: str | os.PathLike[str]) -> str:
    """A remote path as text."""
    return os.fspath(path)


def to_uri(path: str) -> str:
    """The URI of an absolute path; bytes that are not UTF-8 come from `surrogateescape`."""
    raw = os.fsencode(path)
    first = raw.lstrip(b"/").split(b"/", 1)[0]
    # A first name like a drive would be read as a Windows path.
    if len(first) == 2 and first[1:] == b":" and first[:1].isalpha():
        return _OPAQUE + urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")
    return "file://" + quote_from_bytes(raw, safe=_SAFE)


def from_uri(uri: str) -> str:
    """The path of a `file:` URI."""
    if uri.startswith(_OPAQUE):
        text = uri[len(_OPAQUE) :]
        return os.fsdecode(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    path = uri[len("file://") :] if uri.startswith("file://") else uri[len("file:") :]
    return os.fsdecode(unquote_to_bytes(path)) or "/"


def signal_name(signal: str | int) -> str:
    """The name on the wire of `"int"`, `"SIGINT"` or `signal.SIGINT`."""
    if isinstance(signal, int):
        import signal as signals

        signal = signals.Signals(signal).name
    short = signal.upper().removeprefix("SIG")
    if short in SIGNALS:
        return SIGNALS[short]
    if signal.lower() in SIGNALS.values():
        return signal.lower()
    raise ValueError(f"unknown signal {signal!r}; known are {', '.join(SIGNALS)}")


def sandbox(policy: str | Mapping[str, Any] | None, cwd: str, network: bool) -> Mapping[str, Any] | None:
    """The `sandbox` object of a named policy, or the object as it was given."""
    if policy is None:
        if network:
            raise ValueError("network=True goes with a sandbox; without one there is a network")
        return None
    if not isinstance(policy, str):
        return policy

    def special(kind: str, access: str) -> dict[str, Any]:
        return {"path": {"type": "special", "value": {"kind": kind}}, "access": access}

    entries = [special("root", "read")]
    if policy == "workspace-write":
        entries += [special(kind, "write") for kind in ("project_roots", "slash_tmp", "tmpdir")]
    elif policy != "read-only":
        raise ValueError(f"unknown sandbox {policy!r}; expected 'read-only', 'workspace-write' or a policy object")
    uri = to_uri(cwd)
    return {
        "permissions": {
            "type": "managed",
            "network": "enabled" if network else "restricted",
            "file_system": {"type": "restricted", "entries": entries},
        },
        "windowsSandboxLevel": "disabled",
        "policyContext": {"cwd": uri, "workspaceRoots": [uri]},
    }


_LIMITS = {
    "memory": "memoryBytes",
    "cpu_percent": "cpuPercent",
    "pids": "pids",
    "file_size": "fileSizeBytes",
    "open_files": "openFiles",
    "tmpfs": "tmpfsBytes",
}


def limits(given: Mapping[str, int]) -> dict[str, int]:
    """Limits by the names of the wire."""
    unknown = set(given) - set(_LIMITS) - set(_LIMITS.values())
    if unknown:
        raise ValueError(f"unknown limit {sorted(unknown)[0]!r}; known are {', '.join(_LIMITS)}")
    return {_LIMITS.get(name, name): value for name, value in given.items()}


def env_policy(inherit: str) -> dict[str, Any]:
    """What a process inherits from the server; names that look like secrets are dropped."""
    if inherit not in ("all", "core", "none"):
        raise ValueError(f"inherit is 'all', 'core' or 'none', not {inherit!r}")
    return {
        "inherit": inherit,
        "ignoreDefaultExcludes": False,
        "exclude": [],
        "set": {},
        "includeOnly": [],
        "excludeSecrets": True,
    }


def argv_of(command: str | Sequence[str], shell: bool, shell_path: str) -> list[str]:
    """The words of a command; text needs `shell=True`."""
    if isinstance(command, str):
        if not shell:
            raise TypeError("a command as text needs shell=True; without a shell, pass a list of words")
        return [shell_path, "-c", command]
    words = [os.fspath(word) for word in command]
    if shell:
        raise TypeError("shell=True takes the command as one text, not as a list")
    if not words:
        raise ValueError("the command is empty")
    return words


def exit_of(params: Mapping[str, Any]) -> Exit:
    """How a process ended, from `process/exited` or `process/read`."""
    usage = params.get("rusage")
    duration = params.get("durationMs")
    return Exit(
        returncode=int(params["exitCode"]),
        signal=params.get("signal"),
        reason=params.get("reason"),
        duration=None if duration is None else duration / 1000,
        rusage=None
        if usage is None
        else Usage(usage["userMs"] / 1000, usage["systemMs"] / 1000, usage.get("maxRssBytes")),
        sandbox_denied=bool(params.get("sandboxDenied")),
    )


def process_info(item: Mapping[str, Any], session_id: str) -> ProcessInfo:
    """One process of `process/list` or `session/list`."""
    return ProcessInfo(
        id=item["processId"],
        pid=item["pid"],
        argv=tuple(item["argv"]),
        cwd=from_uri(item["cwd"]),
        tty=item["tty"],
        user=item.get("user"),
        started_at=item["startedAtMs"] / 1000,
        session_id=session_id,
        exited=item["exited"],
        closed=item["closed"],
        returncode=item.get("exitCode"),
    )


def stat_of(path: str, item: Mapping[str, Any]) -> Stat:
    """Metadata from `fs/getMetadata` or a detailed listing."""
    kind = item.get("kind")
    if kind is None:
        kind = "directory" if item["isDirectory"] else "file" if item["isFile"] else "unknown"
    created = item.get("createdAtMs") or 0
    return Stat(
        path=path,
        kind=kind,
        size=item["size"],
        modified=item["modifiedAtMs"] / 1000,
        created=created / 1000 if created else None,
        is_symlink=item["isSymlink"],
        mode=item.get("mode"),
        uid=item.get("uid"),
        gid=item.get("gid"),
        owner=item.get("ownerName"),
        group=item.get("groupName"),
        links=item.get("nlink"),
        inode=item.get("inode"),
        version=item.get("versionTag"),
        link_target=_link_target(item),
    )


def _link_target(item: Mapping[str, Any]) -> str | None:
    raw = item.get("linkTargetBase64")
    return item.get("linkTarget") if raw is None else os.fsdecode(decode(raw))


def entry_of(directory: str, item: Mapping[str, Any]) -> Entry:
    """One entry of `fs/readDirectory`."""
    uri, metadata = item.get("uri"), item.get("metadata")
    path = from_uri(uri) if uri else directory.rstrip("/") + "/" + item["fileName"]
    return Entry(
        name=path.rsplit("/", 1)[1],
        path=path,
        is_file=item["isFile"],
        is_dir=item["isDirectory"],
        is_symlink=bool(item.get("isSymlink")),
        stat=None if metadata is None else stat_of(path, metadata),
    )


def written_of(item: Mapping[str, Any]) -> Written:
    """The result of a write."""
    return Written(item.get("versionTag"), item.get("size"), bool(item.get("inPlace")))


def match_of(item: Mapping[str, Any]) -> Match:
    """A line of `fs/search`."""
    raw = item.get("textBase64")
    return Match(
        path=from_uri(item["path"]),
        line=item["line"],
        text=item["text"],
        ranges=[(begin, end) for begin, end in item["ranges"]],
        offset=item["offset"],
        before=item.get("before", ()),
        after=item.get("after", ()),
        raw=item["text"].encode() if raw is None else decode(raw),
        cut_before=item.get("cutBefore") or 0,
        cut_after=item.get("cutAfter") or 0,
    )


def found_of(item: Mapping[str, Any]) -> Found:
    """An entry of `fs/find`."""
    modified = item.get("modifiedAtMs")
    return Found(
        from_uri(item["path"]), item["kind"], item.get("size"), None if modified is None else modified / 1000
    )


def change_of(item: Mapping[str, Any]) -> Change:
    """A change of `fs/readChanges`."""
    old = item.get("from")
    return Change(item["kind"], from_uri(item["path"]), None if old is None else from_uri(old), item["seq"])


def edited_of(item: Mapping[str, Any]) -> Edited:
    """The result of `fs/edit`."""
    edits = [AppliedEdit(edit["replacements"], edit["line"]) for edit in item["edits"]]
    return Edited(edits, item["size"], item.get("versionTag"), bool(item.get("inPlace")))


def search_filter(
    globs: Sequence[str], types: Sequence[str], hidden: bool, ignore: bool, max_depth: int | None, max_size: int | None
) -> dict[str, Any]:
    """Which entries a search looks at."""
    return {
        "globs": _texts(globs, "globs"),
        "types": _texts(types, "types"),
        "hidden": hidden,
        "ignore": ignore,
        "maxDepth": max_depth,
        "maxFileBytes": max_size,
    }


def search_limits(max_matches: int | None, max_bytes: int | None, timeout: float | None) -> dict[str, Any]:
    """The bounds of a search."""
    given = {
        "maxMatches": max_matches,
        "maxBytes": max_bytes,
        "timeoutMs": None if timeout is None else max(int(timeout * 1000), 1),
    }
    return {name: value for name, value in given.items() if value is not None}


def _texts(given: Sequence[str], name: str) -> list[str]:
    if isinstance(given, str):
        raise TypeError(f"{name} is a list of texts, not one text")
    return list(given)
