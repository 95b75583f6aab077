"""`run`: one command to its end."""

from __future__ import annotations

import signal

import pytest

from exec_server import AsyncMachine, CommandError, ProgramNotFound, TimeoutExpired, Unsupported

from .together import together

pytestmark = pytest.mark.anyio


async def test_a_result_has_both_streams_and_the_facts_of_the_exit(machine: AsyncMachine) -> None:
    result = await machine.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (result.stdout, result.stderr, result.returncode) == ("out\n", "err\n", 3)
    assert (result.signal, result.reason, result.sandbox_denied) == (None, "exited", False)
    assert result.duration is not None and result.rusage is not None and not result.ok
    assert list(result.argv) == ["sh", "-c", "echo out; echo err >&2; exit 3"]


async def test_a_failure_raises_only_when_asked(machine: AsyncMachine) -> None:
    assert (await machine.run(["true"], check=True)).ok
    with pytest.raises(CommandError, match="exited with 1:\nreason") as raised:
        await machine.run(["sh", "-c", "echo reason >&2; exit 1"], check=True)
    assert raised.value.result.returncode == 1
    with pytest.raises(CommandError, match="SIGKILL"):
        (await machine.run(["sh", "-c", "kill -9 $$"])).check()


async def test_a_shell_a_directory_variables_and_input(machine: AsyncMachine, place: str) -> None:
    result = await machine.run("pwd; echo $WORD; cat", shell=True, cwd=place, env={"WORD": "w ö"}, input="in\n")
    assert result.stdout == f"{place}\nw ö\nin\n"
    assert (await machine.run(["env"], inherit="none", env={"A": "b"})).stdout == "A=b\n"


async def test_bytes_are_exact_and_text_is_decoded_with_replacement(machine: AsyncMachine) -> None:
    every = bytes(range(256)) * 4000
    assert (await machine.run(["cat"], input=every, text=False)).stdout == every
    assert (await machine.run(["printf", "\\377a"])).stdout == "\N{REPLACEMENT CHARACTER}a"
    assert (await machine.run(["wc", "-c"], input=b"")).stdout.strip() == "0"


async def test_a_large_input_and_output_pass(machine: AsyncMachine) -> None:
    data = b"0123456789abcdef" * (1 << 20)
    result = await machine.run(["cat"], input=data, text=False)
    assert result.stdout == data


async def test_a_command_that_does_not_read_its_input_is_no_error(machine: AsyncMachine) -> None:
    assert (await machine.run(["true"], input=b"x" * 4_000_000)).returncode == 0


async def test_a_time_limit_ends_the_tree_and_keeps_the_output(machine: AsyncMachine, place: str) -> None:
    script = "echo before; (sleep 300; touch late) & sleep 300"
    with pytest.raises(TimeoutExpired) as raised:
        await machine.run(script, shell=True, cwd=place, timeout=0.3)
    assert isinstance(raised.value, TimeoutError)
    assert raised.value.stdout == "before\n" and raised.value.result.reason == "timeout"


async def test_a_signal_is_a_result(machine: AsyncMachine) -> None:
    result = await machine.run(["sh", "-c", "kill -TERM $$"])
    assert (result.returncode, result.signal, result.reason) == (128 + signal.SIGTERM, "SIGTERM", "signaled")


async def test_callbacks_get_the_output_in_pieces(machine: AsyncMachine) -> None:
    out: list[bytes] = []
    err: list[bytes] = []
    script = "echo a; echo b >&2"
    result = await machine.run(script, shell=True, on_stdout=out.append, on_stderr=err.append)
    assert (b"".join(out), b"".join(err), result.stdout, result.stderr) == (b"a\n", b"b\n", "", "")
    partly = await machine.run(script, shell=True, on_stdout=out.append)
    assert (partly.stdout, partly.stderr) == ("", "b\n")


async def test_an_error_in_a_callback_ends_the_command_and_is_raised(machine: AsyncMachine) -> None:
    def fail(data: bytes) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await machine.run("echo a; sleep 300", shell=True, on_stdout=fail)
    assert [item for item in await machine.ps() if not item.exited] == []


async def test_a_missing_program_and_directory_are_builtin_errors(machine: AsyncMachine, place: str) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program") as raised:
        await machine.run(["no-such-program"])
    assert isinstance(raised.value, ProgramNotFound)
    with pytest.raises(FileNotFoundError):
        await machine.run(["true"], cwd=place + "/missing")
    await machine.fs.write_text(place + "/data", "x")
    with pytest.raises(PermissionError):
        await machine.run([place + "/data"])


async def test_wrong_arguments_are_told_before_anything_is_sent(machine: AsyncMachine) -> None:
    with pytest.raises(TypeError, match="shell=True"):
        await machine.run("echo hi")
    with pytest.raises(TypeError, match="one text"):
        await machine.run(["echo", "hi"], shell=True)
    with pytest.raises(ValueError, match="empty"):
        await machine.run([])
    with pytest.raises(ValueError, match="unknown sandbox"):
        await machine.run(["true"], sandbox="strict")
    with pytest.raises(ValueError, match="unknown limit"):
        await machine.run(["true"], limits={"memories": 1})
    with pytest.raises(ValueError, match="inherit"):
        await machine.run(["true"], inherit="some")


async def test_limits_and_users_are_enforced_or_refused(machine: AsyncMachine) -> None:
    result = await machine.run(["sh", "-c", "ulimit -n"], limits={"open_files": 77})
    assert result.stdout == "77\n"
    if not machine.capabilities.get("processUser"):
        with pytest.raises(Unsupported, match="another user"):
            await machine.run(["true"], user="nobody")


async def test_a_sandbox_refuses_writes_and_tells(machine: AsyncMachine, place: str) -> None:
    if (machine.info.get("sandbox") or {}).get("level") in (None, "none", "unavailable"):
        pytest.skip("no sandbox on this machine")
    result = await machine.run("echo x > file", shell=True, cwd=place, sandbox="read-only")
    assert result.returncode != 0 and result.sandbox_denied
    assert (await machine.run("echo x > file", shell=True, cwd=place, sandbox="workspace-write")).ok


async def test_many_commands_at_once_share_one_connection(machine: AsyncMachine) -> None:
    count = 50

    async def one(number: int) -> str:
        return (await machine.run(["echo", str(number)])).stdout

    def job(number: int):
        return lambda: one(number)

    results = await together(*[job(number) for number in range(count)])
    assert results == [f"{number}\n" for number in range(count)]
