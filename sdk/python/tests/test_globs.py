"""The globs of agent frameworks."""

from __future__ import annotations

import pytest

from exec_server._globs import expand_braces, matches


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        ("*.py", ["a.py"], ["b/a.py", ".a.py", "a.pyc"]),
        ("**/*.py", ["a.py", "b/c/a.py"], [".b/a.py", "b/.a.py"]),
        ("src/**", ["src/a", "src/b/c"], ["src/.a", "other/a"]),
        ("**/.env", [".env", "a/.env"], [".a/.env"]),
        (".github/**/*.yml", [".github/a.yml", ".github/b/a.yml"], [".github/.b/a.yml"]),
        ("[ab]?.txt", ["a1.txt"], ["c1.txt", "a.txt"]),
        ("[!a].txt", ["b.txt"], ["a.txt"]),
        ("**/" * 30 + "x", ["/".join("a" * 30) + "/x"], ["/".join("a" * 30) + "/y"]),
    ],
)
def test_patterns_fit_what_they_should(pattern: str, fits: list[str], fails: list[str]) -> None:
    assert [path for path in fits if not matches(path, pattern)] == []
    assert [path for path in fails if matches(path, pattern)] == []


def test_braces_are_expanded_also_within_each_other() -> None:
    assert expand_braces("*.{py,rs}") == ["*.py", "*.rs"]
    assert expand_braces("{a,b{1,2}}/{x,y}") == ["a/x", "a/y", "b1/x", "b1/y", "b2/x", "b2/y"]
    assert expand_braces("{one}") == ["{one}"] and expand_braces("{a,b") == ["{a,b"]
