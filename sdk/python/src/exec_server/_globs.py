"""Glob patterns as agent frameworks define them: `*`, `?`, `[…]`, `**`, `{a,b}`, and dots that must be written out."""

from __future__ import annotations

import re
from fnmatch import translate
from functools import cache


def expand_braces(pattern: str) -> list[str]:
    """The patterns without braces that a pattern stands for; braces without a comma stay as they are."""
    at = pattern.find("{")
    while at >= 0:
        depth, parts, begin = 0, list[str](), at + 1
        for end in range(at, len(pattern)):
            letter = pattern[end]
            depth += (letter == "{") - (letter == "}")
            if (letter == "," and depth == 1) or depth == 0:
                parts.append(pattern[begin:end])
                begin = end + 1
            if depth == 0:
                if len(parts) > 1:
                    rest = pattern[end + 1 :]
                    return [one for part in parts for one in expand_braces(pattern[:at] + part + rest)]
                break
        at = pattern.find("{", at + 1)
    return [pattern]


def matches(path: str, pattern: str) -> bool:
    """Whether a relative path fits a pattern without braces, segment by segment."""
    return _fits(tuple(path.split("/")), tuple(pattern.split("/")))


def wants_hidden(pattern: str) -> bool:
    """Whether a pattern names segments that begin with a dot."""
    return any(segment.startswith(".") for segment in pattern.split("/"))


def _fits(names: tuple[str, ...], segments: tuple[str, ...]) -> bool:
    """Rows of a table instead of recursion: many `**` stay polynomial."""
    reachable = {0}
    for segment in segments:
        if segment == "**":
            grown: set[int] = set()
            for start in reachable:
                grown.add(start)
                while start < len(names) and not names[start].startswith("."):
                    start += 1
                    grown.add(start)
            reachable = grown
        else:
            reachable = {at + 1 for at in reachable if at < len(names) and _one(names[at], segment)}
    return len(names) in reachable


def _one(name: str, segment: str) -> bool:
    if name.startswith(".") and not segment.startswith("."):
        return False
    return _compiled(segment).match(name) is not None


@cache
def _compiled(segment: str) -> re.Pattern[str]:
    return re.compile(translate(segment))
