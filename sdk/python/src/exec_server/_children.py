"""The child that carries a connection on its stdin and stdout."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from typing import cast

from ._target import Child

_PIPE_BYTES = 1024 * 1024
_EXIT_TIMEOUT = 5.0
_LAST_WORDS = 4096


def start_child(child: Child) -> subprocess.Popen[bytes]:
    """Starts it, with pipes that hold whole messages."""
    process = subprocess.Popen(
        list(child.argv),
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=cast("dict[str, str] | None", child.env),
        start_new_session=True,
    )
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        # A user who has many pipes already, or a system other than Linux, keeps the usual size.
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return process


def farewell_of(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """The exit code and the last words of a child that has closed its stdout."""
    assert process.stderr is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_EXIT_TIMEOUT)
        # A program that it left behind may keep the pipe open.
        os.set_blocking(process.stderr.fileno(), False)
        words = process.stderr.read(_LAST_WORDS) or b""
        return process.returncode, words.decode(errors="replace").strip()
    return -1, ""


def end_child(process: subprocess.Popen[bytes]) -> None:
    """Kills it, waits for its end, and closes the pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
