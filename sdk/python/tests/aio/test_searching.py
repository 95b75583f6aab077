"""`fs.search`, `fs.find`, `fs.watch` and `fs.edit`."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from exec_server import (
    AsyncMachine,
    AsyncWatch,
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

pytestmark = pytest.mark.anyio


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


async def test_search_finds_lines_with_their_place_and_context(machine: AsyncMachine, place: str) -> None:
    fill(place)
    found = await machine.fs.search("TODO", place, before=1, after=1).all()
    assert [(match.path, match.line, match.text) for match in found] == [(place + "/src/main.py", 2, "TODO first")]
    match = found[0]
    assert match.before == ["import os"] and match.after == ["x = 1"]
    assert match.ranges == [(0, 4)] and match.offset == 10 and match.raw == b"TODO first"
    assert match.cut_before == match.cut_after == 0


async def test_search_takes_every_option(machine: AsyncMachine, place: str) -> None:
    fill(place)

    async def paths(pattern: str, **options: object) -> list[str]:
        found = await machine.fs.search(pattern, place, files_only=True, **options).all()  # type: ignore
        return sorted(path[len(place) + 1 :] for path in found)

    assert await paths("todo", case="insensitive") == ["src/lib.rs", "src/main.py"]
    assert await paths("TODO", hidden=True, ignore=False) == [".hidden/note", "build/out.py", "src/main.py"]
    assert await paths("TODO", ignore=False, globs=["!src/"]) == ["build/out.py"]
    assert await paths("todo", case="smart", types=["rust"]) == ["src/lib.rs"]
    assert await paths("O f", literal=True, max_depth=2) == ["src/main.py"]
    assert await paths("TOD", word=True) == []
    assert await paths("TODO", max_file_size=5) == []
    search = machine.fs.search("TODO", place, binary="report", max_matches=10)
    assert len(await search.all()) == 1 and search.binary_matches == [place + "/binary"]
    search = machine.fs.search("TODO", place)
    await search.all()
    assert search.binary_files == 1 and search.visited >= 2 and search.incomplete is None
    with pytest.raises(InvalidPattern):
        await machine.fs.search("(", place).all()
    with pytest.raises(FileNotFoundError):
        await machine.fs.find(path=place + "/missing").all()
    with pytest.raises(TypeError, match="globs"):
        machine.fs.search("x", place, globs="*.py")


async def test_find_gives_names_by_globs_and_kinds(machine: AsyncMachine, place: str) -> None:
    fill(place)
    os.symlink("binary", place + "/link")
    found = await machine.fs.find("*.py", place, ignore=False, detailed=True).all()
    assert sorted(entry.path for entry in found) == [place + "/build/out.py", place + "/src/main.py"]
    assert all(entry.kind == "file" and entry.size and entry.modified for entry in found)
    found = await machine.fs.find(["src/*"], place, kinds=["file"]).all()
    assert {entry.path for entry in found} == {place + "/src/main.py", place + "/src/lib.rs"}
    assert [entry.path for entry in await machine.fs.find(path=place, kinds=["symlink"]).all()] == [place + "/link"]
    assert {entry.path for entry in await machine.fs.find(path=place, kinds=["directory"]).all()} == {place + "/src"}


async def test_a_long_search_comes_in_pages_and_can_be_left_early(machine: AsyncMachine, place: str) -> None:
    for number in range(20):
        Path(place, f"file{number}").write_text("line of text\n" * 500)
    seen = 0
    async for match in machine.fs.search("text", place):
        assert match.text == "line of text"
        seen += 1
    assert seen == 10_000
    limited = machine.fs.search("text", place, max_matches=1500)
    assert len(await limited.all()) == 1500 and limited.incomplete == "maxMatches"
    # A connection has at most 8 searches: those that are left, with or without `with`, make room.
    for number in range(20):
        async with machine.fs.search("text", place) as search:
            async for match in search:
                assert match.line
                break
        dropped = machine.fs.search("text", place)
        async for match in dropped:
            break
        del dropped
        gc.collect()


async def test_a_search_that_loses_its_connection_is_repeated_or_says_so(proxy: CuttingProxy, place: str) -> None:
    for number in range(20):
        Path(place, f"file{number}").write_text("line of text\n" * 500)
    async with AsyncMachine.connect(proxy.url) as machine:
        search = machine.fs.search("text", place)
        await search.__anext__()
        proxy.cut_all()
        with pytest.raises(SearchLost, match="ended with its connection"):
            async for _ in search:
                pass
        # Nothing was taken from this one, so it begins again on the next connection.
        proxy.smallest = proxy.largest = 400_000
        proxy.most_cuts = 1
        proxy.is_cutting = True
        assert await machine.fs.exists(place)
        proxy.cut_all()
        assert len(await machine.fs.search("text", place).all()) == 10_000
        assert proxy.cuts == 1


async def follow(watch: AsyncWatch, last: str) -> list[Change]:
    """The changes up to one that ends in `last`."""
    seen: list[Change] = []
    async for change in watch:
        seen.append(change)
        if change.path.endswith(last):
            return seen
    raise AssertionError(f"the watch ended after {seen}")


async def test_watch_reports_what_happens(machine: AsyncMachine, place: str) -> None:
    os.mkdir(place + "/sub")
    async with machine.fs.watch(place, recursive=True, coalesce=0.01) as watch:
        assert watch.directories == 2 and watch.skipped == 0
        Path(place, "sub/a").write_text("x")
        seen = await follow(watch, "/sub/a")
        assert seen[0].kind == "create" and seen[0].old_path is None
        os.rename(place + "/sub/a", place + "/b")
        renamed = await follow(watch, "/b")
        assert (renamed[-1].kind, renamed[-1].old_path) == ("rename", place + "/sub/a")
        os.chmod(place + "/b", 0o600)
        assert (await follow(watch, "/b"))[-1].kind == "chmod"
        os.remove(place + "/b")
        removed = await follow(watch, "/b")
        assert removed[-1].kind == "remove"
        assert [change.seq for change in seen + renamed][:2] == [1, 2]
        assert await watch.read(0) == []


async def test_a_watch_ends_with_its_path_or_its_close(machine: AsyncMachine, place: str) -> None:
    Path(place, "file").write_text("x")
    async with machine.fs.watch(place + "/file") as watch:
        os.remove(place + "/file")
        assert [change.kind async for change in watch][-1:] == ["remove"]
        assert watch.is_ended and await watch.read() == []
    watch = await machine.fs.watch(place)

    async def read_to_the_end() -> int:
        count = 0
        async for change in watch:
            count += len(change.path) > 0
            await watch.close()
        return count

    async def touch() -> None:
        Path(place, "new").touch()

    counts = await together(read_to_the_end, touch)
    assert counts[0] >= 1
    with pytest.raises(FileNotFoundError):
        await machine.fs.watch(place + "/missing")
    # A session has at most 32 watches: those that are dropped make room.
    for _ in range(40):
        dropped = await machine.fs.watch(place)
        del dropped
        gc.collect()


async def test_a_watch_survives_lost_connections(proxy: CuttingProxy, place: str) -> None:
    async with AsyncMachine.connect(proxy.url) as machine, machine.fs.watch(place, coalesce=0.01) as watch:
        seen: list[Change] = []
        for number in range(20):
            proxy.cut_all()
            Path(place, f"file{number}").touch()
            seen += await follow(watch, f"/file{number}")
        assert [change.seq for change in seen] == list(range(1, len(seen) + 1))
        created = [change.path for change in seen if change.kind == "create"]
        assert created == [f"{place}/file{number}" for number in range(20)]


async def test_a_watch_of_a_closed_machine_says_so(url: str, place: str) -> None:
    async with AsyncMachine.connect(url) as machine:
        watch = await machine.fs.watch(place)
    with pytest.raises(MachineClosed):
        await watch.read()


async def test_edits_are_applied_all_or_none(machine: AsyncMachine, place: str) -> None:
    path = place + "/app.conf"
    await machine.fs.write_text(path, "port = 80\nhost = a\nhost = b\n")
    tried = await machine.fs.edit(path, "port = 80", "port = 8080", dry_run=True)
    assert tried.version is None and (await machine.fs.stat(path)).size == 28
    edited = await machine.fs.edit(path, "port = 80", "port = 8080")
    assert [(edit.replacements, edit.line) for edit in edited.edits] == [(1, 1)] and edited.size == 30
    both = [Edit("host", "name", replace_all=True), Edit("name = b\n", "")]
    edited = await machine.fs.edit(path, both, if_match=edited.version)
    assert [(edit.replacements, edit.line) for edit in edited.edits] == [(2, 2), (1, 3)]
    assert await machine.fs.read_text(path) == "port = 8080\nname = a\n"
    with pytest.raises(VersionMismatch):
        await machine.fs.edit(path, "a", "b", if_match="other")
    with pytest.raises(TypeError):
        await machine.fs.edit(path, "a")
    with pytest.raises(TypeError):
        await machine.fs.edit(path, [Edit("a", "b")], replace_all=True)
    with pytest.raises(FileNotFoundError):
        await machine.fs.edit(place + "/missing", "a", "b")


async def test_an_edit_that_does_not_fit_says_why(machine: AsyncMachine, place: str) -> None:
    path = place + "/file"
    await machine.fs.write_text(path, "one\ntwo\none\n")
    with pytest.raises(EditMismatch) as raised:
        await machine.fs.edit(path, [Edit("two", "2"), Edit("one", "1")])
    assert (raised.value.index, raised.value.occurrences, raised.value.lines) == (1, 2, [1, 3])
    with pytest.raises(EditMismatch) as raised:
        await machine.fs.edit(path, "twoo\n", "2")
    assert raised.value.occurrences == 0 and raised.value.nearest_line == 2
    assert raised.value.nearest_text is not None and "two" in raised.value.nearest_text
    assert await machine.fs.read_text(path) == "one\ntwo\none\n"


async def test_files_can_be_confined_by_a_policy(machine: AsyncMachine, place: str) -> None:
    try:
        await machine.run(["true"], sandbox="read-only", check=True)
    except ExecServerError as error:
        pytest.skip(f"no sandbox here: {error}")
    await machine.fs.write_text(place + "/file", "old")
    confined = machine.fs.with_sandbox("read-only", cwd=place)
    assert await confined.read_text(place + "/file") == "old"
    assert [match.text for match in await confined.search("old", place).all()] == ["old"]
    with pytest.raises(RemoteError) as raised:
        await confined.write_text(place + "/file", "new")
    assert raised.value.sandbox_denied
    with pytest.raises(RemoteError):
        await confined.edit(place + "/file", "old", "new")
    async with confined.watch(place, coalesce=0.01) as watch:
        await machine.fs.write_text(place + "/other", "x")
        assert [change.kind for change in await follow(watch, "/other")][:1] == ["create"]
    assert await machine.fs.read_text(place + "/file") == "old"


async def test_another_user_is_used_only_where_the_server_announces_it(machine: AsyncMachine, place: str) -> None:
    if not machine.capabilities.get("processUser"):
        with pytest.raises(Unsupported, match="another user"):
            await machine.run(["id", "-un"], user="nobody")
    else:
        assert (await machine.run(["id", "-un"], user="nobody", cwd="/")).stdout == "nobody\n"
    if not machine.capabilities.get("fsUser"):
        with pytest.raises(Unsupported, match="another user"):
            machine.fs.with_user("nobody")
        return
    await machine.fs.write_text(place + "/secret", "x", mode=0o600)
    for directory in [place, *map(str, Path(place).parents)]:
        if os.stat(directory).st_uid == os.getuid() and directory.startswith("/tmp/"):
            os.chmod(directory, 0o777)
    files = machine.fs.with_user("nobody")
    with pytest.raises(PermissionError):
        await files.read_text(place + "/secret")
    async with files.watch(place, coalesce=0.01) as watch:
        await files.write_text(place + "/theirs", "x")
        assert [change.kind for change in await follow(watch, "/theirs")][:1] == ["create"]
    assert (await machine.fs.stat(place + "/theirs")).owner == "nobody"
    await machine.fs.mkdir(place + "/closed")
    await machine.fs.chmod(place + "/closed", 0o700)
    with pytest.raises(PermissionError):
        await files.watch(place + "/closed")
    with pytest.raises(ValueError, match="not of 'nobody'"):
        await files.read_text("~/file")
