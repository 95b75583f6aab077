"""Generates the synchronous twin in `_sync` from `_aio`; with `--check`, fails if it is not current."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAIRS = [
    (ROOT / "src" / "exec_server" / "_aio", ROOT / "src" / "exec_server" / "_sync"),
    (ROOT / "tests" / "aio", ROOT / "tests" / "sync"),
]
BY_HAND = {"__init__.py", "runtime.py", "conftest.py", "together.py"}
RULES = [
    (r"\bexec_server\._aio\b", "exec_server._sync"),
    (r"from \.runtime import Opening, opening", "from .runtime import opening"),
    (r"\bOpening\[(\w+)\]", r"\1"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"from \.runtime import Opening, closing", "from .runtime import closing"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
    (r"pytestmark = pytest\.mark\.anyio\n\n\n", "\n"),
    (r"\b__a(enter|exit|iter|next)__", r"__\1__"),
]


def twin_of(source: Path) -> str:
    """The text of a generated file."""
    text = source.read_text()
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return f"# Generated from {source.parent.name}/{source.name} by tools/unasync.py; change that file.\n{text}"


def main() -> int:
    """Writes or checks every file."""
    is_check = sys.argv[1:] == ["--check"]
    wanted: dict[Path, str] = {}
    found: set[Path] = set()
    for first, second in PAIRS:
        wanted |= {second / path.name: twin_of(path) for path in first.glob("*.py") if path.name not in BY_HAND}
        found |= {path for path in second.glob("*.py") if path.name not in BY_HAND}
    stale = {path for path, text in wanted.items() if not path.exists() or path.read_text() != text}
    extra = found - set(wanted)
    for path in sorted(stale | extra):
        if is_check:
            print(f"{path} is not current; run sdk/python/tools/unasync.py", file=sys.stderr)
        elif path in wanted:
            path.write_text(wanted[path])
        else:
            path.unlink()
    return 1 if is_check and (stale or extra) else 0


if __name__ == "__main__":
    sys.exit(main())
