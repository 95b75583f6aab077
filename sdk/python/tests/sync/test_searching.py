# Generated from aio/test_searching.py by tools/unasync.py; change that file.
"""`fs.search`, `fs.find`, `fs.watch` and `fs.edit`."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from exec_server import (
    Machine,
    Watch,
    Change,
    Edit,
    EditMismatch,
    ExecServerError,
    InvalidPattern,
    MachineClosed,
    RemoteError,
    SearchLost,
    Unsupported,
    VersionMismatch,
)

from ..support import CuttingProxy
from .together import together


def fill(place: str) -> None:
    """A small tree with a repository's ignore file."""
    for name, text in {
        "src/main.py": "import os\nTODO first\nx = 1\n",
        "src/lib.rs": "// todo second\n",
        "build/out.py": "TODO generated\n",
        ".hidden/note": "TODO hidden\n",
        ".ignore": "build/\n",
    }.items():
        Path(place, name).parent.mkdir(parents=True, exist_ok=True)
        Path(place, name).write_text(text)
    Path(place, "binary").write_bytes(b"TODO\0\n")


def test_search_finds_lines_with_their_place_and_context(machine: Machine, place: str) -> None:
    fill(place)
    found = machine.fs.search("TODO", place, before=1, after=1).all()
    assert [(match.path, match.line, match.text) for match in found] == [(place + "/src/main.py", 2, "TODO first")]
    match = found[0]
    assert match.before == ["import os"] and match.after == ["x = 1"]
    assert match.ranges == [(0, 4)] and match.offset == 10 and match.raw == b"TODO first"
    assert match.cut_before == match.cut_after == 0


def test_search_takes_every_option(machine: Machine, place: str) -> None:
    fill(place)

    def paths(pattern: str, **options: object) -> list[str]:
        found = machine.fs.search(pattern, place, files_only=True, **options).all()  # type: ignore
        return sorted(path[len(place) + 1 :] for path in found)

    assert paths("todo", case="insensitive") == ["src/lib.rs", "src/main.py"]
    assert paths("TODO", hidden=True, ignore=False) == [".hidden/note", "build/out.py", "src/main.py"]
    assert paths("TODO", ignore=False, globs=["!src/"]) == ["build/out.py"]
    assert paths("todo", case="smart", types=["rust"]) == ["src/lib.rs"]
    assert paths("O f", literal=True, max_depth=2) == ["src/main.py"]
    assert paths("TOD", word=True) == []
    assert paths("TODO", max_file_size=5) == []
    search = machine.fs.search("TODO", place, binary="report", max_matches=10)
    assert len(search.all()) == 1 and search.binary_matches == [place + "/binary"]
    search = machine.fs.search("TODO", place)
    search.all()
    assert search.binary_files == 1 and search.visited >= 2 and search.incomplete is None
    with pytest.raises(InvalidPattern):
        machine.fs.search("(", place).all()
    with pytest.raises(FileNotFoundError):
        machine.fs.find(path=place + "/missing").all()
    with pytest.raises(TypeError, match="globs"):
        machine.fs.search("x", place, globs="*.py")


def test_find_gives_names_by_globs_and_kinds(machine: Machine, place: str) -> None:
    fill(place)
    os.symlink("binary", place + "/link")
    found = machine.fs.find("*.py", place, ignore=False, detailed=True).all()
    assert sorted(entry.path for entry in found) == [place + "/build/out.py", place + "/src/main.py"]
    assert all(entry.kind == "file" and entry.size and entry.modified for entry in found)
    found = machine.fs.find(["src/*"], place, kinds=["file"]).all()
    assert {entry.path for entry in found} == {place + "/src/main.py", place + "/src/lib.rs"}
    assert [entry.path for entry in machine.fs.find(path=place, kinds=["symlink"]).all()] == [place + "/link"]
    assert {entry.path for entry in machine.fs.find(path=place, kinds=["directory"]).all()} == {place + "/src"}


def test_a_long_search_comes_in_pages_and_can_be_left_early(machine: Machine, place: str) -> None:
    for number in range(20):
        Path(place, f"file{number}").write_text("line of text\n" * 500)
    seen = 0
    for match in machine.fs.search("text", place):
        assert match.text == "line of text"
        seen += 1
    assert seen == 10_000
    limited = machine.fs.search("text", place, max_matches=1500)
    assert len(limited.all()) == 1500 and limited.incomplete == "maxMatches"
    # A connection has at most 8 searches: those that are left, with or without `with`, make room.
    for number in range(20):
        with machine.fs.search("text", place) as search:
            for match in search:
                assert match.line
                break
        dropped = machine.fs.search("text", place)
        for match in dropped:
            break
        del dropped
        gc.collect()


def test_a_search_that_loses_its_connection_is_repeated_or_says_so(proxy: CuttingProxy, place: str) -> None:
    for number in range(20):
        Path(place, f"file{number}").write_text("line of text\n" * 500)
    with Machine.connect(proxy.url) as machine:
        search = machine.fs.search("text", place)
        search.__next__()
        proxy.cut_all()
        with pytest.raises(SearchLost, match="ended with its connection"):
            for _ in search:
                pass
        # Nothing was taken from this one, so it begins again on the next connection.
        proxy.smallest = proxy.largest = 400_000
        proxy.most_cuts = 1
        proxy.is_cutting = True
        assert machine.fs.exists(place)
        proxy.cut_all()
        assert len(machine.fs.search("text", place).all()) == 10_000
        assert proxy.cuts == 1


def follow(watch: Watch, last: str) -> list[Change]:
    """The changes up to one that ends in `last`."""
    seen: list[Change] = []
    for change in watch:
        seen.append(change)
        if change.path.endswith(last):
            return seen
    raise AssertionError(f"the watch ended after {seen}")


def test_watch_reports_what_happens(machine: Machine, place: str) -> None:
    os.mkdir(place + "/sub")
    with machine.fs.watch(place, recursive=True, coalesce=0.01) as watch:
        assert watch.directories == 2 and watch.skipped == 0
        Path(place, "sub/a").write_text("x")
        seen = follow(watch, "/sub/a")
        assert seen[0].kind == "create" and seen[0].old_path is None
        os.rename(place + "/sub/a", place + "/b")
        renamed = follow(watch, "/b")
        assert (renamed[-1].kind, renamed[-1].old_path) == ("rename", place + "/sub/a")
        os.chmod(place + "/b", 0o600)
        assert (follow(watch, "/b"))[-1].kind == "chmod"
        os.remove(place + "/b")
        removed = follow(watch, "/b")
        assert removed[-1].kind == "remove"
        assert [change.seq for change in seen + renamed][:2] == [1, 2]
        assert watch.read(0) == []


def test_a_watch_ends_with_its_path_or_its_close(machine: Machine, place: str) -> None:
    Path(place, "file").write_text("x")
    with machine.fs.watch(place + "/file") as watch:
        os.remove(place + "/file")
        assert [change.kind for change in watch][-1:] == ["remove"]
        assert watch.is_ended and watch.read() == []
    watch = machine.fs.watch(place)

    def read_to_the_end() -> int:
        count = 0
        for change in watch:
            count += len(change.path) > 0
            watch.close()
        return count

    def touch() -> None:
        Path(place, "new").touch()

    counts = together(read_to_the_end, touch)
    assert counts[0] >= 1
    with pytest.raises(FileNotFoundError):
        machine.fs.watch(place + "/missing")
    # A session has at most 32 watches: those that are dropped make room.
    for _ in range(40):
        dropped = machine.fs.watch(place)
        del dropped
        gc.collect()


def test_a_watch_survives_lost_connections(proxy: CuttingProxy, place: str) -> None:
    with Machine.connect(proxy.url) as machine, machine.fs.watch(place, coalesce=0.01) as watch:
        seen: list[Change] = []
        for number in range(20):
            proxy.cut_all()
            Path(place, f"file{number}").touch()
            seen += follow(watch, f"/file{number}")
        assert [change.seq for change in seen] == list(range(1, len(seen) + 1))
        created = [change.path for change in seen if change.kind == "create"]
        assert created == [f"{place}/file{number}" for number in range(20)]


def test_a_watch_of_a_closed_machine_says_so(url: str, place: str) -> None:
    with Machine.connect(url) as machine:
        watch = machine.fs.watch(place)
    with pytest.raises(MachineClosed):
        watch.read()


def test_edits_are_applied_all_or_none(machine: Machine, place: str) -> None:
    path = place + "/app.conf"
    machine.fs.write_text(path, "port = 80\nhost = a\nhost = b\n")
    tried = machine.fs.edit(path, "port = 80", "port = 8080", dry_run=True)
    assert tried.version is None and (machine.fs.stat(path)).size == 28
    edited = machine.fs.edit(path, "port = 80", "port = 8080")
    assert [(edit.replacements, edit.line) for edit in edited.edits] == [(1, 1)] and edited.size == 30
    both = [Edit("host", "name", replace_all=True), Edit("name = b\n", "")]
    edited = machine.fs.edit(path, both, if_match=edited.version)
    assert [(edit.replacements, edit.line) for edit in edited.edits] == [(2, 2), (1, 3)]
    assert machine.fs.read_text(path) == "port = 8080\nname = a\n"
    with pytest.raises(VersionMismatch):
        machine.fs.edit(path, "a", "b", if_match="other")
    with pytest.raises(TypeError):
        machine.fs.edit(path, "a")
    with pytest.raises(TypeError):
        machine.fs.edit(path, [Edit("a", "b")], replace_all=True)
    with pytest.raises(FileNotFoundError):
        machine.fs.edit(place + "/missing", "a", "b")


def test_an_edit_that_does_not_fit_says_why(machine: Machine, place: str) -> None:
    path = place + "/file"
    machine.fs.write_text(path, "one\ntwo\none\n")
    with pytest.raises(EditMismatch) as raised:
        machine.fs.edit(path, [Edit("two", "2"), Edit("one", "1")])
    assert (raised.value.index, raised.value.occurrences, raised.value.lines) == (1, 2, [1, 3])
    with pytest.raises(EditMismatch) as raised:
        machine.fs.edit(path, "twoo\n", "2")
    assert raised.value.occurrences == 0 and raised.value.nearest_line == 2
    assert raised.value.nearest_text is not None and "two" in raised.value.nearest_text
    assert machine.fs.read_text(path) == "one\ntwo\none\n"


def test_files_can_be_confined_by_a_policy(machine: Machine, place: str) -> None:
    try:
        machine.run(["true"], sandbox="read-only", check=True)
    except ExecServerError as error:
        pytest.skip(f"no sandbox here: {error}")
    machine.fs.write_text(place + "/file", "old")
    confined = machine.fs.with_sandbox("read-only", cwd=place)
    assert confined.read_text(place + "/file") == "old"
    assert [match.text for match in confined.search("old", place).all()] == ["old"]
    with pytest.raises(RemoteError) as raised:
        confined.write_text(place + "/file", "new")
    assert raised.value.sandbox_denied
    with pytest.raises(RemoteError):
        confined.edit(place + "/file", "old", "new")
    with confined.watch(place, coalesce=0.01) as watch:
        machine.fs.write_text(place + "/other", "x")
        assert [change.kind for change in follow(watch, "/other")][:1] == ["create"]
    assert machine.fs.read_text(place + "/file") == "old"


def test_another_user_is_used_only_where_the_server_announces_it(machine: Machine, place: str) -> None:
    if not machine.capabilities.get("processUser"):
        with pytest.raises(Unsupported, match="another user"):
            machine.run(["id", "-un"], user="nobody")
    else:
        assert (machine.run(["id", "-un"], user="nobody", cwd="/")).stdout == "nobody\n"
    if not machine.capabilities.get("fsUser"):
        with pytest.raises(Unsupported, match="another user"):
            machine.fs.with_user("nobody")
        return
    machine.fs.write_text(place + "/secret", "x", mode=0o600)
    for directory in [place, *map(str, Path(place).parents)]:
        if os.stat(directory).st_uid == os.getuid() and directory.startswith("/tmp/"):
            os.chmod(directory, 0o777)
    files = machine.fs.with_user("nobody")
    with pytest.raises(PermissionError):
        files.read_text(place + "/secret")
    with files.watch(place, coalesce=0.01) as watch:
        files.write_text(place + "/theirs", "x")
        assert [change.kind for change in follow(watch, "/theirs")][:1] == ["create"]
    assert (machine.fs.stat(place + "/theirs")).owner == "nobody"
    machine.fs.mkdir(place + "/closed")
    machine.fs.chmod(place + "/closed", 0o700)
    with pytest.raises(PermissionError):
        files.watch(place + "/closed")
    with pytest.raises(ValueError, match="not of 'nobody'"):
        files.read_text("~/file")
