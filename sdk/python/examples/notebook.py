"""A notebook-like session: one interpreter stays alive on the machine, and cells are sent to it one by one.

Run it as `python notebook.py [TARGET]`.
"""

import json
import sys

from exec_server import Machine, Process

KERNEL = r"""
import contextlib, io, json, sys, traceback
names = {}
for line in sys.stdin:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(json.loads(line), "<cell>", "exec"), names)
        except Exception:
            traceback.print_exc(limit=0, file=out)
    print(json.dumps(out.getvalue()), flush=True)
"""


class Notebook:
    """A running interpreter; variables live from cell to cell."""

    def __init__(self, machine: Machine) -> None:
        self.kernel: Process = machine.start(["python3", "-c", KERNEL], stdin=True)
        self._answers = self.kernel.lines()

    def run(self, cell: str) -> str:
        """Runs a cell and returns what it printed."""
        self.kernel.write(json.dumps(cell) + "\n")
        return json.loads(next(self._answers))

    def close(self) -> None:
        self.kernel.close_stdin()
        self.kernel.wait()


def main() -> None:
    opened = Machine.connect(sys.argv[1]) if len(sys.argv) > 1 else Machine.local()
    with opened as machine:
        notebook = Notebook(machine)
        for cell in ["x = 20", "y = x * 2 + 2\nprint(y)", "print(1 / 0)", "print(x, y)"]:
            print(f"> {cell!r}\n{notebook.run(cell)}", end="")
        notebook.close()


if __name__ == "__main__":
    main()
