"""A scripted agent end to end, and what the SDK expects of a session."""

from __future__ import annotations

import io
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
    PtySessionNotFoundError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.session import SandboxSession
from agents.testing import ScriptedModel, assistant_message, function_call

from exec_server.openai_agents import ExecServerSandboxClient, ExecServerSandboxClientOptions

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
