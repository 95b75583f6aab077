"""An agent loop: a model asks for commands, the machine runs them, also over a link that breaks.

Run it as `python agent_loop.py [TARGET]`. The model here is a list; put a real one in its place.
"""

import sys

from exec_server import Ambiguous, Machine, TimeoutExpired

SCRIPT = [
    "mkdir -p work && cd work && seq 1 20000 > numbers && wc -l < numbers",
    "cd work && awk '{ sum += $1 } END { print sum }' numbers",
    "sleep 60",
    "rm -r work",
]


def model(history: list[str]) -> str | None:
    """The next command, or none when the task is done."""
    return SCRIPT[len(history)] if len(history) < len(SCRIPT) else None


def observe(machine: Machine, directory: str, command: str) -> str:
    """Runs one command and describes what came of it."""
    try:
        result = machine.run(command, shell=True, cwd=directory, timeout=2)
    except TimeoutExpired as error:
        return f"timed out after {error.timeout} s; output until then: {error.stdout!r}"
    except Ambiguous as error:
        return f"unknown outcome: {error}"
    return f"exit {result.returncode}: {result.stdout.strip() or result.stderr.strip()}"


def main() -> None:
    opened = Machine.connect(sys.argv[1]) if len(sys.argv) > 1 else Machine.local()
    with opened as machine:
        directory = machine.run(["mktemp", "-d"], check=True).stdout.strip()
        history: list[str] = []
        while (command := model(history)) is not None:
            history.append(observe(machine, directory, command))
            print(f"$ {command}\n{history[-1]}")
        machine.fs.remove(directory, recursive=True)


if __name__ == "__main__":
    main()
