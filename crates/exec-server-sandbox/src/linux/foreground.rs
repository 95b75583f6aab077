//! Runs one sandboxed command to completion with the standard streams of this process, and tries a sandbox out.

use std::io;
use std::time::Duration;

use exec_server_os::TreeTag;
use exec_server_os::limits::LimitPlan;
use exec_server_os::linux::child::ChildStack;
use exec_server_os::linux::held_signals::HeldSignals;
use exec_server_os::linux::spawner::{ChildStart, Parts, start};
use exec_server_os::linux::startup;
use exec_server_os::spawn::{ExitStatus, SpawnError, SpawnRequest, StdinKind, Stdio};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::launch::{self, LaunchHandles, Launchers};
use super::netns::SandboxNetwork;
use super::rootfs::{Base, RootfsSpec};
use super::setup_timeout::SET_UP_TIME;
use super::spawner::{Content, SandboxLaunch};
use super::{Mechanism, Network, SandboxSetup};
use crate::policy::Allowances;

/// Runs a command and returns its exit status.
pub fn run_in_foreground(
    request: &SpawnRequest,
    setup: SandboxSetup,
    signals: &HeldSignals,
) -> Result<ExitStatus, SpawnError> {
    startup::raise_open_file_limit();
    let mut launchers = Launchers::default();
    let parts = start_here(request, setup, &mut launchers)?;
    // The mount handles are dropped at once, so the mounts are released with the last process of the command.
    if let Err(error) = launch::outcome_blocking(&parts.handles.report, SET_UP_TIME) {
        parts.abandon();
        return Err(error);
    }
    signals.forward_until_exit(parts.pid, &parts.tree)
}

/// Starts a sandboxed command from this thread, without a warm pool.
fn start_here(
    request: &SpawnRequest,
    setup: SandboxSetup,
    launchers: &mut Launchers,
) -> Result<Parts<LaunchHandles>, SpawnError> {
    let (network, content) = (SandboxNetwork::default(), Content::Command { warm_pool: None });
    let launch = SandboxLaunch { setup, network, content };
    let launch = |start: ChildStart| launch.start_with(launchers, start);
    start(request, None, launch, &mut ChildStack::new())
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
        extra_input: None,
        limits: LimitPlan::default(),
        user: None,
    };
    let setup = SandboxSetup {
        view: RootfsSpec::new(Base::Everything),
        network: Network::Isolated,
        mechanism,
        allow: Allowances::default(),
    };
    let mut launchers = Launchers::default();
    let parts = start_here(&request, setup, &mut launchers)?;
    let outcome = trial_outcome(&parts);
    parts.abandon();
    match outcome {
        Err(SpawnError::Program(_)) => Ok(()),
        Ok(()) => Err(SpawnError::Prepare {
            step: "sandbox",
            cause: io::Error::other("the launcher exited without a report"),
        }),
        Err(error) => Err(error),
    }
}

fn trial_outcome(parts: &Parts<LaunchHandles>) -> Result<(), SpawnError> {
    let failed = |source| SpawnError::Prepare { step: "sandbox", cause: source };
    let time = Timespec::try_from(TRIAL_TIME).expect("a few seconds fit");
    // The launcher reports and exits, or hangs; so this waits for its exit with a timeout.
    let mut ended = [PollFd::new(&parts.pidfd, PollFlags::IN)];
    let count = rustix::io::retry_on_intr(|| poll(&mut ended, Some(&time)));
    if count.map_err(|errno| failed(errno.into()))? == 0 {
        return Err(failed(io::ErrorKind::TimedOut.into()));
    }
    launch::outcome_blocking(&parts.handles.report, TRIAL_TIME).map(drop)
}
