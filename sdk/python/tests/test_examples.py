"""The examples of the documentation run as they are printed there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from .support import DEADLINE, CuttingProxy

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert (ran.returncode, ran.stderr) == (code, ""), ran
    return ran.stdout


def test_the_agent_loop_works_locally_and_over_a_link_that_breaks(proxy: CuttingProxy) -> None:
    local = run("agent_loop.py")
    assert "exit 0: 20000\n" in local and "exit 0: 200010000\n" in local and "timed out after 2 s" in local
    proxy.smallest, proxy.largest = 4_000, 8_000
    proxy.is_cutting = True
    assert run("agent_loop.py", proxy.url) == local
    assert proxy.cuts > 0


def test_the_parallel_test_runner_tells_which_tests_fail(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "word").write_text("hello\n")
    for number in range(12):
        (tmp_path / f"test_{number:02}.sh").write_text(f"test {number} -ne 7 && grep -q hello data/word\n")
    out = run("parallel_tests.py", str(tmp_path), code=1)
    assert "test_07.sh: failed (1)\n" in out and out.count(": ok\n") == 11


def test_the_notebook_keeps_its_variables() -> None:
    out = run("notebook.py")
    assert "> 'y = x * 2 + 2\\nprint(y)'\n42\n" in out and "ZeroDivisionError" in out and out.endswith("20 42\n")
