"""The published E2B SDK for Python, unmodified, against `exec-server e2b`; `e2b/sdk.test.mjs` has the one for TypeScript."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import os
import pwd
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    TemplateException,
    TimeoutException,
)

from ..support import (
    DEADLINE,
    CuttingProxy,
    Meeting,
    Program,
    as_root,
    binary,
    clean_environment,
    lacks_private_users,
)

TOKEN = "a-token-of-enough-bytes"


@contextlib.contextmanager
def facade(target: str, *options: str, env: dict[str, str] | None = None) -> Iterator[str]:
    """A facade in front of a server; its URL."""
    program = Program(["e2b", "--listen", "127.0.0.1:0", *options, target], env)
    try:
        assert program.line.startswith("http://127.0.0.1:"), program.line
        yield program.line
    finally:
        program.end()


@pytest.fixture(scope="module")
def debug_url(url: str) -> Iterator[str]:
    with facade(url) as found:
        yield found


@pytest.fixture
def sandbox(debug_url: str) -> Sandbox:
    return Sandbox.create(debug=True, sandbox_url=debug_url)


def until(condition: Callable[[], Any]) -> Any:
    """The first true value of a condition that something else makes true."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("the condition did not become true")


# Commands


def test_a_command_has_both_streams_and_its_code(sandbox: Sandbox, place: str) -> None:
    seen: list[str] = []
    result = sandbox.commands.run(
        "echo out; echo $NAME >&2; pwd", envs={"NAME": "err"}, cwd=place, on_stdout=seen.append
    )
    assert (result.stdout, result.stderr, result.exit_code, result.error) == (f"out\n{place}\n", "err\n", 0, None)
    assert "".join(seen) == result.stdout
    assert sandbox.commands.run("pwd").stdout.strip() == os.path.expanduser("~")
    with pytest.raises(CommandExitException) as raised:
        sandbox.commands.run("echo before; exit 7")
    assert (raised.value.exit_code, raised.value.stdout, raised.value.error) == (7, "before\n", "exit status 7")
    with pytest.raises(CommandExitException) as raised:
        sandbox.commands.run("kill -9 $$")
    assert (raised.value.exit_code, raised.value.error) == (-1, "signal: killed")


def test_large_output_is_complete(sandbox: Sandbox) -> None:
    result = sandbox.commands.run("head -c 20000000 /dev/zero | tr '\\0' x; seq 100000 >&2")
    assert len(result.stdout) == 20_000_000 and set(result.stdout) == {"x"}
    assert result.stderr == "".join(f"{number}\n" for number in range(1, 100_001))


def test_a_time_limit_ends_the_whole_command(sandbox: Sandbox, place: str) -> None:
    with pytest.raises(TimeoutException):
        sandbox.commands.run(f"sleep 300 & echo $! > {place}/pid; wait", timeout=1)
    pid = Path(place, "pid").read_text().strip()
    until(lambda: not is_alive(pid))
    handle = sandbox.commands.run(f"echo $$ > {place}/left; sleep 300", background=True, timeout=2)
    until(lambda: Path(place, "left").exists() and Path(place, "left").read_text())
    handle.disconnect()
    until(lambda: not is_alive(Path(place, "left").read_text().strip()))


def is_alive(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_wrong_commands_are_errors_of_the_sdk(sandbox: Sandbox, place: str) -> None:
    with pytest.raises(InvalidArgumentException, match="missing"):
        sandbox.commands.run("true", cwd=place + "/missing")
    with pytest.raises(AuthenticationException):
        sandbox.commands.run("true", user="somebody-else")
    assert sandbox.commands.run("true", user=pwd.getpwuid(os.getuid()).pw_name).exit_code == 0
    with pytest.raises(NotFoundException, match="4000000000"):
        sandbox.commands.connect(4_000_000_000)
    with pytest.raises(NotFoundException):
        sandbox.commands.send_stdin(4_000_000_000, "x")
    assert sandbox.commands.kill(4_000_000_000) is False


def test_a_background_command_takes_input_and_is_listed(sandbox: Sandbox, place: str) -> None:
    handle = sandbox.commands.run("cat; echo end", background=True, stdin=True, envs={"A": "1"}, cwd=place)
    listed = [one for one in sandbox.commands.list() if one.pid == handle.pid]
    assert [(one.cmd, one.args, one.envs, one.cwd) for one in listed] == [
        ("/bin/bash", ["-l", "-c", "cat; echo end"], {"A": "1"}, place)
    ]
    sandbox.commands.send_stdin(handle.pid, "one ")
    handle.send_stdin("two ")
    sandbox.commands.stream_input(handle.pid, iter(["three ", b"four\n"]))
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "one two three four\nend\n"
    until(lambda: all(one.pid != handle.pid for one in sandbox.commands.list()))
    closed = sandbox.commands.run("sleep 300", background=True)
    with pytest.raises(InvalidArgumentException):
        sandbox.commands.send_stdin(closed.pid, "x")
    assert closed.kill() is True
    with pytest.raises(CommandExitException) as raised:
        closed.wait()
    assert raised.value.error == "signal: killed"


def test_a_command_goes_on_without_a_reader_and_is_found_again(sandbox: Sandbox, place: str) -> None:
    script = f"while [ ! -e {place}/go ]; do sleep 0.05; done; echo late; exit 5"
    handle = sandbox.commands.run(script, background=True)
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    assert again.pid == handle.pid
    Path(place, "go").touch()
    with pytest.raises(CommandExitException) as raised:
        again.wait()
    assert (raised.value.stdout, raised.value.exit_code) == ("late\n", 5)


def test_an_unread_command_does_not_stop_the_others(sandbox: Sandbox) -> None:
    unread = sandbox.commands.run("head -c 30000000 /dev/zero | tr '\\0' y", background=True)
    for number in range(5):
        assert sandbox.commands.run(f"echo {number}").stdout == f"{number}\n"
    assert len(unread.wait().stdout) == 30_000_000


# Users


def test_files_and_commands_of_another_user_have_its_rights_and_its_home() -> None:
    if reason := lacks_private_users():
        pytest.skip(reason)
    with as_root() as server, facade(server) as url:
        sandbox = Sandbox.create(debug=True, sandbox_url=url)
        sandbox.commands.run("useradd --create-home ann")
        assert sandbox.files.write("notes.txt", "mine", user="ann").path == "/home/ann/notes.txt"
        found = sandbox.files.get_info("~/notes.txt", user="ann")
        assert (found.path, found.owner, found.group) == ("/home/ann/notes.txt", "ann", "ann")
        assert sandbox.files.read("notes.txt", user="ann") == "mine"
        assert not sandbox.files.exists("notes.txt")
        told = sandbox.commands.run("whoami; pwd; cat notes.txt", user="ann").stdout
        assert told == "ann\n/home/ann\nmine"
        # A system user has no home, but its commands begin somewhere.
        assert sandbox.commands.run("pwd", user="nobody").stdout == "/\n"

        assert sandbox.files.make_dir("a/b", user="ann")
        sandbox.files.write_files([{"path": "a/one", "data": "1"}, {"path": "a/b/two", "data": "2"}], user="ann")
        listed = sandbox.files.list("a", depth=2, user="ann")
        assert {(one.path, one.owner) for one in listed} == {
            (f"/home/ann/a/{name}", "ann") for name in ("one", "b", "b/two")
        }
        moved = sandbox.files.rename("a/one", "/home/ann/c/one", user="ann")
        assert (moved.path, moved.owner) == ("/home/ann/c/one", "ann")
        # The server itself read the accounts before this one was made.
        assert sandbox.files.get_info("/home/ann/c", user="ann").owner == "ann"
        sandbox.files.remove("c", user="ann")
        assert not sandbox.files.exists("/home/ann/c")

        sandbox.files.write("/root/secret", "root's")
        for refused in (
            lambda: sandbox.files.read("/root/secret", user="ann"),
            lambda: sandbox.files.write("/root/other", "x", user="ann"),
            lambda: sandbox.files.get_info("/root/secret", user="ann"),
            lambda: sandbox.files.remove("/root/secret", user="ann"),
        ):
            with pytest.raises(SandboxException, match="(?i)permission"):
                refused()
        with pytest.raises(SandboxException, match="(?i)permission"):
            sandbox.files.watch_dir("/root", user="ann")
        watcher = sandbox.files.watch_dir("a", recursive=True, include_entry=True, user="ann")
        sandbox.files.write("a/b/seen", "x", user="ann")
        events: list[Any] = []
        until(lambda: events.extend(watcher.get_new_events()) or any(one.name == "b/seen" for one in events))
        watcher.stop()
        for refused in (
            lambda: sandbox.files.read("x", user="not-an-account"),
            lambda: sandbox.files.write("/tmp/x", "x", user="not-an-account"),
            lambda: sandbox.files.list("/tmp", user="not-an-account"),
            lambda: sandbox.commands.run("true", user="not-an-account"),
        ):
            with pytest.raises(AuthenticationException, match="not-an-account"):
                refused()


# Terminals


def test_a_terminal_has_a_size_that_changes(sandbox: Sandbox) -> None:
    pty = sandbox.pty.create(PtySize(rows=30, cols=100), envs={"PS1": "$ "})
    sandbox.pty.send_stdin(pty.pid, b"stty size; echo $TERM\n")
    seen = bytearray()
    for _, _, data in pty:
        seen += data or b""
        if b"xterm-256color\r\n" in seen:
            break
    assert b"30 100\r\n" in seen
    pty.disconnect()
    again = sandbox.pty.connect(pty.pid)
    sandbox.pty.resize(pty.pid, PtySize(rows=11, cols=44))
    sandbox.pty.send_stdin(pty.pid, b"stty size; exit 3\n")
    rest: list[bytes] = []
    with pytest.raises(CommandExitException) as raised:
        again.wait(on_pty=rest.append)
    assert raised.value.exit_code == 3 and b"11 44\r\n" in b"".join(rest)
    with pytest.raises(InvalidArgumentException):
        sandbox.pty.create(PtySize(rows=0, cols=0))
    with pytest.raises(NotFoundException):
        sandbox.pty.resize(pty.pid, PtySize(rows=1, cols=1))
    killed = sandbox.pty.create(PtySize(rows=24, cols=80))
    assert sandbox.pty.kill(killed.pid) and not sandbox.pty.kill(4_000_000_000)


# Files


def test_files_are_written_read_and_described(sandbox: Sandbox, place: str) -> None:
    info = sandbox.files.write(f"{place}/new/dir/ö b.txt", "text ö")
    assert (info.path, info.name, info.type) == (f"{place}/new/dir/ö b.txt", "ö b.txt", FileType.FILE)
    assert sandbox.files.read(info.path) == "text ö"
    every = bytes(range(256)) * 20_000
    sandbox.files.write(place + "/binary", every)
    assert bytes(sandbox.files.read(place + "/binary", format="bytes")) == every
    assert bytes(sandbox.files.read(place + "/binary", format="bytes", gzip=True)) == every
    assert b"".join(sandbox.files.read(place + "/binary", format="stream")) == every
    sandbox.files.write(place + "/zipped", every, gzip=True)
    assert Path(place, "zipped").read_bytes() == every
    sandbox.files.write(place + "/streamed", io.BytesIO(every))
    assert Path(place, "streamed").read_bytes() == every
    several = sandbox.files.write_files([{"path": f"{place}/m/{n}", "data": str(n)} for n in range(3)])
    assert [one.path for one in several] == [f"{place}/m/{n}" for n in range(3)]
    os.chmod(place + "/binary", 0o640)
    found = sandbox.files.get_info(place + "/binary")
    assert (found.size, found.mode, found.permissions) == (len(every), 0o640, "-rw-r-----")
    assert abs(found.modified_time.timestamp() - os.stat(place + "/binary").st_mtime) < 0.01
    assert found.owner and found.group and found.type is FileType.FILE
    home = sandbox.files.write("exec-server-e2b-test", "x")
    assert home.path == os.path.expanduser("~/exec-server-e2b-test")
    sandbox.files.remove("~/exec-server-e2b-test")
    assert not os.path.exists(home.path)


def test_directories_are_listed_made_moved_and_removed(sandbox: Sandbox, place: str) -> None:
    assert sandbox.files.make_dir(place + "/a/b/c") is True and sandbox.files.make_dir(place + "/a/b/c") is False
    sandbox.files.write(place + "/a/file", "x")
    os.symlink("a", place + "/link")
    os.symlink("missing", place + "/nowhere")
    assert [one.name for one in sandbox.files.list(place + "/a")] == ["b", "file"]
    deep = [one.path[len(place) :] for one in sandbox.files.list(place, depth=3)]
    assert sorted(deep) == ["/a", "/a/b", "/a/b/c", "/a/file", "/link", "/nowhere"]
    assert [one.path for one in sandbox.files.list(place + "/link")] == [place + "/a/b", place + "/a/file"]
    link = sandbox.files.get_info(place + "/link")
    assert link.type is FileType.SYMLINK and link.symlink_target == place + "/a" and link.permissions[0] == "L"
    assert sandbox.files.get_info(place + "/nowhere").symlink_target == "missing"
    moved = sandbox.files.rename(place + "/a/file", place + "/other/name")
    assert moved.path == place + "/other/name" and Path(moved.path).read_text() == "x"
    sandbox.files.remove(place + "/a")
    sandbox.files.remove(place + "/a")
    assert not sandbox.files.exists(place + "/a") and sandbox.files.exists(place)


def test_file_errors_are_those_of_the_sdk(sandbox: Sandbox, place: str) -> None:
    with pytest.raises(FileNotFoundException):
        sandbox.files.read(place + "/missing")
    with pytest.raises(FileNotFoundException):
        sandbox.files.list(place + "/missing")
    with pytest.raises(FileNotFoundException):
        sandbox.files.rename(place + "/missing", place + "/x")
    with pytest.raises(FileNotFoundException):
        sandbox.files.watch_dir(place + "/missing")
    with pytest.raises(InvalidArgumentException, match="directory"):
        sandbox.files.read(place)
    with pytest.raises(InvalidArgumentException):
        sandbox.files.write(place, "x")
    Path(place, "file").touch()
    with pytest.raises(InvalidArgumentException):
        sandbox.files.list(place + "/file")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.make_dir(place + "/file")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.watch_dir(place + "/file")
    with pytest.raises(AuthenticationException):
        sandbox.files.read(place + "/file", user="somebody-else")


def test_metadata_of_uploads_is_kept(sandbox: Sandbox, place: str) -> None:
    written = sandbox.files.write(place + "/file", "x", metadata={"source": "test"})
    assert written.metadata == {"source": "test"}
    assert sandbox.files.get_info(place + "/file").metadata == {"source": "test"}
    assert sandbox.files.rename(place + "/file", place + "/moved").metadata == {"source": "test"}
    assert [one.metadata for one in sandbox.files.list(place)] == [{"source": "test"}]
    sandbox.files.write(place + "/moved", "y")
    assert sandbox.files.get_info(place + "/moved").metadata is None


def test_a_watcher_collects_what_happens(sandbox: Sandbox, place: str) -> None:
    os.mkdir(place + "/sub")
    watcher = sandbox.files.watch_dir(place, recursive=True, include_entry=True)
    events: list[Any] = []

    def has(kind: FilesystemEventType, name: str) -> Any:
        events.extend(watcher.get_new_events())
        return next((one for one in events if (one.type, one.name) == (kind, name)), None)

    sandbox.files.write(place + "/sub/file", "x")
    created = until(lambda: has(FilesystemEventType.CREATE, "sub/file"))
    assert created.entry is None or created.entry.path == place + "/sub/file"
    Path(place, "sub/file").write_text("more")
    assert until(lambda: has(FilesystemEventType.WRITE, "sub/file"))
    os.chmod(place + "/sub/file", 0o600)
    assert until(lambda: has(FilesystemEventType.CHMOD, "sub/file"))
    sandbox.files.rename(place + "/sub/file", place + "/name")
    assert until(lambda: has(FilesystemEventType.RENAME, "sub/file"))
    assert until(lambda: has(FilesystemEventType.CREATE, "name"))
    sandbox.files.remove(place + "/name")
    assert until(lambda: has(FilesystemEventType.REMOVE, "name"))
    watcher.stop()
    with pytest.raises(SandboxException):
        watcher.get_new_events()


# The asynchronous half of the SDK


@pytest.mark.asyncio
async def test_the_asynchronous_sdk_works_the_same(debug_url: str, place: str) -> None:
    sandbox = await AsyncSandbox.create(debug=True, sandbox_url=debug_url)
    results = await asyncio.gather(*(sandbox.commands.run(f"echo {number}") for number in range(20)))
    assert [one.stdout for one in results] == [f"{number}\n" for number in range(20)]
    with pytest.raises(CommandExitException):
        await sandbox.commands.run("exit 1")
    seen: asyncio.Queue[Any] = asyncio.Queue()
    watch = await sandbox.files.watch_dir(place, on_event=seen.put_nowait)
    await sandbox.files.write(place + "/file", "x")
    event = await asyncio.wait_for(seen.get(), DEADLINE)
    assert (event.name, event.type) == ("file", FilesystemEventType.CREATE)
    await watch.stop()
    done = asyncio.Event()
    output = bytearray()

    def keep(data: bytes) -> None:
        output.extend(data)
        if b"=42=" in output:
            done.set()

    pty = await sandbox.pty.create(PtySize(rows=24, cols=80), on_data=keep)
    await sandbox.pty.send_stdin(pty.pid, b"echo =$((6*7))=\n")
    await asyncio.wait_for(done.wait(), DEADLINE)
    await pty.kill()
    assert await sandbox.is_running()


# The control plane


@pytest.fixture(scope="module")
def api(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Options of an SDK that is not in debug mode, for a facade with a token."""
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(TOKEN + "\n")
    with facade(url, "--http-token-file", str(file), "--template", "mine", "--any-user") as found:
        yield {"sandbox_url": found, "api_url": found, "api_key": TOKEN}


def test_sandboxes_are_created_listed_prolonged_and_killed(api: dict[str, Any], place: str) -> None:
    first = Sandbox.create("mine", timeout=600, metadata={"job": "1"}, envs={"COLOUR": "red"}, **api)
    second = Sandbox.create(metadata={"job": "2"}, **api)
    assert first.commands.run("echo $COLOUR", user="root").stdout == "red\n"
    assert second.commands.run("echo -$COLOUR-").stdout == "--\n"
    info = first.get_info()
    assert (info.template_id, info.metadata, info.cpu_count > 0) == ("mine", {"job": "1"}, True)
    assert 500 < (info.end_at - info.started_at).total_seconds() <= 601
    first.set_timeout(3600)
    assert (first.get_info().end_at - info.started_at).total_seconds() > 3000
    found = Sandbox.list(query=SandboxQuery(metadata={"job": "1"}), **api).next_items()
    assert [one.sandbox_id for one in found] == [first.sandbox_id]
    pages = Sandbox.list(limit=1, **api)
    ids: list[str] = []
    while pages.has_next:
        ids += [one.sandbox_id for one in pages.next_items()]
    assert {first.sandbox_id, second.sandbox_id} <= set(ids)
    handle = first.commands.run(f"echo $$ > {place}/pid; sleep 300", background=True)
    until(lambda: Path(place, "pid").exists() and Path(place, "pid").read_text())
    assert [one.pid for one in first.commands.list()] == [handle.pid] and second.commands.list() == []
    with pytest.raises(NotFoundException):
        second.commands.send_stdin(handle.pid, "x")
    again = Sandbox.connect(first.sandbox_id, **api)
    assert [one.pid for one in again.commands.list()] == [handle.pid]
    assert first.kill() is True and first.kill() is False
    until(lambda: not is_alive(Path(place, "pid").read_text().strip()))
    assert not first.is_running() and second.is_running()
    with pytest.raises(SandboxException, match="was not found"):
        first.commands.run("true")
    with pytest.raises(SandboxException):
        first.files.list(place)
    with pytest.raises(SandboxNotFoundException):
        first.get_info()
    assert second.kill()


def test_a_sandbox_ends_at_its_time(api: dict[str, Any], place: str) -> None:
    sandbox = Sandbox.create(timeout=1, **api)
    sandbox.commands.run(f"echo $$ > {place}/pid; sleep 300", background=True)
    until(lambda: not sandbox.is_running())
    until(lambda: not is_alive(Path(place, "pid").read_text().strip()))


def test_what_the_machine_cannot_do_is_refused(api: dict[str, Any]) -> None:
    with pytest.raises((SandboxException, TemplateException), match="template"):
        Sandbox.create("unknown", **api)
    with pytest.raises(SandboxException, match="network"):
        Sandbox.create(allow_internet_access=False, **api)
    sandbox = Sandbox.create(**api)
    with pytest.raises(SandboxException, match="not possible"):
        sandbox.pause()
    sandbox.kill()
    with pytest.raises(AuthenticationException):
        Sandbox.create(**{**api, "api_key": "wrong"})
    with pytest.raises(AuthenticationException):
        Sandbox.create(debug=True, sandbox_url=api["sandbox_url"]).commands.run("true")


# TypeScript


def test_the_typescript_sdk_works_too(debug_url: str, place: str) -> None:
    packages = os.environ.get("E2B_NODE_PACKAGES")
    if not packages:
        pytest.skip("the packages of the TypeScript SDK are not installed (E2B_NODE_PACKAGES)")
    ran = subprocess.run(
        ["node", "--test", "sdk.test.mjs"],
        cwd=packages,
        env=clean_environment(FACADE=debug_url, PLACE=place),
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


# Raw requests


def request(url: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, body, named)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_malformed_requests_get_errors_of_the_protocol(debug_url: str, place: str) -> None:
    assert request(debug_url, "/health")[0] == 204
    assert request(debug_url, "/health", Origin="http://evil.example")[0] == 403
    assert request(debug_url, "/health", Host="evil.example")[0] == 403
    assert request(debug_url, "/nothing")[0] == 404
    call = "/filesystem.Filesystem/Stat"
    for body, kind, code in [
        (b"{", "application/json", "invalid_argument"),
        (b"[]", "application/json", "invalid_argument"),
        (b"", "application/proto", "unimplemented"),
        (json.dumps({"path": place + "/missing"}).encode(), "application/json", "not_found"),
    ]:
        status, answer = request(debug_url, call, body, Content_Type=kind)
        assert status >= 400 and json.loads(answer)["code"] == code, answer
    assert request(debug_url, "/process.Process/Nothing", b"{}", Content_Type="application/json")[0] in (400, 501)
    octets = {"Content_Type": "application/octet-stream"}
    assert request(debug_url, "/files", b"x", **octets)[0] == 400
    assert request(debug_url, f"/files?path={place}/x", b"x", Content_Type="text/plain")[0] == 400
    assert request(debug_url, f"/files?path={place}/x", b"no gzip", Content_Encoding="gzip", **octets)[0] == 400
    assert not os.path.exists(place + "/x")
    form = {"Content_Type": "multipart/form-data; boundary=B"}
    assert request(debug_url, "/files", b"--B--\r\n", **form)[0] == 400
    long = {"X_Metadata_A": "x" * 5000}
    assert request(debug_url, f"/files?path={place}/x", b"x", **octets, **long)[0] == 400
    assert request(debug_url, f"/files?path={place}/z", gzip.compress(b"plain"), Content_Encoding="gzip", **octets)[0] == 200
    assert Path(place, "z").read_bytes() == b"plain"
    part = b'--B\r\nContent-Disposition: form-data; name="file"; filename="n"\r\n\r\nzipped form\r\n--B--\r\n'
    zipped = {"Content_Encoding": "gzip", **form}
    assert request(debug_url, f"/files?path={place}/f", gzip.compress(part), **zipped)[0] == 200
    assert Path(place, "f").read_bytes() == b"zipped form"
    assert request(debug_url, f"/files?path={place}/g", b"no gzip", **zipped)[0] == 400


# Links that break


def test_commands_survive_lost_connections_of_the_facade(proxy: CuttingProxy) -> None:
    with facade(proxy.url) as found:
        sandbox = Sandbox.create(debug=True, sandbox_url=found)
        proxy.is_cutting = True
        for _ in range(20):
            assert sandbox.commands.run("seq 20000").stdout == "".join(f"{n}\n" for n in range(1, 20_001))
            if proxy.cuts >= 10:
                break
        proxy.is_cutting = False
        assert proxy.cuts >= 5


def test_a_machine_behind_a_relay_is_a_sandbox(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    try:
        with facade("env:box", env=clean_environment(**meeting.env)) as found:
            sandbox = Sandbox.create(debug=True, sandbox_url=found)
            assert sandbox.commands.run("echo relayed").stdout == "relayed\n"
            sandbox.files.write(str(tmp_path / "file"), "x")
            assert sandbox.files.read(str(tmp_path / "file")) == "x"
    finally:
        meeting.end()


def test_any_target_is_a_sandbox(tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    server = Program(["--listen", f"unix://{socket}", "--state-dir", str(tmp_path / "state")])
    try:
        for target in [f"unix://{socket}", f"stdio:{binary()} --listen stdio"]:
            with facade(target) as found:
                sandbox = Sandbox.create(debug=True, sandbox_url=found)
                assert sandbox.commands.run("echo here").stdout == "here\n"
    finally:
        server.end()


def test_a_facade_without_a_server_or_a_token_says_so(url: str) -> None:
    def fails(*arguments: str) -> str:
        ran = subprocess.run(
            [binary(), "e2b", *arguments], capture_output=True, text=True, timeout=DEADLINE, env=clean_environment()
        )
        assert ran.returncode != 0 and ran.stdout == ""
        return ran.stderr

    assert "could not connect" in fails("--listen", "127.0.0.1:0", "ws://127.0.0.1:1")
    assert "token" in fails("--listen", "0.0.0.0:0", url)
