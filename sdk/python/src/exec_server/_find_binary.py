"""Finds the `exec-server` program that belongs to this package."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

_VARIABLE = "EXEC_SERVER_BIN"


def find_binary(given: str | os.PathLike[str] | None = None) -> Path:
    """The program: as given, from `$EXEC_SERVER_BIN`, of the wheel, or from `PATH`."""
    named = given if given is not None else os.environ.get(_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise FileNotFoundError(f"there is no exec-server program at {path}")
        return path
    name = "exec-server" + (sysconfig.get_config_var("EXE") or "")
    places = [
        Path(sysconfig.get_path("scripts")),
        Path(sysconfig.get_path("scripts", f"{os.name}_user")),
        # `pip install --target DIR` puts scripts beside the package.
        Path(__file__).resolve().parent.parent / "bin",
        Path(sys.executable).parent,
    ]
    for place in places:
        path = place / name
        if path.is_file():
            return path
    found = shutil.which(name)
    if found:
        return Path(found)
    raise FileNotFoundError(
        f"the exec-server program is not installed; install the wheel, put it in PATH, or set ${_VARIABLE}"
    )
