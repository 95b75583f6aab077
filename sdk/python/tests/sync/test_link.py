# Generated from aio/test_link.py by tools/unasync.py; change that file.
"""Connections: how they are made, what breaks them, and what is left."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from pathlib import Path

import pytest

from exec_server import (
    Ambiguous,
    Machine,
    AuthError,
    LinkError,
    MachineClosed,
    SessionLost,
    TakenOver,
)

from ..support import CuttingProxy, Meeting, binary, make_authority, server
from .together import together


def test_every_kind_of_target_is_reached(url: str, tmp_path: Path) -> None:
    names = tmp_path / "environments.toml"
    names.write_text(f'[[environments]]\nid = "box"\nurl = "{url}"\n')
    program = f"stdio:{binary()} --listen stdio --state-dir {tmp_path / 'state'}"
    for target, options in [(url, {}), (program, {}), ("box", {"environments": names})]:
        with Machine.connect(target, **options) as machine:
            assert (machine.run(["echo", "hi"])).stdout == "hi\n"
    with Machine.connect(env={"EXEC_SERVER_URL": url}) as machine:
        assert (machine.run(["echo", "hi"])).stdout == "hi\n"


def test_requests_carry_the_trace_of_the_caller(tmp_path: Path) -> None:
    tap = tmp_path / "tap.sh"
    tap.write_text(f"tee {tmp_path}/sent | {binary()} --listen stdio --state-dir {tmp_path}/state\n")
    parents = iter(f"00-4bf92f3577b34da6a3ce929d0e0e4736-{number:016x}-01" for number in range(1, 1000))
    with Machine.connect(f"stdio:sh {tap}", traceparent=lambda: next(parents)) as machine:
        assert (machine.run(["echo", "hi"])).stdout == "hi\n"
    requests = [json.loads(line) for line in (tmp_path / "sent").read_text().splitlines()]
    sent = [request["trace"]["traceparent"] for request in requests if "id" in request]
    assert len(sent) > 1 and len(set(sent)) == len(sent)
    assert all("trace" not in request for request in requests if "id" not in request)


def test_a_local_server_starts_and_ends_with_its_machine() -> None:
    with Machine.local() as machine:
        path = machine.target.removeprefix("unix://")
        assert os.path.exists(path) and (machine.run(["echo", "hi"])).stdout == "hi\n"
    assert not os.path.exists(path)
    with pytest.raises(LinkError, match="did not start"):
        Machine.local(options=["--no-such-option"])


def test_an_environment_is_reached_through_a_rendezvous(tmp_path: Path) -> None:
    meeting = Meeting(tmp_path)
    try:
        with Machine.connect("env:box", env=meeting.env) as machine:
            assert (machine.run(["cat"], input="hi\n")).stdout == "hi\n"
        wrong = {**meeting.env, "EXEC_SERVER_REMOTE_TOKEN": "xs_harness_wrong"}
        with pytest.raises(AuthError, match="refused the credential"):
            Machine.connect("env:box", env=wrong)
        # Arguments override variables.
        registry, token = meeting.env["EXEC_SERVER_REMOTE_URL"], meeting.env["EXEC_SERVER_REMOTE_TOKEN"]
        file = tmp_path / "harness-token"
        file.write_text(f"{token}\n")
        wrong["EXEC_SERVER_REMOTE_URL"] = "http://127.0.0.1:1"
        for options in [{"token": token}, {"token_file": file}]:
            with Machine.connect("env:box", registry=registry, env=wrong, **options) as machine:
                assert (machine.run(["echo", "hi"])).stdout == "hi\n"
        with pytest.raises(ValueError, match="registry= goes with a target like env:NAME"):
            Machine.connect("ws://127.0.0.1:1", registry=registry)
    finally:
        meeting.end()


def test_a_server_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    for target in ["ws://127.0.0.1:1", f"unix://{tmp_path}/nothing", "stdio:/no/such/program"]:
        with pytest.raises(LinkError):
            Machine.connect(target)
    with pytest.raises(LinkError, match="environments.toml"):
        Machine.connect("nobody")
    with pytest.raises(ValueError, match="no host"):
        Machine.connect("ws://")
    with pytest.raises(FileNotFoundError, match="no exec-server program"):
        Machine.connect("box", binary=tmp_path / "missing")


def test_a_listener_that_is_no_server_or_says_nothing_is_told() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with pytest.raises(LinkError, match="within 0.2 s"):
        Machine.connect(f"ws://127.0.0.1:{port}", connect_timeout=0.2)

    def answer() -> None:
        for _ in range(2):
            near, _ = listener.accept()
            near.recv(4096)
            near.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno")
            near.close()

    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(LinkError, match="could not connect"):
        Machine.connect(f"ws://127.0.0.1:{port}")
    listener.close()


def test_a_token_is_sent_and_a_wrong_one_is_an_auth_error(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-some-length-for-tests\n")
    file.chmod(0o600)
    with server("--ws-auth", "capability-token", "--ws-token-file", str(file)) as url:
        for options in [{}, {"token": "wrong"}]:
            with pytest.raises(AuthError, match="401"):
                Machine.connect(url, **options)
        for options in [{"token": file.read_text().strip()}, {"token_file": file}]:
            with Machine.connect(url, **options) as machine:
                assert (machine.run(["true"])).ok
        # A certificate file makes the connection the work of `exec-server dial`, which exits with its own code.
        with pytest.raises(AuthError, match="401"):
            Machine.connect(url, token="wrong", ca_file=file)


def test_a_private_authority_is_trusted_where_it_is_named(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made by `openssl`, which is not installed")
    authority, other = make_authority(tmp_path, "ours"), make_authority(tmp_path, "other")
    with server("--tls-cert", str(tmp_path / "ours.crt"), "--tls-key", str(tmp_path / "ours.crt.key")) as url:
        assert url.startswith("wss://")
        with Machine.connect(url, ca_file=authority) as machine:
            data = os.urandom(300_000)
            assert (machine.run(["cat"], input=data, text=False)).stdout == data
        for options in [{}, {"ca_file": other}]:
            with pytest.raises(LinkError, match="certificate"):
                Machine.connect(url, **options)


def test_a_closed_machine_says_so_and_closes_twice(url: str) -> None:
    machine = Machine.connect(url)
    machine.close()
    machine.close()
    with pytest.raises(MachineClosed, match="is closed"):
        machine.run(["true"])
    with pytest.raises(MachineClosed):
        machine.fs.read_bytes("/etc/hostname")


def test_an_exception_inside_with_closes_and_ends_processes(url: str) -> None:
    with pytest.raises(KeyError, match="mine"):
        with Machine.connect(url) as machine:
            session = machine.session_id
            process = machine.start(["sleep", "300"])
            raise KeyError("mine")
    with Machine.connect(url, session=session) as again:
        assert (again.attach(process.id)).wait() == 137


def test_a_cut_is_not_seen_by_calls_and_processes(proxy: CuttingProxy) -> None:
    with Machine.connect(proxy.url) as machine:
        session = machine.session_id
        process = machine.start(["cat"], stdin=True)
        lines = process.lines()
        for number in range(20):
            proxy.cut_all()
            process.write(f"{number}\n")
            for line in lines:
                assert line == str(number)
                break
            assert (machine.run(["echo", "hi"])).stdout == "hi\n"
        assert machine.session_id == session


def test_a_command_whose_start_is_cut_runs_once_and_its_output_is_whole(proxy: CuttingProxy, place: str) -> None:
    # Little more than a handshake, so that cuts fall into starts, replies and first events.
    proxy.smallest, proxy.largest = 4_500, 9_000
    proxy.is_cutting = True
    with Machine.connect(proxy.url) as machine:
        for number in range(40):
            result = machine.run(f"echo {number} >> log; seq 1 200", shell=True, cwd=place)
            assert result.stdout == "".join(f"{line}\n" for line in range(1, 201))
    assert Path(place, "log").read_text() == "".join(f"{number}\n" for number in range(40))
    assert proxy.cuts > 20


def test_what_may_have_happened_is_said(proxy: CuttingProxy, place: str) -> None:
    with Machine.connect(proxy.url) as machine:
        # Enough for a handshake, and too little for the request.
        proxy.smallest = proxy.largest = 10_000
        proxy.is_cutting = True
        proxy.cut_all()
        with pytest.raises(Ambiguous, match="fs/writeFile"):
            machine.fs.write_bytes(place + "/file", b"x" * 30_000)
        proxy.is_cutting = False
        machine.fs.write_bytes(place + "/file", b"y")
        assert machine.fs.read_bytes(place + "/file") == b"y"


def test_a_session_that_cannot_be_resumed_is_lost_and_the_next_call_opens_another(tmp_path: Path) -> None:
    with server("--session-linger", "0s") as url:
        host, port = url.removeprefix("ws://").split(":")
        proxy = CuttingProxy(host, int(port))
        with Machine.connect(proxy.url) as machine:
            process = machine.start(["sleep", "300"])
            session = machine.session_id
            proxy.cut_all()
            with pytest.raises(SessionLost):
                process.wait()
            with pytest.raises(SessionLost):
                process.write("x")
            assert (machine.run(["echo", "hi"])).stdout == "hi\n"
            assert machine.session_id != session
        proxy.close()


def test_a_server_that_does_not_come_back_is_given_up_after_the_budget(proxy: CuttingProxy) -> None:
    machine = Machine.connect(proxy.url, recovery=0.3)
    process = machine.start(["sleep", "300"])
    proxy.close()
    with pytest.raises(SessionLost, match="could not be resumed"):
        process.wait()
    with pytest.raises(LinkError, match="could not connect"):
        machine.run(["true"])
    machine.close()


def test_a_take_over_is_told_and_not_fought_over(url: str) -> None:
    with Machine.connect(url) as first:
        process = first.start(["cat"], stdin=True)
        with Machine.connect(url, session=first.session_id, take_over=True) as second:
            with pytest.raises(TakenOver):
                process.wait()
            again = second.attach(process.id)
            again.write("mine\n")
            for line in again.lines():
                assert line == "mine"
                break
            again.stop()


def test_files_survive_cuts_or_fail_clearly(proxy: CuttingProxy, place: str) -> None:
    data = os.urandom(1 << 20) * 3
    Path(place, "large").write_bytes(data)
    proxy.smallest, proxy.largest = 400_000, 6_000_000
    proxy.is_cutting = True
    with Machine.connect(proxy.url) as machine:
        for number in range(10):
            assert machine.fs.download(place + "/large", f"{place}/{number}") == len(data)
            assert Path(place, str(number)).read_bytes() == data
            machine.fs.upload(place + "/large", place + "/copy")
            assert Path(place, "copy").read_bytes() == data
            with machine.fs.open(place + "/large", "rb") as file:
                file.seek(1_500_000)
                assert file.read() == data[1_500_000:]
    assert proxy.cuts > 0


def test_one_connection_is_made_for_many_callers(proxy: CuttingProxy) -> None:
    with Machine.connect(proxy.url) as machine:
        proxy.cut_all()

        def one() -> str:
            return (machine.run(["echo", "hi"])).stdout

        assert together(one, one, one, one, one) == ["hi\n"] * 5
