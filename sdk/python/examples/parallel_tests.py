"""A parallel test runner: a tree is uploaded once, and every test file runs as its own command.

Run it as `python parallel_tests.py DIRECTORY [TARGET]`; each `test_*.sh` in the directory is one test.
"""

import sys
from pathlib import Path

import anyio

from exec_server import AsyncMachine, TimeoutExpired

AT_ONCE = 8


async def run_test(machine: AsyncMachine, directory: str, name: str, slots: anyio.Semaphore, failed: list[str]) -> None:
    async with slots:
        try:
            result = await machine.run(["sh", name], cwd=directory, timeout=60)
            verdict = "ok" if result.ok else f"failed ({result.returncode})"
        except TimeoutExpired:
            verdict = "timed out"
    print(f"{name}: {verdict}")
    if verdict != "ok":
        failed.append(name)


async def main() -> int:
    source = Path(sys.argv[1])
    failed: list[str] = []
    opened = AsyncMachine.connect(sys.argv[2]) if len(sys.argv) > 2 else AsyncMachine.local()
    async with opened as machine:
        directory = (await machine.run(["mktemp", "-d"], check=True)).stdout.strip()
        size = await machine.fs.upload(source, directory + "/tests")
        print(f"uploaded {size} bytes")
        slots = anyio.Semaphore(AT_ONCE)
        async with anyio.create_task_group() as group:
            for test in sorted(source.glob("test_*.sh")):
                group.start_soon(run_test, machine, directory + "/tests", test.name, slots, failed)
        await machine.fs.remove(directory, recursive=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(anyio.run(main))
