"""A scripted agent end to end, and what the SDK expects of a session."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agents import RunConfig, Runner
from agents.sandbox import Manifest, SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Shell
from agents.sandbox.entries import File
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    PtySessionNotFoundError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.session import SandboxSession
from agents.testing import ScriptedModel, assistant_message, function_call

from exec_server.openai_agents import (
    ExecServerSandboxClient,
    ExecServerSandboxClientOptions,
    ExecServerSandboxSession,
)

from ..support import binary

pytestmark = pytest.mark.asyncio


@pytest.fixture
async def session(url: str) -> AsyncIterator[SandboxSession]:
    client = ExecServerSandboxClient()
    session = await client.create(options=ExecServerSandboxClientOptions(target=url))
    await session.start()
    yield session
    await session.aclose()
    await client.delete(session)


async def test_a_scripted_agent_works_on_the_machine(url: str, tmp_path: Path) -> None:
    root = tmp_path / "work"
    model = ScriptedModel(
        [
            [function_call("exec_command", {"cmd": "cat hello.txt; echo made > made.txt"}, call_id="c1")],
            [assistant_message("done")],
        ]
    )
    agent = SandboxAgent(name="agent", model=model, instructions="work", capabilities=[Shell()])
    manifest = Manifest(root=str(root), entries={"hello.txt": File(content=b"hello from the manifest\n")})
    options = ExecServerSandboxClientOptions(target=url)
    config = RunConfig(
        sandbox=SandboxRunConfig(client=ExecServerSandboxClient(), options=options, manifest=manifest),
        tracing_disabled=True,
    )
    result = await Runner.run(agent, "go", run_config=config)
    assert result.final_output == "done"
    outputs = [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"]
    assert len(outputs) == 1 and "hello from the manifest" in outputs[0]
    assert (root / "made.txt").read_text() == "made\n"


async def test_commands_have_both_streams_and_a_time_limit(session: SandboxSession) -> None:
    result = await session.exec("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 3)
    assert (await session.exec("no-such-program", shell=False)).exit_code == 127
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 300", timeout=0.3)


async def test_a_terminal_is_written_to_and_polled(session: SandboxSession) -> None:
    update = await session.pty_exec_start("read x; echo got $x; exit 4", tty=True, yield_time_s=0.3)
    assert update.process_id is not None and update.exit_code is None
    ended = await session.pty_write_stdin(session_id=update.process_id, chars="word\n", yield_time_s=20)
    assert b"got word" in ended.output and (ended.process_id, ended.exit_code) == (None, 4)
    with pytest.raises(PtySessionNotFoundError):
        await session.pty_write_stdin(session_id=update.process_id, chars="")
    await session.pty_exec_start("sleep 300", yield_time_s=0.3)
    await session.pty_terminate_all()


async def test_files_are_read_and_written_inside_the_workspace(session: SandboxSession) -> None:
    await session.write(Path("a/b.txt"), io.BytesIO(b"content"))
    assert (await session.read(Path("a/b.txt"))).read() == b"content"
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("missing"))


async def test_a_snapshot_goes_to_another_session_and_escapes_are_refused(session: SandboxSession, url: str) -> None:
    await session.write(Path("a/b.txt"), io.BytesIO(b"content"))
    archive = await session.persist_workspace()
    client = ExecServerSandboxClient()
    other = await client.create(options=ExecServerSandboxClientOptions(target=url))
    await other.start()
    await other.hydrate_workspace(archive)
    assert (await other.read(Path("a/b.txt"))).read() == b"content"
    bad = io.BytesIO()
    with tarfile.open(fileobj=bad, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../escape"))
    bad.seek(0)
    with pytest.raises(WorkspaceArchiveWriteError):
        await other.hydrate_workspace(bad)
    root = other.state.manifest.root
    await other.aclose()
    await client.delete(other)
    assert not os.path.exists(root)


async def test_a_session_is_resumed_from_its_state(session: SandboxSession) -> None:
    client = ExecServerSandboxClient()
    await session.write(Path("kept"), io.BytesIO(b"x"))
    payload = client.serialize_session_state(session.state)
    again = await client.resume(client.deserialize_session_state(payload))
    assert await again.running()
    assert (await again.read(Path("kept"))).read() == b"x"
    await again.aclose()


def adapter_of(session: SandboxSession) -> ExecServerSandboxSession:
    assert isinstance(session._inner, ExecServerSandboxSession)
    return session._inner


async def again_from_json(session: SandboxSession, **changes: object) -> SandboxSession:
    client = ExecServerSandboxClient()
    payload = json.loads(json.dumps(client.serialize_session_state(session.state)))
    return await client.resume(client.deserialize_session_state({**payload, **changes}))


async def test_a_command_that_runs_is_found_again_by_another_client(session: SandboxSession) -> None:
    update = await session.pty_exec_start("echo begun; read x; echo got $x; exit 4", tty=True, yield_time_s=0.3)
    number, output = update.process_id, update.output
    assert number is not None
    while b"begun" not in output:
        output += (await session.pty_write_stdin(session_id=number, chars="")).output
    again = await again_from_json(session)
    ended = await again.pty_write_stdin(session_id=number, chars="word\n", yield_time_s=20)
    assert b"got word" in ended.output and b"begun" not in ended.output
    assert (ended.process_id, ended.exit_code) == (None, 4)
    # The first client has lost its session to the other one.
    with pytest.raises(ExecTransportError) as raised:
        await session.pty_write_stdin(session_id=number, chars="more\n")
    assert raised.value.context["retry_safe"] is False
    await again.aclose()


async def test_a_session_that_has_expired_is_resumed_without_its_commands(session: SandboxSession) -> None:
    await session.write(Path("kept"), io.BytesIO(b"x"))
    terminals = {"1000": {"process_id": "gone", "has_input": True}}
    again = await again_from_json(session, server_session="no-such-session", terminals=terminals)
    assert (await again.read(Path("kept"))).read() == b"x"
    with pytest.raises(PtySessionNotFoundError):
        await again.pty_write_stdin(session_id=1000, chars="x")
    await again.aclose()


async def test_a_failed_connection_is_safe_to_retry_and_lost_output_is_not(session: SandboxSession) -> None:
    away = await again_from_json(session, target="ws://127.0.0.1:1")
    with pytest.raises(ExecTransportError) as raised:
        await away.pty_exec_start("true")
    assert raised.value.context["retry_safe"] is True
    with pytest.raises(ExecTransportError) as raised:
        await away.exec("true")
    assert raised.value.context["retry_safe"] is True
    update = await session.pty_exec_start("sleep 300", yield_time_s=0.3)
    assert update.process_id is not None
    adapter_of(session)._terminals[update.process_id].process._order.lost = "a test says so"
    with pytest.raises(ExecTransportError, match="a test says so") as raised:
        await session.pty_write_stdin(session_id=update.process_id, chars="")
    assert raised.value.context["retry_safe"] is False
    missing = await session.pty_exec_start("no-such-program", shell=False)
    assert (missing.process_id, missing.exit_code) == (None, 127)


async def test_another_user_runs_commands_and_touches_files(session: SandboxSession) -> None:
    machine = await adapter_of(session).machine()
    if not machine.capabilities.get("fsUser"):
        pytest.skip("only a server of root becomes other users; `sudo` on the machine does elsewhere")
    assert (await session.exec("id -un", user="nobody")).stdout == b"nobody\n"
    update = await session.pty_exec_start("id -un", user="nobody", yield_time_s=20)
    assert (update.output, update.exit_code) == (b"nobody\n", 0)
    await session.write(Path("secret"), io.BytesIO(b"x"))
    await machine.fs.chmod(session.state.manifest.root + "/secret", 0o600)
    with pytest.raises(WorkspaceArchiveReadError):
        await session.read(Path("secret"), user="nobody")
    with pytest.raises(WorkspaceArchiveWriteError):
        await session.write(Path("new"), io.BytesIO(b"x"), user="nobody")
    await machine.fs.chmod(session.state.manifest.root, 0o777)
    await session.write(Path("new"), io.BytesIO(b"x"), user="nobody")
    assert (await machine.fs.stat(session.state.manifest.root + "/new")).owner == "nobody"
    assert (await session.read(Path("new"), user="nobody")).read() == b"x"


async def test_ports_of_a_machine_that_is_reached_directly_are_named(url: str, tmp_path: Path) -> None:
    client = ExecServerSandboxClient()
    stdio = f"stdio:{binary()} --listen stdio --state-dir {tmp_path / 'state'}"
    for target, is_direct in [(url, True), (stdio, False)]:
        options = ExecServerSandboxClientOptions(target=target, exposed_ports=(8000,))
        session = await client.create(options=options)
        if is_direct:
            endpoint = await session.resolve_exposed_port(8000)
            assert (endpoint.host, endpoint.port, endpoint.tls) == ("127.0.0.1", 8000, False)
        else:
            with pytest.raises(ExposedPortUnavailableError) as raised:
                await session.resolve_exposed_port(8000)
            assert "forwards none" in str(raised.value.context["detail"])
        with pytest.raises(ExposedPortUnavailableError, match="not configured"):
            await session.resolve_exposed_port(8001)
        await client.delete(session)
