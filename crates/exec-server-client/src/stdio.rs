//! Runs a server as a child process and connects to it over stdio.
//!
//! The child has its own process group. When the connection is dropped, the group gets SIGTERM, and SIGKILL after 2 s.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exec_server_transport::connection::{Received, Wire, WireError};
use exec_server_transport::dial::MAX_REPLY_BYTES;
use exec_server_transport::lines::LineWire;
use exec_server_transport::outbox::CloseReason;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{ChildStderr, ChildStdin, ChildStdout};
use tokio::task::JoinHandle;

use crate::dial::{Dial, Dialing};
use crate::error::ExecServerError;

/// Time between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// Interval at which the exit of the child is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How to start a server as a child process; it starts when the client connects.
#[derive(Debug, Clone)]
pub struct StdioServer {
    program: OsString,
    args: Vec<OsString>,
    env: BTreeMap<OsString, OsString>,
    cwd: Option<PathBuf>,
}

impl StdioServer {
    /// The program to start.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            env: BTreeMap::new(),
            cwd: None,
        }
    }

    /// Appends arguments.
    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets a variable in addition to those of this program.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.insert(name.as_ref().to_owned(), value.as_ref().to_owned());
        self
    }

    /// Sets the child's working directory; the default is that of this program.
    #[must_use]
    pub fn current_dir(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cwd = Some(directory.into());
        self
    }

    fn spawn(&self) -> io::Result<ChildWire> {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(&self.env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(cwd) = &self.cwd {
            command.current_dir(cwd);
        }
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = ChildGuard { child: Some(command.spawn()?), stderr: None };
        let pipes = child.child.as_mut().expect("was just put in");
        let stdin = pipes.stdin.take().expect("stdin is piped");
        let stdout = pipes.stdout.take().expect("stdout is piped");
        let stderr = pipes.stderr.take().expect("stderr is piped");
        child.stderr = Some(tokio::spawn(log_lines(ChildStderr::from_std(stderr)?)));
        let (reader, writer) = (ChildStdout::from_std(stdout)?, ChildStdin::from_std(stdin)?);
        Ok(ChildWire { lines: LineWire::new(reader, writer, MAX_REPLY_BYTES), _child: child })
    }
}

impl Dial for StdioServer {
    fn dial(&self) -> Dialing<'_> {
        Box::pin(async {
            match self.spawn() {
                Ok(wire) => Ok(Box::new(wire) as Box<dyn Wire>),
                Err(source) => Err(ExecServerError::Spawn {
                    program: self.program.to_string_lossy().into_owned(),
                    source: Arc::new(source),
                }),
            }
        })
    }

    fn can_resume(&self) -> bool {
        false
    }

    fn describe(&self) -> String {
        format!("`{}` on stdio", self.program.to_string_lossy())
    }
}

async fn log_lines(stderr: ChildStderr) {
    let mut lines = BufReader::new(stderr).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        tracing::debug!(target: "exec_server_client::stdio_server", "{line}");
    }
}

/// Messages over a child's stdio; dropping it terminates the child.
struct ChildWire {
    lines: LineWire<ChildStdout, ChildStdin>,
    _child: ChildGuard,
}

impl Wire for ChildWire {
    fn poll_next(&mut self, cx: &mut Context) -> Poll<Option<Result<Received, WireError>>> {
        self.lines.poll_next(cx)
    }

    fn start_send(&mut self, message: Bytes) -> Result<(), WireError> {
        self.lines.start_send(message)
    }

    fn poll_flush(&mut self, cx: &mut Context) -> Poll<Result<(), WireError>> {
        self.lines.poll_flush(cx)
    }

    fn start_ping(&mut self, number: u64) -> Result<(), WireError> {
        self.lines.start_ping(number)
    }

    fn start_close(&mut self, reason: &CloseReason) -> Result<(), WireError> {
        self.lines.start_close(reason)
    }

    fn bytes_sent(&self) -> u64 {
        self.lines.bytes_sent()
    }

    fn poll_drain(&mut self, cx: &mut Context) -> Poll<()> {
        self.lines.poll_drain(cx)
    }

    fn can_ping(&self) -> bool {
        self.lines.can_ping()
    }

    fn can_half_close(&self) -> bool {
        self.lines.can_half_close()
    }

    fn describe(&self) -> String {
        self.lines.describe()
    }
}

struct ChildGuard {
    child: Option<Child>,
    /// Reads stderr until the child has ended: a child that logs its shutdown must not find a closed pipe.
    stderr: Option<JoinHandle<()>>,
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            // A thread, because the tokio runtime may be shutting down.
            let stderr = self.stderr.take();
            std::thread::spawn(move || {
                end(child);
                if let Some(stderr) = stderr {
                    stderr.abort();
                }
            });
        }
    }
}

/// Terminates the child's process group and reaps the child.
fn end(mut child: Child) {
    group::ask_to_end(&mut child);
    let deadline = Instant::now() + GRACE;
    while !group::has_ended(&mut child) && Instant::now() < deadline {
        std::thread::sleep(POLL_INTERVAL);
    }
    group::kill(&mut child);
    // The child was killed, so this returns soon; its exit status is not needed.
    let _ = child.wait();
}

#[cfg(unix)]
mod group {
    use std::process::Child;

    use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

    pub(super) fn ask_to_end(child: &mut Child) {
        signal(child, Signal::TERM);
    }

    /// Polls without reaping: until the leader is reaped, its group id cannot be reused.
    pub(super) fn has_ended(child: &mut Child) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        !matches!(waitid(WaitId::Pid(pid(child)), options), Ok(None))
    }

    pub(super) fn kill(child: &mut Child) {
        signal(child, Signal::KILL);
    }

    fn signal(child: &Child, signal: Signal) {
        // The group may have ended already.
        let _ = kill_process_group(pid(child), signal);
    }

    fn pid(child: &Child) -> Pid {
        Pid::from_child(child)
    }
}

#[cfg(not(unix))]
mod group {
    use std::process::Child;

    pub fn ask_to_end(_child: &mut Child) {
        // The child's stdin is closed, which is the only request to exit that is available here.
    }

    pub fn has_ended(child: &mut Child) -> bool {
        !matches!(child.try_wait(), Ok(None))
    }

    pub fn kill(child: &mut Child) {
        // The child may have exited already.
        let _ = child.kill();
    }
}
