"""Whole programs: how they end, and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from .support import DEADLINE, binary


@pytest.fixture(params=["socket", "child"])
def target(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> str:
    """A server that is reached by a socket of Python, or through a child of the interpreter."""
    state = tmp_path / "state-of-child"
    return url if request.param == "socket" else f"stdio:{binary()} --listen stdio --state-dir {state}"


# On a loaded machine, the debug mode of asyncio warns about slow callbacks; what is wrong, it logs as an error.
_QUIET = "import logging\nlogging.getLogger('asyncio').setLevel(logging.ERROR)\n"


def run(program: str, *arguments: str, code: int = 0) -> tuple[str, str]:
    """Runs a program in another interpreter with all warnings on."""
    ran = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", _QUIET + textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert ran.returncode == code, ran
    return ran.stdout, ran.stderr


def is_running(mark: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                return True
        except OSError:
            continue
    return False


def assert_gone(mark: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while is_running(mark):
        assert time.monotonic() < deadline, f"{mark} is still running"
        time.sleep(0.02)


def test_an_interpreter_that_exits_with_processes_running_leaves_nothing(target: str, tmp_path: Path) -> None:
    # The mark is an argument of the process that must end.
    program = """
        import sys
        from exec_server import Machine
        machine = Machine.connect(sys.argv[1])
        process = machine.start(["sh", "-c", "sleep 3000; : " + sys.argv[2]])
        print("left")
    """
    out, err = run(program, target, f"{tmp_path}/mark-of-exit")
    assert (out, err) == ("left\n", "")
    assert_gone("mark-of-exit")
    assert_gone(f"{tmp_path}/state-of-child")


def test_a_local_server_ends_with_an_interpreter_that_does_not_close_it(tmp_path: Path) -> None:
    program = """
        import os, sys
        from exec_server import Machine
        machine = Machine.local(options=["--state-dir", sys.argv[1]])
        process = machine.start(["sleep", "3000"])
        print("left", flush=True)
        if sys.argv[2] == "hard":
            os._exit(3)
    """
    for how, code in [("soft", 0), ("hard", 3)]:
        state = f"{tmp_path}/state-{how}"
        out, err = run(program, state, how, code=code)
        assert (out, err) == ("left\n", "")
        assert_gone(state)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_event_loop_that_ends_with_an_open_machine_says_nothing(target: str, backend: str, tmp_path: Path) -> None:
    program = """
        import sys, anyio
        from exec_server import AsyncMachine
        async def main():
            machine = await AsyncMachine.connect(sys.argv[1])
            await machine.start(["sleep", "300"])
            print((await machine.run(["echo", "hi"])).stdout, end="")
        anyio.run(main, backend=sys.argv[2])
    """
    assert run(program, target, backend) == ("hi\n", "")
    assert_gone(f"{tmp_path}/state-of-child")


@pytest.mark.parametrize("how", ["threads", "asyncio", "trio"])
def test_a_machine_that_is_closed_or_cut_leaves_no_zombie(url: str, how: str) -> None:
    # A file of authorities makes the connection the work of `exec-server dial`.
    program = """
        import os, sys, anyio
        from exec_server import AsyncMachine, Machine
        def children():
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return "none"
            return "some"
        def child_of(machine):
            return machine._session.link._pipe._process
        def threads():
            with Machine.connect(sys.argv[1], ca_file=os.devnull) as machine:
                child_of(machine).kill()
                print(machine.run(["echo", "hi"]).stdout, end="")
        async def tasks():
            async with AsyncMachine.connect(sys.argv[1], ca_file=os.devnull) as machine:
                child_of(machine).kill()
                print((await machine.run(["echo", "hi"])).stdout, end="")
        threads() if sys.argv[2] == "threads" else anyio.run(tasks, backend=sys.argv[2])
        print(children())
    """
    assert run(program, url, how) == ("hi\nnone\n", "")


def test_a_cancelled_command_is_ended(url: str) -> None:
    program = """
        import sys, anyio
        from exec_server import AsyncMachine
        async def main():
            async with AsyncMachine.connect(sys.argv[1]) as machine:
                with anyio.move_on_after(0.2):
                    await machine.run(["sleep", "300"])
                print([item.returncode for item in await machine.ps()])
        for backend in ("asyncio", "trio"):
            anyio.run(main, backend=backend)
    """
    assert run(program, url) == ("[137]\n[137]\n", "")


def test_an_interrupt_ends_the_command_and_the_program(url: str) -> None:
    program = """
        import os, signal, sys, threading
        from exec_server import Machine
        # A background job of a shell ignores interrupts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        def interrupt():
            while not machine.ps():
                pass
            os.kill(os.getpid(), signal.SIGINT)
        with Machine.connect(sys.argv[1]) as machine:
            threading.Thread(target=interrupt, daemon=True).start()
            try:
                machine.run(["sleep", "300"])
            except KeyboardInterrupt:
                print([item.returncode for item in machine.ps()])
    """
    assert run(program, url) == ("[137]\n", "")


def test_a_fork_is_told_and_does_not_disturb_the_parent(target: str) -> None:
    program = """
        import os, sys, warnings
        from exec_server import Machine, MachineClosed
        warnings.simplefilter("ignore", DeprecationWarning)
        machine = Machine.connect(sys.argv[1])
        child = os.fork()
        if child == 0:
            try:
                machine.run(["true"])
            except MachineClosed as error:
                print(error, flush=True)
            machine.close()
            sys.exit(5)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, machine.run(["echo", "hi"]).stdout, end="")
        machine.close()
    """
    told = "this machine belongs to the parent process; connect again after a fork"
    assert run(program, target) == (f"{told}\n5 hi\n", "")


def test_a_dropped_machine_closes_its_connection(target: str, tmp_path: Path) -> None:
    program = """
        import gc, sys, threading
        from exec_server import Machine
        for _ in range(5):
            Machine.connect(sys.argv[1]).run(["true"])
        gc.collect()
        for thread in threading.enumerate():
            if thread is not threading.main_thread():
                thread.join(30)
        print(threading.active_count())
    """
    assert run(program, target) == ("1\n", "")
    assert_gone(f"{tmp_path}/state-of-child")


def test_a_synchronous_program_loads_no_event_loop() -> None:
    program = """
        import sys
        from exec_server import Machine
        print([name for name in ("anyio", "asyncio", "trio") if name in sys.modules])
    """
    assert run(program) == ("[]\n", "")


def test_the_generated_half_is_current() -> None:
    tool = Path(__file__).parent.parent / "tools" / "unasync.py"
    ran = subprocess.run([sys.executable, tool, "--check"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
