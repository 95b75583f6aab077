//! One child of the bare server: pipes or terminal, pidfd, and event numbers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};

use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use rustix::pty::OpenptFlags;
use serde::Deserialize;

/// Params of `process/start` that the bare server supports.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StartParams {
    /// The client's id for the process.
    pub process_id: String,
    argv: Vec<String>,
    cwd: String,
    env: BTreeMap<String, String>,
    tty: bool,
    #[serde(default)]
    pipe_stdin: bool,
}

/// A running child and its open descriptors.
pub struct Child {
    /// The client's id for it.
    pub id: String,
    /// The id as a JSON string, ready for messages.
    pub name: String,
    /// Becomes readable when the child has exited.
    pub pidfd: OwnedFd,
    /// Open streams: stdout or terminal, then stderr.
    pub streams: [Option<OwnedFd>; 2],
    /// Name of the first stream on the wire.
    pub first_stream: &'static str,
    /// Whether the exit has been reported.
    pub exited: bool,
    stdin: Option<File>,
    seq: u64,
}

impl Child {
    /// Starts the process; std uses posix_spawn, because no code runs between fork and exec.
    pub fn start(params: &StartParams) -> io::Result<Child> {
        let program = params.argv.first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(&params.argv[1..]).env_clear().envs(&params.env);
        command.current_dir(params.cwd.strip_prefix("file://").unwrap_or("/"));
        let (child, stdin, streams) = if params.tty {
            spawn_on_terminal(&mut command)?
        } else {
            spawn_on_pipes(&mut command, params.pipe_stdin)?
        };
        let pid = Pid::from_child(&child);
        Ok(Child {
            id: params.process_id.clone(),
            name: serde_json::to_string(&params.process_id)?,
            pidfd: rustix::process::pidfd_open(pid, PidfdFlags::empty())?,
            streams,
            first_stream: if params.tty { "pty" } else { "stdout" },
            exited: false,
            stdin,
            seq: 0,
        })
    }

    /// The number of the next event.
    pub fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// Collects the exit status; the pidfd must have become readable.
    pub fn wait(&self) -> io::Result<i32> {
        let id = WaitId::PidFd(self.pidfd.as_fd());
        let status = retry_on_intr(|| rustix::process::waitid(id.clone(), WaitIdOptions::EXITED))?;
        Ok(status.map_or(-1, |status| match status.exit_status() {
            Some(code) => code,
            None => 128 + status.terminating_signal().unwrap_or(0),
        }))
    }

    /// Writes to the child's standard input, waiting for it to read.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.stdin {
            Some(stdin) => stdin.write_all(bytes),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Kills the child.
    pub fn kill(&self) {
        // Fails only if the child has exited already.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Whether everything except the close was reported.
    pub fn is_done(&self) -> bool {
        self.exited && self.streams.iter().all(Option::is_none)
    }

    /// An open stream by its index.
    pub fn stream(&self, place: usize) -> Option<BorrowedFd<'_>> {
        self.streams[place].as_ref().map(AsFd::as_fd)
    }
}

type Spawned = (std::process::Child, Option<File>, [Option<OwnedFd>; 2]);

fn spawn_on_pipes(command: &mut Command, pipe_stdin: bool) -> io::Result<Spawned> {
    let stdin = if pipe_stdin { Stdio::piped() } else { Stdio::null() };
    let mut child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let stdin = child.stdin.take().map(|pipe| File::from(OwnedFd::from(pipe)));
    let streams = [child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from)];
    Ok((child, stdin, streams))
}

/// The terminal is not made the controlling one; its echo does not need that.
fn spawn_on_terminal(command: &mut Command) -> io::Result<Spawned> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
    let child = command.spawn()?;
    // The command still holds its ends, which would prevent a hangup.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let input = File::from(master.try_clone()?);
    Ok((child, Some(input), [Some(master), None]))
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.exited {
            self.kill();
            // Reaps the child; an error means that it was reaped already.
            let _ = self.wait();
        }
    }
}
