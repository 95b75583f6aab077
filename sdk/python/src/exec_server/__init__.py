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
    ExecServerError,
    LinkError,
    MachineClosed,
    OutputLost,
    ProgramNotFound,
    RemoteError,
    RemoteFileError,
    SessionLost,
    StdinClosed,
    TakenOver,
    TimeoutExpired,
    Unsupported,
    VersionMismatch,
)
from ._find_binary import find_binary
from ._types import Entry, Exit, Output, ProcessInfo, Progress, Response, Result, Stat, Usage, Written

if TYPE_CHECKING:
    from ._aio.files import AsyncFiles
    from ._aio.machine import AsyncMachine
    from ._aio.process import AsyncProcess
    from ._sync.files import Files
    from ._sync.machine import Machine
    from ._sync.process import Process

    __version__: str

__all__ = [
    "Ambiguous",
    "AsyncFiles",
    "AsyncMachine",
    "AsyncProcess",
    "AuthError",
    "CommandError",
    "Entry",
    "ExecServerError",
    "Exit",
    "Files",
    "LinkError",
    "Machine",
    "MachineClosed",
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
    "SessionLost",
    "Stat",
    "StdinClosed",
    "TakenOver",
    "TimeoutExpired",
    "Unsupported",
    "Usage",
    "VersionMismatch",
    "Written",
    "find_binary",
]

# Each half is imported when it is used: a synchronous program never loads anyio.
_LAZY = {
    "AsyncFiles": "_aio.files",
    "AsyncMachine": "_aio.machine",
    "AsyncProcess": "_aio.process",
    "Files": "_sync.files",
    "Machine": "_sync.machine",
    "Process": "_sync.process",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from ._version import version

        return version()
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
