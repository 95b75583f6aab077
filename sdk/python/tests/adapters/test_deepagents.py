"""The sandbox suite of langchain-tests, against a server of an ordinary user."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from exec_server import Machine
from exec_server.deepagents import ExecServerSandbox

from ..support import as_user

# The suite still asserts what Deep Agents did before 0.7.
BEHIND = {
    "test_glob",
    "test_glob_basic_pattern",
    "test_glob_with_directories",
    "test_glob_hidden_files_explicitly",
    "test_glob_with_character_class",
    "test_glob_with_question_mark",
    "test_write_existing_file_fails",
}
IS_NEW = tuple(int(part) for part in version("deepagents").split(".")[:2]) >= (0, 7)


@pytest.fixture(scope="module")
def user_machine() -> Iterator[Machine]:
    """A machine of an ordinary user, where `python` is a program."""
    with as_user() as url, Machine.connect(url) as machine:
        yield machine


class TestExecServer(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self, user_machine: Machine) -> Iterator[ExecServerSandbox]:
        if not user_machine.run("command -v python", shell=True).ok:
            pytest.skip("the suite runs `python` on the machine")
        yield ExecServerSandbox(machine=user_machine)
        user_machine.fs.remove(self.sandbox_root_dir, recursive=True, missing_ok=True)

    @pytest.fixture(autouse=True)
    def known(self, request: pytest.FixtureRequest) -> None:
        if IS_NEW and request.node.originalname in BEHIND:
            request.node.add_marker(pytest.mark.xfail(reason="the suite is behind Deep Agents 0.7", strict=True))


def test_both_streams_come_together_in_their_order(user_machine: Machine) -> None:
    sandbox = ExecServerSandbox(machine=user_machine)
    answer = sandbox.execute("echo a; echo b >&2; echo c; exit 3")
    assert sorted(answer.output.split()) == ["a", "b", "c"] and answer.exit_code == 3 and not answer.truncated


def test_a_time_limit_and_a_long_output_are_told(user_machine: Machine) -> None:
    sandbox = ExecServerSandbox(machine=user_machine)
    late = sandbox.execute("echo before; sleep 300", timeout=1)
    assert late.exit_code == 124 and late.output.startswith("before\n")
    long = sandbox.execute("head -c 3000000 /dev/zero | tr '\\0' x")
    assert long.truncated and len(long.output) == 1024 * 1024


def test_each_file_has_its_own_answer(user_machine: Machine) -> None:
    sandbox = ExecServerSandbox(machine=user_machine)
    directory = user_machine.run(["mktemp", "-d"]).stdout.strip()
    uploaded = sandbox.upload_files([(directory + "/a/b", b"x"), ("relative", b"x"), (directory, b"x")])
    assert [answer.error for answer in uploaded] == [None, "invalid_path", "is_directory"]
    downloaded = sandbox.download_files([directory + "/a/b", directory + "/missing", directory])
    assert [(answer.content, answer.error) for answer in downloaded] == [
        (b"x", None),
        (None, "file_not_found"),
        (None, "is_directory"),
    ]
    user_machine.fs.remove(directory, recursive=True)
