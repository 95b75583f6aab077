# Generated from aio/test_files.py by tools/unasync.py; change that file.
"""`fs`: files of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from exec_server import Machine, Progress, VersionMismatch


def test_bytes_and_text_are_exact(machine: Machine, place: str) -> None:
    every = bytes(range(256))
    machine.fs.write_bytes(place + "/a b%?#ö", every)
    assert machine.fs.read_bytes(place + "/a b%?#ö") == every
    assert Path(place, "a b%?#ö").read_bytes() == every
    machine.fs.write_text(place + "/text", "eins\r\nzwei ö\n")
    assert machine.fs.read_text(place + "/text") == "eins\r\nzwei ö\n"
    with pytest.raises(UnicodeDecodeError):
        machine.fs.read_text(place + "/a b%?#ö")


def test_a_name_that_is_not_unicode_goes_round(machine: Machine, place: str) -> None:
    name = os.fsdecode(b"bad-\xff")
    machine.fs.write_text(f"{place}/{name}", "x")
    assert os.listdir(os.fsencode(place)) == [b"bad-\xff"]
    entries = machine.fs.list(place)
    assert [entry.name for entry in entries] == [name]
    assert machine.fs.read_text(entries[0].path) == "x"


def test_a_file_beyond_one_message_goes_in_blocks(machine: Machine, place: str) -> None:
    data = os.urandom(1 << 20) * 65 + b"end"
    written = machine.fs.write_bytes(place + "/large", data)
    assert written.version == (machine.fs.stat(place + "/large")).version
    assert machine.fs.read_bytes(place + "/large") == data


def test_conditions_protect_other_versions(machine: Machine, place: str) -> None:
    path = place + "/file"
    first = machine.fs.write_text(path, "1", if_absent=True)
    with pytest.raises(FileExistsError):
        machine.fs.write_text(path, "2", if_absent=True)
    second = machine.fs.write_text(path, "2", if_match=first.version)
    with pytest.raises(VersionMismatch):
        machine.fs.write_text(path, "3", if_match=first.version)
    assert second.version == (machine.fs.stat(path)).version
    assert machine.fs.read_text(path) == "2"


def test_errors_are_the_builtin_ones_and_name_the_file(machine: Machine, place: str) -> None:
    machine.fs.write_text(place + "/file", "x")
    with pytest.raises(FileNotFoundError, match="missing") as raised:
        machine.fs.read_bytes(place + "/missing")
    assert raised.value.filename == place + "/missing" and raised.value.errno is not None
    with pytest.raises(FileNotFoundError):
        machine.fs.write_text(place + "/no/parent", "x")
    with pytest.raises(IsADirectoryError):
        machine.fs.read_bytes(place)
    with pytest.raises(IsADirectoryError):
        machine.fs.write_bytes(place, b"x")
    with pytest.raises(NotADirectoryError):
        machine.fs.read_bytes(place + "/file/below")
    with pytest.raises(FileExistsError):
        machine.fs.mkdir(place + "/file")
    with pytest.raises(OSError):
        machine.fs.remove(place)


def test_stat_exists_and_links(machine: Machine, place: str) -> None:
    machine.fs.write_text(place + "/file", "abc", mode=0o640)
    machine.fs.symlink(place + "/link", "file")
    machine.fs.symlink(place + "/nowhere", "missing")
    facts = machine.fs.stat(place + "/link")
    assert facts.is_file and facts.is_symlink and facts.size == 3 and facts.mode == 0o640
    assert (machine.fs.stat(place + "/link", follow_symlinks=False)).kind == "symlink"
    assert abs(facts.modified - os.stat(place + "/file").st_mtime) < 0.01
    assert machine.fs.readlink(place + "/link") == "file"
    assert machine.fs.resolve(place + "/link") == os.path.realpath(place + "/file")
    assert machine.fs.exists(place) and not machine.fs.exists(place + "/nowhere")
    assert machine.fs.is_dir(place) and not machine.fs.is_dir(place + "/file")
    assert machine.fs.is_file(place + "/file") and not machine.fs.is_file(place)
    machine.fs.chmod(place + "/file", 0o755)
    assert os.stat(place + "/file").st_mode & 0o777 == 0o755


def test_directories_copies_moves_and_removals(machine: Machine, place: str) -> None:
    fs = machine.fs
    fs.mkdir(place + "/a/b/c", parents=True)
    fs.mkdir(place + "/a/b/c", parents=True, exist_ok=True)
    with pytest.raises(FileExistsError):
        fs.mkdir(place + "/a/b/c", parents=True)
    fs.write_text(place + "/a/b/file", "x")
    fs.copy(place + "/a", place + "/copy", recursive=True)
    fs.move(place + "/copy/b/file", place + "/copy/moved")
    assert fs.read_text(place + "/copy/moved") == "x"
    with pytest.raises(FileExistsError):
        fs.move(place + "/copy/moved", place + "/a/b/file", replace=False)
    fs.remove(place + "/copy", recursive=True)
    assert not os.path.exists(place + "/copy")
    fs.remove(place + "/copy", missing_ok=True)
    with pytest.raises(FileNotFoundError):
        fs.remove(place + "/copy")


def test_list_and_walk_tell_everything(machine: Machine, place: str) -> None:
    for name in ["b/deep/file", "a", "z"]:
        machine.fs.mkdir(os.path.dirname(f"{place}/{name}"), parents=True, exist_ok=True)
        machine.fs.write_text(f"{place}/{name}", name)
    machine.fs.symlink(place + "/loop", ".")
    entries = machine.fs.list(place)
    assert [(entry.name, entry.is_dir, entry.is_symlink) for entry in entries] == [
        ("a", False, False),
        ("b", True, False),
        ("loop", True, True),
        ("z", False, False),
    ]
    assert entries[0].stat is not None and entries[0].stat.size == 1
    seen: list[tuple[str, list[str]]] = []
    for directory, _, others in machine.fs.walk(place):
        seen.append((directory[len(place) :], [entry.name for entry in others]))
    assert seen == [("", ["a", "loop", "z"]), ("/b", []), ("/b/deep", ["file"])]


def test_a_directory_with_many_names_comes_in_pages(machine: Machine, place: str) -> None:
    for number in range(2500):
        Path(place, f"{number:05}").touch()
    assert [entry.name for entry in machine.fs.list(place)] == [f"{number:05}" for number in range(2500)]


def test_append_and_truncate(machine: Machine, place: str) -> None:
    machine.fs.append(place + "/log", "one\n")
    machine.fs.append(place + "/log", b"two\n")
    assert machine.fs.read_text(place + "/log") == "one\ntwo\n"
    machine.fs.truncate(place + "/log", 3)
    assert machine.fs.read_text(place + "/log") == "one"


def test_relative_paths_begin_in_the_directory_of_the_server(machine: Machine) -> None:
    assert machine.fs.resolve(".") == os.path.realpath(machine.cwd)
    assert machine.fs.exists("~/")


def test_file_objects_read_write_seek_and_append(machine: Machine, place: str) -> None:
    path = place + "/file"
    with machine.fs.open(path, "w") as file:
        file.write("eins\nzwei\n")
        assert not os.path.exists(path)
    with machine.fs.open(path, "a") as file:
        file.write("drei")
    with machine.fs.open(path) as file:
        lines: list[str] = []
        for line in file:
            lines.append(line)
    assert lines == ["eins\n", "zwei\n", "drei"]
    with machine.fs.open(path, "rb") as file:
        file.seek(5)
        assert file.read(4) == b"zwei"
        file.seek(-4, 2)
        assert file.read() == b"drei" and file.tell() == 14
    with pytest.raises(FileExistsError):
        with machine.fs.open(path, "xb") as file:
            file.write(b"x")
    with pytest.raises(FileNotFoundError):
        machine.fs.open(path + "/../missing")
    with pytest.raises(ValueError, match="mode"):
        machine.fs.open(path, "r+")


def test_an_exception_while_writing_discards_the_content(machine: Machine, place: str) -> None:
    machine.fs.write_text(place + "/file", "old")
    for mode in ["w", "wb"]:
        with pytest.raises(KeyError):
            with machine.fs.open(place + "/file", mode) as file:
                file.write("new" if mode == "w" else b"new")
                raise KeyError("mine")
    assert machine.fs.read_text(place + "/file") == "old"


def test_trees_are_uploaded_and_downloaded_with_progress(machine: Machine, place: str) -> None:
    source = Path(place, "source")
    (source / "sub").mkdir(parents=True)
    (source / "small").write_bytes(b"small")
    (source / "small").chmod(0o755)
    large = os.urandom(3_500_000)
    (source / "sub" / "large").write_bytes(large)
    (source / "link").symlink_to("sub/large")
    (source / "empty").touch()
    seen: list[Progress] = []
    total = machine.fs.upload(source, place + "/there/tree", progress=seen.append)
    assert total == len(large) + 5 and seen[-1].total == total and seen[-1].files == 3
    assert any(0 < one.done < one.size for one in seen)
    seen.clear()
    back = Path(place, "back", "tree")
    assert machine.fs.download(place + "/there/tree", back, progress=seen.append) == total
    assert (back / "sub" / "large").read_bytes() == large and (back / "small").read_bytes() == b"small"
    assert os.readlink(back / "link") == "sub/large" and (back / "empty").exists()
    assert (back / "small").stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in back.iterdir()) == ["empty", "link", "small", "sub"]
    assert machine.fs.download(place + "/there/tree/small", place + "/one") == 5
    with pytest.raises(FileNotFoundError):
        machine.fs.download(place + "/nothing", place + "/two")
    with pytest.raises(FileNotFoundError):
        machine.fs.upload(place + "/nothing", place + "/two")
    assert not os.path.exists(place + "/two")
