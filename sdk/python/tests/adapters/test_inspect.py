"""Inspect's own conformance checks, against a server of an ordinary user, and one of root that becomes other users."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from exec_server.inspect import ExecServerConfig, ExecServerSandboxEnvironment

from ..support import as_installed, as_root, as_user, lacks_private_users

pytestmark = pytest.mark.asyncio

NEEDS_ROOT = {"test_exec_as_user"}
NEEDS_A_USER = {
    "test_read_file_not_allowed",
    "test_write_text_file_without_permissions",
    "test_write_binary_file_without_permissions",
}


@pytest.fixture(scope="session")
def user_url() -> Iterator[str]:
    """A server of an ordinary user."""
    with as_user() as url:
        yield url


@pytest.fixture(scope="session")
def root_url() -> Iterator[str]:
    """A server of root with users of its own."""
    if reason := lacks_private_users():
        pytest.skip(reason)
    with as_root() as url:
        yield url


@pytest.fixture(params=["user", "root"])
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[SandboxEnvironment]:
    name, server = request.node.originalname, request.param
    if server == "user" and name in NEEDS_ROOT:
        reason = "only a server of root can become another user"
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    if server == "root" and name in NEEDS_A_USER:
        request.node.add_marker(pytest.mark.xfail(reason="root may read and write every file", strict=True))
    config = ExecServerConfig(target=request.getfixturevalue(f"{server}_url"))
    environments = await ExecServerSandboxEnvironment.sample_init("task", config, {})
    yield environments["default"]
    await ExecServerSandboxEnvironment.sample_cleanup("task", config, environments, False)


async def test_a_sample_has_a_directory_of_its_own_that_goes_with_it(user_url: str, tmp_path: Path) -> None:
    file = tmp_path / "exec-server.yaml"
    file.write_text(f"target: {user_url}\n")
    environments = await ExecServerSandboxEnvironment.sample_init("task", str(file), {})
    sandbox = environments["default"]
    directory = (await sandbox.exec(["pwd"])).stdout.strip()
    await sandbox.write_file("a/b", "x")
    assert Path(directory, "a/b").read_text() == "x"
    assert directory in (await sandbox.connection()).command
    await ExecServerSandboxEnvironment.sample_cleanup("task", str(file), environments, False)
    assert not os.path.exists(directory)


async def test_a_machine_that_is_gone_is_no_result_of_a_command() -> None:
    with pytest.raises(SandboxUnavailableError):
        config = ExecServerConfig(target="ws://127.0.0.1:1")
        await ExecServerSandboxEnvironment.sample_init("task", config, {})


async def test_output_beyond_the_limit_ends_the_command(user_url: str) -> None:
    environments = await ExecServerSandboxEnvironment.sample_init("task", ExecServerConfig(target=user_url), {})
    with pytest.raises(OutputLimitExceededError) as raised:
        await environments["default"].exec(["yes"])
    assert len(raised.value.truncated_output or "") == SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
    await ExecServerSandboxEnvironment.sample_cleanup("task", None, environments, False)


async def test_another_user_is_used_or_refused(url: str) -> None:
    environments = await ExecServerSandboxEnvironment.sample_init("task", ExecServerConfig(target=url), {})
    sandbox = environments["default"]
    own = (await sandbox.exec(["whoami"])).stdout.strip()
    assert (await sandbox.exec(["whoami"], user=own)).stdout.strip() == own
    try:
        other = await sandbox.exec(["whoami"], user="nobody")
    except SandboxUserUnsupportedError:
        # Only a server of root can become another user, and only a new one.
        assert not sandbox.as_type(ExecServerSandboxEnvironment)._machine.capabilities.get("processUser")
    else:
        assert other.stdout.strip() == "nobody"
    with pytest.raises(SandboxUserUnsupportedError):
        await sandbox.exec(["whoami"], user="nobody-of-this-name")
    await ExecServerSandboxEnvironment.sample_cleanup("task", None, environments, False)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_an_evaluation_finds_the_sandbox_by_its_entry_point(
    user_url: str, tmp_path: Path, backend: str
) -> None:
    program = """
        import sys, anyio
        from inspect_ai import Task, eval_async
        from inspect_ai.dataset import Sample
        from inspect_ai.solver import solver
        from inspect_ai.util import sandbox

        @solver
        def shell():
            async def solve(state, generate):
                await sandbox().write_file("given", "from the sandbox")
                state.output.completion = (await sandbox().exec(["cat", "given"])).stdout
                return state
            return solve

        async def main():
            task = Task(dataset=[Sample(input="x")], solver=shell(), sandbox="exec-server")
            logs = await eval_async(task, model="mockllm/model", log_dir=sys.argv[1])
            print(logs[0].status, logs[0].samples[0].output.completion, logs[0].error, file=sys.stderr)

        anyio.run(main, backend=sys.argv[2])
    """
    # A sandbox without a configuration takes its target from the variable.
    env = {**as_installed(tmp_path), "EXEC_SERVER_URL": user_url, "INSPECT_DISPLAY": "none"}
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path / "logs"), backend],
        capture_output=True,
        text=True,
        env=env,
    )
    assert "success from the sandbox None" in ran.stderr, ran
