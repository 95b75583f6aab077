//! Starts a separate server process for each test.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::OnceLock;

#[cfg(unix)]
pub use rustix::process::Signal;
#[cfg(unix)]
use rustix::process::{Pid, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::DEADLINE;
use crate::client::TestClient;
use crate::isolation::isolate;
pub use crate::isolation::state_home;
#[cfg(target_os = "linux")]
use crate::{SmallDisk, eventually};

/// A running server; killed when the test ends.
pub struct TestExecutor {
    child: Child,
    url: String,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Option<Lines<BufReader<ChildStderr>>>,
    stdin: Option<ChildStdin>,
}

/// Options for starting a server.
pub struct ExecutorBuilder {
    command: Command,
}

impl TestExecutor {
    /// Starts a server on a free loopback port.
    pub async fn start() -> Self {
        Self::builder().start().await
    }

    /// Starts a server with more arguments.
    pub async fn start_with(arguments: &[&str]) -> Self {
        Self::builder().args(arguments).start().await
    }

    /// A server that is not started yet.
    pub fn builder() -> ExecutorBuilder {
        let mut command = Command::new(binary());
        isolate(command.as_std_mut());
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(if PROGRAM.get().is_some() { Stdio::null() } else { Stdio::inherit() })
            .kill_on_drop(true);
        ExecutorBuilder { command }
    }

    /// The URL that the server printed on stdout.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Pid of the started process, the guardian.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("the server has not been waited for")
    }

    /// Pid of the server, the only child of the guardian.
    #[cfg(target_os = "linux")]
    pub fn serving_pid(&self) -> u32 {
        let pid = self.pid();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
            .expect("the server runs");
        children.split_ascii_whitespace().next().expect("one that serves").parse().expect("a pid")
    }

    /// A client with a new session.
    pub async fn client(&self) -> TestClient {
        let mut client = TestClient::connect(&self.url).await;
        client.initialize().await;
        client
    }

    /// Sends a signal to the guardian.
    #[cfg(unix)]
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid().cast_signed()).expect("a process id is positive");
        kill_process(pid, signal).expect("the server is there");
    }

    /// Kills server and guardian so that neither sees the other's exit, as in a power cut; waits for both.
    #[cfg(target_os = "linux")]
    pub async fn cut_power(&mut self) {
        let serving = self.serving_pid();
        let pid = Pid::from_raw(serving.cast_signed()).expect("a process id is positive");
        kill_process(pid, Signal::STOP).expect("it is ours");
        // A running thread would clean up when the guardian is gone.
        eventually("every thread has stopped", || threads_are(serving, "T")).await;
        self.signal(Signal::KILL);
        self.wait().await;
        kill_process(pid, Signal::KILL).expect("it is ours");
        // The server holds its locks until its last thread has exited.
        eventually("the server is gone", || threads_are(serving, "ZX")).await;
    }

    /// The next line on stderr, if any; needs [`ExecutorBuilder::piped_stderr`].
    pub async fn next_stderr_line(&mut self) -> Option<String> {
        let stderr = self.stderr.as_mut().expect("stderr was asked for");
        timeout(DEADLINE, stderr.next_line())
            .await
            .expect("a line or the end comes in time")
            .expect("stderr is readable")
    }

    /// Writes to the server's stdin.
    pub async fn write_stdin(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("stdin was not closed");
        stdin.write_all(bytes).await.expect("the server holds its stdin");
    }

    /// Closes the server's stdin.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Waits for the exit of the guardian.
    pub async fn wait(&mut self) -> ExitStatus {
        timeout(DEADLINE, self.child.wait())
            .await
            .expect("the server ends in time")
            .expect("it can be waited for")
    }

    /// The next line on stdout, if any.
    pub async fn next_stdout_line(&mut self) -> Option<String> {
        timeout(DEADLINE, self.stdout.next_line())
            .await
            .expect("a line or the end comes in time")
            .expect("stdout is readable")
    }
}

impl ExecutorBuilder {
    /// More arguments.
    #[must_use]
    pub fn args(mut self, arguments: &[&str]) -> Self {
        self.command.args(arguments);
        self
    }

    /// A variable in the server's environment.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// The server's working directory.
    #[must_use]
    pub fn current_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.command.current_dir(directory.into());
        self
    }

    /// Keeps stderr for [`TestExecutor::next_stderr_line`]; a pipe holds 64 KiB until it is read.
    #[must_use]
    pub fn piped_stderr(mut self) -> Self {
        self.command.stderr(Stdio::piped());
        self
    }

    /// The underlying command, for settings without a method here.
    pub fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Clears the environment; variables set later still apply. A server then keeps its state in the user's real home.
    #[must_use]
    pub fn env_clear(mut self) -> Self {
        self.command.env_clear().arg("--state-dir").arg(state_home().join("exec-server"));
        self
    }

    /// Starts the server from a shell that runs `preparation` first: a limit, a mask, an ignored signal.
    ///
    /// Must be called first: arguments and environment are not carried over.
    #[cfg(unix)]
    #[must_use]
    pub fn after(self, preparation: &str) -> Self {
        let script = format!("{preparation}\nexec \"$0\" \"$@\"");
        self.behind(&["/bin/sh", "-c", &script])
    }

    /// Starts the server where this file system is mounted.
    ///
    /// Must be called first: arguments and environment are not carried over.
    #[cfg(target_os = "linux")]
    #[must_use]
    pub fn inside(self, disk: &SmallDisk) -> Self {
        let entrance = disk.entrance();
        self.behind(&entrance.each_ref().map(String::as_str))
    }

    /// Starts the server by another program, which executes it.
    #[cfg(unix)]
    fn behind(mut self, line: &[&str]) -> Self {
        let mut command = Command::new(line[0]);
        isolate(command.as_std_mut());
        command
            .args(&line[1..])
            .arg(binary())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true);
        self.command = command;
        self
    }

    /// Starts the server and waits for its URL.
    pub async fn start(self) -> TestExecutor {
        let mut executor = self.spawn();
        let line = executor.next_stdout_line().await;
        executor.url = line.expect("the first line is the URL");
        executor
    }

    /// Starts the server without waiting; a server at a rendezvous prints no URL.
    pub fn spawn(mut self) -> TestExecutor {
        let mut child = self.command.spawn().expect("the server's program can be started");
        let stdout = child.stdout.take().expect("stdout is piped");
        let stderr = child.stderr.take().map(|stderr| BufReader::new(stderr).lines());
        let stdin = child.stdin.take();
        let stdout = BufReader::new(stdout).lines();
        TestExecutor { child, url: String::new(), stdout, stderr, stdin }
    }

    /// Starts it with pipes for the stdio transport.
    pub fn start_stdio(mut self) -> Child {
        self.command
            .args(["--listen", "stdio"])
            .spawn()
            .expect("the server's program can be started")
    }

    /// Runs the program to its exit; returns exit code, stdout and stderr.
    pub async fn run(mut self) -> (i32, String, String) {
        self.command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.command.spawn().expect("the server's program can be started");
        let mut stdout = child.stdout.take().expect("stdout is piped");
        let mut stderr = child.stderr.take().expect("stderr is piped");
        let (mut out, mut err) = (String::new(), String::new());
        let all = async {
            let _ = tokio::join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err));
            child.wait().await
        };
        let status =
            timeout(DEADLINE, all).await.expect("it ends in time").expect("it can be waited for");
        (status.code().unwrap_or(-1), out, err)
    }
}

/// A program that is measured in place of that of this build.
static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// Uses this program from now on, without what it writes to stderr: for measurements.
pub fn use_program(program: &Path) {
    PROGRAM.get_or_init(|| program.to_owned());
}

/// Path of the `exec-server` binary of this build.
pub fn binary() -> PathBuf {
    let name = || format!("exec-server{}", std::env::consts::EXE_SUFFIX);
    PROGRAM.get().cloned().unwrap_or_else(|| build_folder().join(name()))
}

/// The folder with the programs of this build.
pub(crate) fn build_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own program");
    test.ancestors().nth(2).expect("tests live two levels below the programs").to_owned()
}

/// Copies a program that the test then executes.
///
/// Another process does it: a child that a concurrent test forks would inherit a descriptor that is open for writing, and
/// executing the copy would fail with `ETXTBSY` until that child executes its own program.
pub fn copy_program(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp").arg(from).arg(to).status();
    assert!(status.expect("cp is there").success(), "{} can be copied", from.display());
}

/// Whether all threads of a process are in one of these states.
#[cfg(target_os = "linux")]
fn threads_are(pid: u32, states: &str) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.map(|thread| thread.path().join("stat")).all(|stat| {
        let stat = std::fs::read_to_string(stat).unwrap_or_default();
        // The state follows the program name, which may contain any character.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        state.is_none_or(|state| states.contains(state))
    })
}
