# Generated from aio/test_run.py by tools/unasync.py; change that file.
"""`run`: one command to its end."""

from __future__ import annotations

import signal

import pytest

from exec_server import Machine, CommandError, ProgramNotFound, TimeoutExpired, Unsupported

from .together import together


def test_a_result_has_both_streams_and_the_facts_of_the_exit(machine: Machine) -> None:
    result = machine.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.stdout, result.stderr, result.returncode) == ("out\n", "err\n", 3)
    assert (result.signal, result.reason, result.sandbox_denied) == (None, "exited", False)
    assert result.duration is not None and result.rusage is not None and not result.ok
    assert list(result.argv) == ["sh", "-c", "echo out; echo err >&2; exit 3"]


def test_a_failure_raises_only_when_asked(machine: Machine) -> None:
    assert (machine.run(["true"], check=True)).ok
    with pytest.raises(CommandError, match="exited with 1:\nreason") as raised:
        machine.run(["sh", "-c", "echo reason >&2; exit 1"], check=True)
    assert raised.value.result.returncode == 1
    with pytest.raises(CommandError, match="SIGKILL"):
        (machine.run(["sh", "-c", "kill -9 $$"])).check()


def test_a_shell_a_directory_variables_and_input(machine: Machine, place: str) -> None:
    result = machine.run("pwd; echo $WORD; cat", shell=True, cwd=place, env={"WORD": "w ö"}, input="in\n")
    assert result.stdout == f"{place}\nw ö\nin\n"
    assert (machine.run(["env"], inherit="none", env={"A": "b"})).stdout == "A=b\n"


def test_bytes_are_exact_and_text_is_decoded_with_replacement(machine: Machine) -> None:
    every = bytes(range(256)) * 4000
    assert (machine.run(["cat"], input=every, text=False)).stdout == every
    assert (machine.run(["printf", "\\377a"])).stdout == "\N{REPLACEMENT CHARACTER}a"
    assert (machine.run(["wc", "-c"], input=b"")).stdout.strip() == "0"


def test_a_large_input_and_output_pass(machine: Machine) -> None:
    data = b"0123456789abcdef" * (1 << 20)
    result = machine.run(["cat"], input=data, text=False)
    assert result.stdout == data


def test_a_command_that_does_not_read_its_input_is_no_error(machine: Machine) -> None:
    assert (machine.run(["true"], input=b"x" * 4_000_000)).returncode == 0


def test_a_time_limit_ends_the_tree_and_keeps_the_output(machine: Machine, place: str) -> None:
    script = "echo before; (sleep 300; touch late) & sleep 300"
    with pytest.raises(TimeoutExpired) as raised:
        machine.run(script, shell=True, cwd=place, timeout=0.3)
    assert isinstance(raised.value, TimeoutError)
    assert raised.value.stdout == "before\n" and raised.value.result.reason == "timeout"


def test_a_signal_is_a_result(machine: Machine) -> None:
    result = machine.run(["sh", "-c", "kill -TERM $$"])
    assert (result.returncode, result.signal, result.reason) == (128 + signal.SIGTERM, "SIGTERM", "signaled")


def test_callbacks_get_the_output_in_pieces(machine: Machine) -> None:
    out: list[bytes] = []
    err: list[bytes] = []
    script = "echo a; echo b >&2"
    result = machine.run(script, shell=True, on_stdout=out.append, on_stderr=err.append)
    assert (b"".join(out), b"".join(err), result.stdout, result.stderr) == (b"a\n", b"b\n", "", "")
    partly = machine.run(script, shell=True, on_stdout=out.append)
    assert (partly.stdout, partly.stderr) == ("", "b\n")


def test_an_error_in_a_callback_ends_the_command_and_is_raised(machine: Machine) -> None:
    def fail(data: bytes) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        machine.run("echo a; sleep 300", shell=True, on_stdout=fail)
    assert [item for item in machine.ps() if not item.exited] == []


def test_a_missing_program_and_directory_are_builtin_errors(machine: Machine, place: str) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program") as raised:
        machine.run(["no-such-program"])
    assert isinstance(raised.value, ProgramNotFound)
    with pytest.raises(FileNotFoundError):
        machine.run(["true"], cwd=place + "/missing")
    machine.fs.write_text(place + "/data", "x")
    with pytest.raises(PermissionError):
        machine.run([place + "/data"])


def test_wrong_arguments_are_told_before_anything_is_sent(machine: Machine) -> None:
    with pytest.raises(TypeError, match="shell=True"):
        machine.run("echo hi")
    with pytest.raises(TypeError, match="one text"):
        machine.run(["echo", "hi"], shell=True)
    with pytest.raises(ValueError, match="empty"):
        machine.run([])
    with pytest.raises(ValueError, match="unknown sandbox"):
        machine.run(["true"], sandbox="strict")
    with pytest.raises(ValueError, match="unknown limit"):
        machine.run(["true"], limits={"memories": 1})
    with pytest.raises(ValueError, match="inherit"):
        machine.run(["true"], inherit="some")


def test_limits_and_users_are_enforced_or_refused(machine: Machine) -> None:
    result = machine.run(["sh", "-c", "ulimit -n"], limits={"open_files": 77})
    assert result.stdout == "77\n"
    if not machine.capabilities.get("processUser"):
        with pytest.raises(Unsupported, match="another user"):
            machine.run(["true"], user="nobody")


def test_a_sandbox_refuses_writes_and_tells(machine: Machine, place: str) -> None:
    if (machine.info.get("sandbox") or {}).get("level") in (None, "none", "unavailable"):
        pytest.skip("no sandbox on this machine")
    result = machine.run("echo x > file", shell=True, cwd=place, sandbox="read-only")
    assert result.returncode != 0 and result.sandbox_denied
    assert (machine.run("echo x > file", shell=True, cwd=place, sandbox="workspace-write")).ok


def test_many_commands_at_once_share_one_connection(machine: Machine) -> None:
    count = 50

    def one(number: int) -> str:
        return (machine.run(["echo", str(number)])).stdout

    def job(number: int):
        return lambda: one(number)

    results = together(*[job(number) for number in range(count)])
    assert results == [f"{number}\n" for number in range(count)]
