//! Our client reaches our executor through a rendezvous, and reconnects.

mod answers;
mod commands;
mod failing;
pub mod recovering;
mod reference;
mod running;
mod tls_and_proxies;
mod trusting;

use std::path::{Path, PathBuf};
use std::process::Stdio;

use exec_server::{ExecServerClient, RelayConnectArgs};
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::executor::binary;
use exec_server_testkit::isolation::isolate;
use exec_server_testkit::remote::{args, connect, join, wait_for_presence};
use exec_server_testkit::{DEADLINE, TestExecutor, TestRendezvous};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// A rendezvous, an executor registered as `env`, and a state directory for clients.
struct RelayFixture {
    executor: TestExecutor,
    rendezvous: TestRendezvous,
    executor_token: String,
    harness_token: String,
    executor_state: TempDir,
    state: TempDir,
}

impl RelayFixture {
    async fn start() -> Self {
        Self::at(TestRendezvous::start().await).await
    }

    async fn at(rendezvous: TestRendezvous) -> Self {
        let (executor_state, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let executor_token = rendezvous.token(TokenRole::Executor, "env").await;
        let harness_token = rendezvous.token(TokenRole::Harness, "env").await;
        let executor = join(rendezvous.url(), executor_state.path(), &executor_token).spawn();
        let fixture =
            Self { rendezvous, executor, executor_token, harness_token, executor_state, state };
        fixture.wait_for_executor().await;
        fixture
    }

    async fn wait_for_executor(&self) {
        wait_for_presence(self.rendezvous.url(), self.rendezvous.admin_token(), true).await;
    }

    /// Kills the executor, and starts another one with the state directory here.
    async fn replace_executor(&mut self, state: &Path) {
        let pid = Pid::from_raw(self.executor.serving_pid().cast_signed()).expect("it runs");
        kill_process(pid, Signal::KILL).expect("it runs");
        self.executor.wait().await;
        wait_for_presence(self.rendezvous.url(), self.rendezvous.admin_token(), false).await;
        self.executor = join(self.rendezvous.url(), state, &self.executor_token).spawn();
        self.wait_for_executor().await;
    }

    /// Client options of this user.
    fn args(&self) -> RelayConnectArgs {
        self.args_of(self.state.path())
    }

    /// Client options with the state directory here.
    fn args_of(&self, state: &Path) -> RelayConnectArgs {
        args(self.rendezvous.url(), &self.harness_token, state)
    }

    async fn client(&self) -> ExecServerClient {
        connect(self.args()).await
    }

    /// A command of this user that is not started yet.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments, self.state.path());
        command
            .env("EXEC_SERVER_REMOTE_URL", self.rendezvous.url())
            .env("EXEC_SERVER_REMOTE_TOKEN", &self.harness_token);
        command
    }

    /// Runs a command of this user to its end: its exit code, stdout and stderr.
    async fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        finish(self.command(arguments).spawn().expect("it can be started")).await
    }

    /// The same, for a client that has stored the executor's key before.
    async fn run_again(&self, arguments: &[&str]) -> (i32, String, String) {
        let (code, out, err) = self.run(arguments).await;
        (code, out, err.lines().filter(|line| !line.contains("for the first time")).collect())
    }

    fn known_hosts(&self) -> PathBuf {
        self.state.path().join("known_hosts")
    }
}

/// A command with nothing but a state directory.
fn command(arguments: &[&str], state: &Path) -> Command {
    let mut command = Command::new(binary());
    isolate(command.as_std_mut());
    for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    command
        .env_remove("RUST_LOG")
        .args(arguments)
        .env("EXEC_SERVER_STATE_DIR", state)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

async fn finish(child: Child) -> (i32, String, String) {
    let output = timeout(DEADLINE, child.wait_with_output()).await.expect("it ends in time");
    let output = output.expect("it can be waited for");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}
