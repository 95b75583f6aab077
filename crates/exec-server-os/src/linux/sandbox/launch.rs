//! The server's side of a sandboxed start: what the launcher is given, and what it tells.

use std::ffi::CString;
use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::task::{Poll, ready};

use rustix::fs::{MemfdFlags, Mode, SealFlags, fchmod, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;
use tokio::io::Interest;

use super::SandboxSetup;
use super::denials::RefusedCalls;
use super::launcher::{
    Command, Failure, Inside, LAUNCHER_ARGUMENT, LaunchPlan, STEP_CWD, STEP_EXEC,
};
use crate::limits::LimitPlan;
use crate::linux::register;
use crate::linux::spawner::{memory_of, move_up};
use crate::spawn::SpawnError;

/// What a sandbox is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A program.
    Command,
    /// A worker for files.
    FileWorker,
}

/// What the server and a launcher have in common.
pub struct Launch {
    /// Where the launcher tells what went wrong.
    pub report: OwnedFd,
    /// What was refused to the command.
    pub refused: RefusedCalls,
    /// What the launcher is given as descriptors 3 and following.
    pub theirs: Vec<OwnedFd>,
}

/// Puts a launcher in the place of the command, and the command into the launcher's plan.
///
/// Nothing of the request is used outside of the sandbox: the launcher has no environment and runs in the root.
pub fn prepare(
    sandbox: &SandboxSetup,
    limits: LimitPlan,
    command: &mut Command,
    role: Role,
) -> io::Result<Launch> {
    let launcher = Command {
        candidates: vec![launcher_program()?],
        argv: vec![
            c"exec-server".to_owned(),
            CString::new(LAUNCHER_ARGUMENT).expect("it has no NUL"),
        ],
        env: Vec::new(),
        cwd: c"/".to_owned(),
        // The terminal becomes that of the command, inside.
        has_terminal: false,
        extra_input: None,
    };
    let command = std::mem::replace(command, launcher);
    let inside = match role {
        Role::Command => Inside::Command(command),
        Role::FileWorker => Inside::FileWorker,
    };
    let plan = LaunchPlan { setup: sandbox.clone(), limits, inside };
    let plan = postcard::to_stdvec(&plan).map_err(io::Error::other)?;
    let (ours, theirs) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    let mut theirs = vec![memory_of(&plan)?, move_up(theirs)?];
    let refused = match role {
        Role::Command => {
            let (refused, tally) = RefusedCalls::share()?;
            theirs.push(tally);
            refused
        }
        Role::FileWorker => RefusedCalls::default(),
    };
    Ok(Launch { report: ours, refused, theirs })
}

/// Where a launcher's program is: a copy of ours in memory, which nobody can change.
///
/// Until a command runs, its `/proc/self/exe` is the launcher's program, and a command can ask to run just that: then
/// it holds a file which was opened outside of its view. So that must not be a file of the host.
fn launcher_program() -> io::Result<CString> {
    static PROGRAM: OnceLock<OwnedFd> = OnceLock::new();
    let program = match PROGRAM.get() {
        Some(program) => program,
        None => {
            let copy = move_up(sealed_copy_of_ourselves()?)?;
            PROGRAM.get_or_init(|| copy)
        }
    };
    let path = format!("/proc/self/fd/{}", program.as_raw_fd());
    Ok(CString::new(path).expect("it has no NUL"))
}

fn sealed_copy_of_ourselves() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Kernels before 6.3 do not know the flag, and need none.
    let copy = match memfd_create("exec-server", flags | MemfdFlags::EXEC) {
        Err(Errno::INVAL) => memfd_create("exec-server", flags)?,
        made => made?,
    };
    let mut copy = File::from(copy);
    io::copy(&mut File::open("/proc/self/exe")?, &mut copy)?;
    fchmod(&copy, Mode::from_raw_mode(0o555))?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK;
    // The same kernels cannot keep somebody inside from making it unusable for later starts.
    match fcntl_add_seals(&copy, seals | SealFlags::EXEC | SealFlags::SEAL) {
        Err(Errno::INVAL) => fcntl_add_seals(&copy, seals | SealFlags::SEAL)?,
        sealed => sealed?,
    }
    Ok(copy.into())
}

/// Waits until the command runs, or until it is known why not.
pub async fn outcome(report: OwnedFd) -> Result<(), SpawnError> {
    let text = read(report)
        .await
        .map_err(|source| SpawnError::Prepare { step: "launch report", source })?;
    judge(&text)
}

/// What a launcher has told, all of it: nothing if the command runs.
pub fn judge(text: &[u8]) -> Result<(), SpawnError> {
    if text.is_empty() {
        return Ok(());
    }
    let failure: Failure = postcard::from_bytes(text).map_err(|error| SpawnError::Prepare {
        step: "launch report",
        source: io::Error::other(error),
    })?;
    let source = io::Error::from_raw_os_error(failure.errno);
    Err(match failure.step.as_str() {
        STEP_CWD => SpawnError::Cwd(source),
        STEP_EXEC => SpawnError::Program(source),
        _ => SpawnError::Sandbox { step: failure.step, source },
    })
}

async fn read(report: OwnedFd) -> io::Result<Vec<u8>> {
    let report = register(report, Interest::READABLE)?;
    let mut text = Vec::new();
    poll_fn(|cx| {
        loop {
            let mut ready = ready!(report.poll_read_ready(cx))?;
            let mut buffer = [0; 512];
            match rustix::io::read(report.get_ref(), &mut buffer) {
                Ok(0) => return Poll::Ready(Ok(())),
                Ok(count) => text.extend_from_slice(&buffer[..count]),
                Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Poll::Ready(Err(io::Error::from(errno))),
            }
        }
    })
    .await?;
    Ok(text)
}
