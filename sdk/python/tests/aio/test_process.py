"""`start`, `attach` and `ps`: processes that are followed."""

from __future__ import annotations

from typing import Any

import pytest

from exec_server import AsyncMachine, RemoteError, StdinClosed

pytestmark = pytest.mark.anyio


async def test_output_is_iterated_in_its_order_until_the_end(machine: AsyncMachine) -> None:
    process = await machine.start("echo a; sleep 0.1; echo b >&2; sleep 0.1; echo c", shell=True)
    seen: list[tuple[str, bytes]] = []
    numbers: list[int] = []
    async for output in process.output:
        seen.append((output.stream, output.data))
        numbers.append(output.seq)
    assert seen == [("stdout", b"a\n"), ("stderr", b"b\n"), ("stdout", b"c\n")]
    assert numbers == sorted(numbers)
    assert await process.wait() == 0 and process.is_closed and process.exit is not None


async def test_a_conversation_over_stdin(machine: AsyncMachine) -> None:
    async with machine.start(["cat"], stdin=True) as process:
        lines = process.lines()
        for word in ["one", "zwölf", "three"]:
            await process.write(word + "\n")
            assert await anext_of(lines) == word
        await process.close_stdin()
        assert await process.wait() == 0
        with pytest.raises(StdinClosed) as raised:
            await process.write("late")
        assert isinstance(raised.value, BrokenPipeError)


async def anext_of(items: Any) -> Any:
    async for item in items:
        return item


async def test_lines_are_whole_and_the_last_may_have_no_end(machine: AsyncMachine) -> None:
    process = await machine.start(["printf", "a\\r\\nb\\n\\nlast"])
    lines: list[str] = []
    async for line in process.lines():
        lines.append(line)
    assert lines == ["a", "b", "", "last"]


async def test_a_terminal_has_a_size_and_is_resized(machine: AsyncMachine) -> None:
    async with machine.start("stty size; read x; stty size", shell=True, pty=(30, 100)) as process:
        lines = process.lines()
        assert await anext_of(lines) == "30 100"
        await process.resize(40, 120)
        await process.write("\n")
        rest: list[str] = []
        async for line in lines:
            rest.append(line)
        assert "40 120" in rest


async def test_signals_reach_the_process(machine: AsyncMachine) -> None:
    script = "trap 'echo got; exit 5' INT; echo ready; while :; do sleep 0.05; done"
    async with machine.start(script, shell=True) as process:
        lines = process.lines()
        assert await anext_of(lines) == "ready"
        await process.signal("int")
        assert await anext_of(lines) == "got"
        assert await process.wait() == 5
    with pytest.raises(ValueError, match="unknown signal"):
        await process.signal("SIGNONSENSE")


async def test_stop_asks_first_and_kills_after_the_grace(machine: AsyncMachine) -> None:
    polite = await machine.start("trap 'exit 7' TERM; echo ready; while :; do sleep 0.05; done", shell=True)
    assert await anext_of(polite.lines()) == "ready"
    assert await polite.stop(grace=30) == 7
    deaf = await machine.start("trap '' TERM; echo ready; while :; do sleep 0.05; done", shell=True)
    assert await anext_of(deaf.lines()) == "ready"
    assert await deaf.stop(grace=0.2) == 137
    assert deaf.exit is not None and deaf.exit.signal == "SIGKILL"


async def test_wait_with_a_time_limit_leaves_the_process_running(machine: AsyncMachine) -> None:
    async with machine.start(["sleep", "300"]) as process:
        with pytest.raises(TimeoutError, match="still running"):
            await process.wait(timeout=0.05)
        assert process.returncode is None
    assert process.returncode == 137


async def test_wait_without_reading_does_not_block_a_chatty_process(machine: AsyncMachine) -> None:
    size = 12 * 1024 * 1024
    process = await machine.start(["head", "-c", str(size), "/dev/zero"])
    assert await process.wait() == 0
    assert len(await process.read()) == size


async def test_a_slow_reader_slows_the_process_and_loses_nothing(machine: AsyncMachine) -> None:
    size = 100 * 1024 * 1024
    process = await machine.start(["head", "-c", str(size), "/dev/zero"])
    total = 0
    calls = 0
    async for output in process.output:
        total += len(output.data)
        # Other calls go on although unread output waits.
        if total > calls * 10_000_000:
            calls += 1
            assert (await machine.run(["echo", "hi"])).stdout == "hi\n"
    assert total == size


async def test_an_exception_inside_with_ends_the_process(machine: AsyncMachine) -> None:
    with pytest.raises(KeyError):
        async with machine.start(["sleep", "300"]) as process:
            raise KeyError("mine")
    assert process.returncode == 137


async def test_ps_lists_and_attach_follows_from_a_number(machine: AsyncMachine) -> None:
    script = "echo one; read x; echo two"
    process = await machine.start(script, shell=True, stdin=True, id="job")
    first = await anext_of(process.output)
    listed = {item.id: item for item in await machine.ps()}
    assert list(listed["job"].argv)[-1] == script and not listed["job"].exited
    assert any(item.id == "job" for item in await machine.ps(all=True))
    async with AsyncMachine.connect(machine.target) as other:
        with pytest.raises(RemoteError, match="belongs to another session"):
            await other.attach("job")
    with pytest.raises(RemoteError, match="unknown process"):
        await machine.attach("nothing")
    same = await machine.attach("job")
    assert same is process
    await process.write("\n")
    assert await process.wait() == 0
    await process.wait_closed()
    again = await machine.attach("job", after=first.seq)
    assert await again.read() == b"two\n" and again.returncode == 0


async def test_a_detached_process_is_found_by_the_next_client_of_the_session(url: str) -> None:
    async with AsyncMachine.connect(url) as first:
        process = await first.start("echo one; read x; echo two", shell=True, stdin=True)
        assert await anext_of(process.lines()) == "one"
        name = await process.detach(linger=60)
        session = first.session_id
        left = await first.start(["sleep", "300"])
    async with AsyncMachine.connect(url, session=session) as second:
        assert second.session_id == session
        again = await second.attach(name)
        await again.write("\n")
        assert (await again.read()).endswith(b"two\n")
        assert await (await second.attach(left.id)).wait() == 137
