"""A server of this machine, started on a private socket and ended with its owner."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

from ._errors import LinkError
from ._find_binary import find_binary

_START_TIMEOUT = 30.0
_STOP_TIMEOUT = 10.0


class LocalServer:
    """A running server; `stop` ends it, and so does the end of this process."""

    def __init__(self, binary: str | os.PathLike[str] | None = None, options: Sequence[str] = ()) -> None:
        self._directory = tempfile.mkdtemp(prefix="exec-server-")
        self.url = f"unix://{self._directory}/socket"
        argv = [str(find_binary(binary)), "--listen", self.url, "--exit-on-stdin-close", *options]
        with open(Path(self._directory) / "log", "wb") as log:
            # The pipe to its stdin closes when this process ends in any way.
            self._child = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        self._stop = weakref.finalize(self, _stop, self._child, self._directory, os.getpid())
        self._stop.atexit = False
        atexit.register(self._stop)
        self._await_ready()

    def stop(self) -> None:
        """Ends the server with everything that it runs."""
        self._stop()
        atexit.unregister(self._stop)

    def _await_ready(self) -> None:
        assert self._child.stdout is not None
        timer = threading.Timer(_START_TIMEOUT, self._child.kill)
        timer.daemon = True
        timer.start()
        line = self._child.stdout.readline()
        timer.cancel()
        if not line.strip():
            said = (Path(self._directory) / "log").read_text(errors="replace").strip()
            self.stop()
            raise LinkError(f"the local server did not start: {said or 'it said nothing'}")


def _stop(child: subprocess.Popen[bytes], directory: str, owner: int) -> None:
    # A fork shares the child's pipes, but must not end it.
    if os.getpid() != owner:
        return
    child.terminate()
    if child.stdin is not None:
        child.stdin.close()
    try:
        child.wait(_STOP_TIMEOUT)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()
    shutil.rmtree(directory, ignore_errors=True)
