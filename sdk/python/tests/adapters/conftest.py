"""The adapters are tested in environments of their own; what is not installed is not collected."""

from __future__ import annotations

from importlib.util import find_spec

_NEEDS = {
    "test_fsspec.py": "fsspec",
    "test_inspect.py": "inspect_ai",
    "test_deepagents.py": "deepagents",
    "test_openai_agents.py": "agents",
    "test_e2b.py": "e2b",
}
collect_ignore = [name for name, package in _NEEDS.items() if find_spec(package) is None]
