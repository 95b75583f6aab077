"""Many commands: at once on one connection, and one after another without growing."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import anyio
import pytest

from exec_server import AsyncMachine

from .support import DEADLINE

MANY = 1000


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_thousand_commands_run_at_once_on_one_connection(url: str, backend: str) -> None:
    outputs: list[str] = []

    async def main() -> None:
        async with AsyncMachine.connect(url) as machine:
            session = machine.session_id

            async def one(number: int) -> None:
                outputs.append((await machine.run(["echo", str(number)], check=True)).stdout)

            async with anyio.create_task_group() as group:
                for number in range(MANY):
                    group.start_soon(one, number)
            assert machine.session_id == session

    anyio.run(main, backend=backend)
    assert sorted(map(int, outputs)) == list(range(MANY))


# Output of one round that is kept would be 25 MB; a round has no more than some objects of caches.
GROWTH = """
    import gc, os, sys, anyio
    from exec_server import AsyncMachine, Machine
    ROUND, BYTES = 250, 100_000
    def size():
        gc.collect()
        pages = int(open("/proc/self/statm").read().split()[1])
        return len(gc.get_objects()), pages * os.sysconf("SC_PAGE_SIZE")
    def command(machine):
        return machine.run(["head", "-c", str(BYTES), "/dev/zero"], text=False)
    def threads():
        with Machine.connect(sys.argv[1]) as machine:
            sizes = []
            for _ in range(2):
                for _ in range(ROUND):
                    assert len(command(machine).stdout) == BYTES
                sizes.append(size())
            return sizes
    async def tasks():
        async with AsyncMachine.connect(sys.argv[1]) as machine:
            sizes = []
            for _ in range(2):
                for _ in range(ROUND):
                    assert len((await command(machine)).stdout) == BYTES
                sizes.append(size())
            return sizes
    how = sys.argv[2]
    (objects, resident), (more_objects, more_resident) = threads() if how == "threads" else anyio.run(tasks, backend=how)
    assert more_objects - objects < ROUND // 2, (objects, more_objects)
    assert more_resident - resident < ROUND * BYTES // 3, (resident, more_resident)
    print("flat")
"""


@pytest.mark.parametrize("how", ["threads", "asyncio", "trio"])
def test_memory_does_not_grow_with_the_number_of_commands(url: str, how: str) -> None:
    program = [sys.executable, "-c", textwrap.dedent(GROWTH), url, how]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=5 * DEADLINE)
    assert (ran.stdout, ran.stderr) == ("flat\n", "")
