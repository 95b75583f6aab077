//! Runs one command to completion with the standard streams of this process.
//!
//! The command has its own session, so the signals of terminal keys reach this process only, which forwards them.
//! Owner: the program's only thread, below the guardian.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::check;
use super::exit_watch::{own_peak, reap};
use super::sandbox::launch;
use super::sandbox::netns::SandboxNetwork;
use super::sandbox::rootfs::{Base, RootfsSpec};
use super::sandbox::setup_timeout::SET_UP_TIME;
use super::sandbox::{Mechanism, Network, SandboxSetup};
use super::spawner::{Parts, Starter};
use super::startup;
use crate::TreeTag;
use crate::limits::LimitPlan;
use crate::sandbox::Allowances;
use crate::spawn::{ExitStatus, SpawnError, SpawnRequest, StdinKind, Stdio};

/// Blocked signals that this process forwards to the command; by default they would kill it before it cleans up.
#[derive(Debug)]
pub struct HeldSignals {
    set: libc::sigset_t,
    parent: u32,
}

const HELD: [libc::c_int; 8] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCHLD,
];

impl HeldSignals {
    /// Blocks the signals; must be called before any thread is started, and after the guardian was entered.
    pub fn hold() -> io::Result<Self> {
        // SAFETY: the set is plain memory that the calls fill.
        let set = unsafe {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in HELD {
                libc::sigaddset(&raw mut set, signal);
            }
            check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()))?;
            set
        };
        Ok(Self { set, parent: std::os::unix::process::parent_id() })
    }

    fn next(&self) -> io::Result<libc::c_int> {
        loop {
            // SAFETY: the set is initialised, and a null info pointer is allowed.
            match check(unsafe { libc::sigwaitinfo(&raw const self.set, std::ptr::null_mut()) }) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Whether the guardian has exited, so that no process waits for the command any more.
    fn is_guardian_gone(&self) -> bool {
        std::os::unix::process::parent_id() != self.parent
    }
}

/// Ignores stop signals: Ctrl-Z would stop this process while the command, in another session, runs on.
pub fn ignore_stops() {
    for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
        // SAFETY: no handler is involved.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Runs a command and returns its exit status.
pub fn run_in_foreground(
    request: &SpawnRequest,
    signals: &HeldSignals,
) -> Result<ExitStatus, SpawnError> {
    let failed = |step| move |source| SpawnError::Prepare { step, source };
    startup::raise_open_file_limit();
    let mut starter = Starter::new();
    let mut parts = starter.start(request, None)?;
    if let Some(report) = parts.report.take() {
        // The mount handles are dropped at once, so the mounts are released with the last process of the command.
        if let Err(error) = launch::outcome_blocking(&report, SET_UP_TIME) {
            parts.abandon();
            return Err(error);
        }
    }
    loop {
        let signal = signals.next().map_err(failed("signals"))?;
        if let Some(status) = reap(parts.pid, own_peak()).map_err(failed("wait"))? {
            return Ok(status);
        }
        let signal = if signals.is_guardian_gone() { libc::SIGKILL } else { signal };
        if signal != libc::SIGCHLD {
            // Ignore the error: the tree may have exited just now.
            let _ = parts.tree.signal(signal);
        }
    }
}

/// Set-up takes milliseconds unless a file system does not respond.
const TRIAL_TIME: Duration = Duration::from_secs(10);

/// Returns namespaces if they work, else Landlock if it works alone; runs a trial of each.
pub fn working_mechanism() -> Mechanism {
    let works = |mechanism| sandbox_trial(mechanism).is_ok();
    if !works(Mechanism::Namespaces) && works(Mechanism::Landlock) {
        Mechanism::Landlock
    } else {
        Mechanism::Namespaces
    }
}

/// Sets up a complete sandbox without running a program; an error is the one that a real command would get.
pub fn sandbox_trial(mechanism: Mechanism) -> Result<(), SpawnError> {
    let request = SpawnRequest {
        // Executing a directory always fails, so only the last step fails if all others succeed.
        program: "/".into(),
        argv: vec!["/".into()],
        env: Vec::new(),
        cwd: "/".into(),
        stdio: Stdio::Pipes { stdin: StdinKind::Null },
        tag: TreeTag::new(0),
        sandbox: Some(SandboxSetup {
            view: RootfsSpec::new(Base::Everything),
            network: Network::Isolated,
            mechanism,
            allow: Allowances::default(),
        }),
        network: SandboxNetwork::default(),
        extra_input: None,
        limits: LimitPlan::default(),
    };
    let mut starter = Starter::new();
    let mut parts = starter.start(&request, None)?;
    let outcome = trial_outcome(&mut parts);
    parts.abandon();
    match outcome {
        Err(SpawnError::Program(_)) => Ok(()),
        Ok(()) => Err(SpawnError::Prepare {
            step: "sandbox",
            source: io::Error::other("the launcher exited without a report"),
        }),
        Err(error) => Err(error),
    }
}

fn trial_outcome(parts: &mut Parts) -> Result<(), SpawnError> {
    let failed = |source| SpawnError::Prepare { step: "sandbox", source };
    let Some(report) = parts.report.take() else { return Ok(()) };
    let time = Timespec::try_from(TRIAL_TIME).expect("a few seconds fit");
    // The launcher reports and exits, or hangs; so this waits for its exit with a timeout.
    let mut ended = [PollFd::new(&parts.pidfd, PollFlags::IN)];
    let count = rustix::io::retry_on_intr(|| poll(&mut ended, Some(&time)));
    if count.map_err(|errno| failed(errno.into()))? == 0 {
        return Err(failed(io::ErrorKind::TimedOut.into()));
    }
    launch::outcome_blocking(&report, TRIAL_TIME).map(drop)
}
