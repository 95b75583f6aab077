"""Run commands, edit files and make HTTP requests on another machine, over connections that may break.

    from exec_server import Machine

    with Machine.local() as machine:
        print(machine.run(["uname", "-a"]).stdout)

`AsyncMachine` has the same methods for asyncio and trio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import (
    Ambiguous,
    AuthError,
    CommandError,
    EditMismatch,
    ExecServerError,
    InvalidPattern,
    LinkError,
    MachineClosed,
    OutputLost,
    ProgramNotFound,
    RemoteError,
    RemoteFileError,
    SearchLost,
    SessionLost,
    StdinClosed,
    TakenOver,
    TimeoutExpired,
    Unsupported,
    VersionMismatch,
)

if TYPE_CHECKING:
    from ._aio.files import AsyncFiles
    from ._aio.machine import AsyncMachine
    from ._aio.process import AsyncProcess
    from ._aio.search import AsyncSearch
    from ._aio.watch import AsyncWatch
    from ._find_binary import find_binary
    from ._sync.files import Files
    from ._sync.machine import Machine
    from ._sync.process import Process
    from ._sync.search import Search
    from ._sync.watch import Watch
    from ._types import (
        AppliedEdit,
        Change,
        Edit,
        Edited,
        Entry,
        Exit,
        Found,
        Match,
        Output,
        ProcessInfo,
        Progress,
        Response,
        Result,
        Stat,
        Unreadable,
        Usage,
        Written,
    )

    __version__: str

__all__ = [
    "Ambiguous",
    "AppliedEdit",
    "AsyncFiles",
    "AsyncMachine",
    "AsyncProcess",
    "AsyncSearch",
    "AsyncWatch",
    "AuthError",
    "Change",
    "CommandError",
    "Edit",
    "EditMismatch",
    "Edited",
    "Entry",
    "ExecServerError",
    "Exit",
    "Files",
    "Found",
    "InvalidPattern",
    "LinkError",
    "Machine",
    "MachineClosed",
    "Match",
    "Output",
    "OutputLost",
    "Process",
    "ProcessInfo",
    "ProgramNotFound",
    "Progress",
    "RemoteError",
    "RemoteFileError",
    "Response",
    "Result",
    "Search",
    "SearchLost",
    "SessionLost",
    "Stat",
    "StdinClosed",
    "TakenOver",
    "TimeoutExpired",
    "Unreadable",
    "Unsupported",
    "Usage",
    "VersionMismatch",
    "Watch",
    "Written",
    "find_binary",
]

# Everything but errors is imported when it is used: a synchronous program never loads anyio.
_LAZY = {
    **dict.fromkeys(
        (
            "AppliedEdit",
            "Change",
            "Edit",
            "Edited",
            "Entry",
            "Exit",
            "Found",
            "Match",
            "Output",
            "ProcessInfo",
            "Progress",
            "Response",
            "Result",
            "Stat",
            "Unreadable",
            "Usage",
            "Written",
        ),
        "_types",
    ),
    "AsyncFiles": "_aio.files",
    "AsyncMachine": "_aio.machine",
    "AsyncProcess": "_aio.process",
    "AsyncSearch": "_aio.search",
    "AsyncWatch": "_aio.watch",
    "Files": "_sync.files",
    "Machine": "_sync.machine",
    "Process": "_sync.process",
    "Search": "_sync.search",
    "Watch": "_sync.watch",
    "find_binary": "_find_binary",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from ._version import version

        return version()
    if name in _LAZY:
        from importlib import import_module

        found = globals()[name] = getattr(import_module(f".{_LAZY[name]}", __name__), name)
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
