# Generated from aio/test_process.py by tools/unasync.py; change that file.
"""`start`, `attach` and `ps`: processes that are followed."""

from __future__ import annotations

from typing import Any

import pytest

from exec_server import Machine, RemoteError, StdinClosed


def test_output_is_iterated_in_its_order_until_the_end(machine: Machine) -> None:
    process = machine.start("echo a; sleep 0.1; echo b >&2; sleep 0.1; echo c", shell=True)
    seen: list[tuple[str, bytes]] = []
    numbers: list[int] = []
    for output in process.output:
        seen.append((output.stream, output.data))
        numbers.append(output.seq)
    assert seen == [("stdout", b"a\n"), ("stderr", b"b\n"), ("stdout", b"c\n")]
    assert numbers == sorted(numbers)
    assert process.wait() == 0 and process.is_closed and process.exit is not None


def test_a_conversation_over_stdin(machine: Machine) -> None:
    with machine.start(["cat"], stdin=True) as process:
        lines = process.lines()
        for word in ["one", "zwölf", "three"]:
            process.write(word + "\n")
            assert anext_of(lines) == word
        process.close_stdin()
        assert process.wait() == 0
        with pytest.raises(StdinClosed) as raised:
            process.write("late")
        assert isinstance(raised.value, BrokenPipeError)


def anext_of(items: Any) -> Any:
    for item in items:
        return item


def test_lines_are_whole_and_the_last_may_have_no_end(machine: Machine) -> None:
    process = machine.start(["printf", "a\\r\\nb\\n\\nlast"])
    lines: list[str] = []
    for line in process.lines():
        lines.append(line)
    assert lines == ["a", "b", "", "last"]


def test_a_terminal_has_a_size_and_is_resized(machine: Machine) -> None:
    with machine.start("stty size; read x; stty size", shell=True, pty=(30, 100)) as process:
        lines = process.lines()
        assert anext_of(lines) == "30 100"
        process.resize(40, 120)
        process.write("\n")
        rest: list[str] = []
        for line in lines:
            rest.append(line)
        assert "40 120" in rest


def test_signals_reach_the_process(machine: Machine) -> None:
    script = "trap 'echo got; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    with machine.start(script, shell=True) as process:
        lines = process.lines()
        assert anext_of(lines) == "ready"
        process.signal("int")
        assert anext_of(lines) == "got"
        assert process.wait() == 5
    with pytest.raises(ValueError, match="unknown signal"):
        process.signal("SIGNONSENSE")


def test_stop_asks_first_and_kills_after_the_grace(machine: Machine) -> None:
    polite = machine.start("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done", shell=True)
    assert anext_of(polite.lines()) == "ready"
    assert polite.stop(grace=30) == 7
    deaf = machine.start("trap '' TERM; echo ready; while :; do sleep 0.05; done", shell=True)
    assert anext_of(deaf.lines()) == "ready"
    assert deaf.stop(grace=0.2) == 137
    assert deaf.exit is not None and deaf.exit.signal == "SIGKILL"


def test_wait_with_a_time_limit_leaves_the_process_running(machine: Machine) -> None:
    with machine.start(["sleep", "300"]) as process:
        with pytest.raises(TimeoutError, match="still running"):
            process.wait(timeout=0.05)
        assert process.returncode is None
    assert process.returncode == 137


def test_wait_without_reading_does_not_block_a_chatty_process(machine: Machine) -> None:
    size = 12 * 1024 * 1024
    process = machine.start(["head", "-c", str(size), "/dev/zero"])
    assert process.wait() == 0
    assert len(process.read()) == size


def test_a_slow_reader_slows_the_process_and_loses_nothing(machine: Machine) -> None:
    size = 100 * 1024 * 1024
    process = machine.start(["head", "-c", str(size), "/dev/zero"])
    total = 0
    calls = 0
    for output in process.output:
        total += len(output.data)
        # Other calls go on although unread output waits.
        if total > calls * 10_000_000:
            calls += 1
            assert (machine.run(["echo", "hi"])).stdout == "hi\n"
    assert total == size


def test_an_exception_inside_with_ends_the_process(machine: Machine) -> None:
    with pytest.raises(KeyError):
        with machine.start(["sleep", "300"]) as process:
            raise KeyError("mine")
    assert process.returncode == 137


def test_ps_lists_and_attach_follows_from_a_number(machine: Machine) -> None:
    script = "echo one; read x; echo two"
    process = machine.start(script, shell=True, stdin=True, id="job")
    first = anext_of(process.output)
    listed = {item.id: item for item in machine.ps()}
    assert list(listed["job"].argv)[-1] == script and not listed["job"].exited
    assert any(item.id == "job" for item in machine.ps(all=True))
    with Machine.connect(machine.target) as other:
        with pytest.raises(RemoteError, match="belongs to another session"):
            other.attach("job")
    with pytest.raises(RemoteError, match="unknown process"):
        machine.attach("nothing")
    same = machine.attach("job")
    assert same is process
    process.write("\n")
    assert process.wait() == 0
    process.wait_closed()
    again = machine.attach("job", after=first.seq)
    assert again.read() == b"two\n" and again.returncode == 0


def test_a_detached_process_is_found_by_the_next_client_of_the_session(url: str) -> None:
    with Machine.connect(url) as first:
        process = first.start("echo one; read x; echo two", shell=True, stdin=True)
        assert anext_of(process.lines()) == "one"
        name = process.detach(linger=60)
        session = first.session_id
        left = first.start(["sleep", "300"])
    with Machine.connect(url, session=session) as second:
        assert second.session_id == session
        again = second.attach(name)
        again.write("\n")
        assert (again.read()).endswith(b"two\n")
        assert (second.attach(left.id)).wait() == 137
