//! One command with the standard streams of this process, from its start to its end.
//!
//! The command has a session of its own, so the keys of a terminal reach this process only, which passes on what they
//! mean. Owner: the program's one thread, below the guardian.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::check;
use super::exit_watch::reap;
use super::sandbox::launch;
use super::sandbox::network::SandboxNetwork;
use super::sandbox::set_up_time::SET_UP_TIME;
use super::sandbox::view::{Base, View};
use super::sandbox::{Mechanism, Network, SandboxSetup};
use super::spawner::{Parts, Starter};
use crate::TreeTag;
use crate::limits::LimitPlan;
use crate::sandbox::Allowances;
use crate::spawn::{ExitStatus, SpawnError, SpawnRequest, StdinKind, Stdio};

/// Signals that wait to be passed on instead of ending this process before it could clean up.
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
    /// Holds them from now on; must be called before any thread is started, and after the guardian was entered.
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
            // SAFETY: the set is initialised, and nothing is asked about the signal but its number.
            match check(unsafe { libc::sigwaitinfo(&raw const self.set, std::ptr::null_mut()) }) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }

    /// Whether whoever watched over this process has died, and nobody waits for the command any more.
    fn are_unwatched(&self) -> bool {
        std::os::unix::process::parent_id() != self.parent
    }
}

/// Keeps Ctrl-Z from stopping this process while its command, in another session, would run on.
pub fn ignore_stops() {
    for signal in [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU] {
        // SAFETY: no handler is involved.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Runs a command to its end.
pub fn run_in_foreground(
    request: &SpawnRequest,
    signals: &HeldSignals,
) -> Result<ExitStatus, SpawnError> {
    let failed = |step| move |source| SpawnError::Prepare { step, source };
    let mut starter = Starter::new();
    let mut parts = starter.start(request, None)?;
    if let Some(report) = parts.report.take() {
        // The mounts end with the command: nobody waits for this process when it has.
        if let Err(error) = launch::outcome_blocking(&report, SET_UP_TIME) {
            parts.abandon();
            return Err(error);
        }
    }
    loop {
        let signal = signals.next().map_err(failed("signals"))?;
        if let Some(status) = reap(parts.pid).map_err(failed("wait"))? {
            return Ok(status);
        }
        let signal = if signals.are_unwatched() { libc::SIGKILL } else { signal };
        if signal != libc::SIGCHLD {
            // What has just ended needs no signal.
            let _ = parts.tree.signal(signal);
        }
    }
}

/// No step of making a sandbox takes long, except where a file system does not answer.
const TRIAL_TIME: Duration = Duration::from_secs(10);

/// Namespaces where they work, else Landlock where that works alone; tries both.
pub fn working_mechanism() -> Mechanism {
    let works = |mechanism| sandbox_trial(mechanism).is_ok();
    if !works(Mechanism::Namespaces) && works(Mechanism::Landlock) {
        Mechanism::Landlock
    } else {
        Mechanism::Namespaces
    }
}

/// Makes a whole sandbox, in which nothing is run; what fails is what would keep a command from running.
pub fn sandbox_trial(mechanism: Mechanism) -> Result<(), SpawnError> {
    let request = SpawnRequest {
        // A directory can never be run, so that the very last step fails and all before it were made.
        program: "/".into(),
        argv: vec!["/".into()],
        env: Vec::new(),
        cwd: "/".into(),
        stdio: Stdio::Pipes { stdin: StdinKind::Null },
        tag: TreeTag::new(0),
        sandbox: Some(SandboxSetup {
            view: View::new(Base::Everything),
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
    let told = told_in_time(&mut parts);
    parts.abandon();
    match told {
        Err(SpawnError::Program(_)) => Ok(()),
        Ok(()) => Err(SpawnError::Prepare {
            step: "sandbox",
            source: io::Error::other("the launcher ended without a word"),
        }),
        Err(error) => Err(error),
    }
}

fn told_in_time(parts: &mut Parts) -> Result<(), SpawnError> {
    let failed = |source| SpawnError::Prepare { step: "sandbox", source };
    let Some(report) = parts.report.take() else { return Ok(()) };
    let time = Timespec::try_from(TRIAL_TIME).expect("a few seconds fit");
    // The launcher tells and ends, or hangs: its end is what is waited for.
    let mut ended = [PollFd::new(&parts.pidfd, PollFlags::IN)];
    let count = rustix::io::retry_on_intr(|| poll(&mut ended, Some(&time)));
    if count.map_err(|errno| failed(errno.into()))? == 0 {
        return Err(failed(io::ErrorKind::TimedOut.into()));
    }
    launch::outcome_blocking(&report, TRIAL_TIME).map(drop)
}
