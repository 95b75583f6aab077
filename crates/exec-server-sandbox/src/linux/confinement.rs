//! Applies the restrictions of a command in an order in which each step still has the rights that it needs.
//!
//! With namespaces, Landlock is a second layer. Without them it is the only one, and the filter refuses what Landlock
//! does not cover.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use exec_server_os::limits::Rlimits;
use exec_server_os::linux::{keyring, mark};

use super::landlock::{self, Access, LandlockRule, LandlockRules, RuleTarget};
use super::rootfs::{Base, MountAccess};
use super::seccomp::{self, FilterOptions, NetworkMode};
use super::step::{Step, StepError};
use super::{Mechanism, Network, SandboxSetup, denials, limits, privileges};

/// Confines a command; the calling process is inside the rootfs already and has one thread.
///
/// Sends the notification listener to the launcher.
pub fn confine_command(
    setup: &SandboxSetup,
    rlimits: &Rlimits,
    launcher: BorrowedFd,
) -> Result<(), StepError> {
    drop_rights(setup, rlimits)?;
    let mode = match setup.network {
        Network::Isolated => NetworkMode::Restricted,
        Network::Host => NetworkMode::Enabled,
    };
    let alone = setup.mechanism == Mechanism::Landlock;
    if setup.allow.keyrings {
        keyring::join_new_session().step("keyring")?;
    }
    let options = FilterOptions { allow: setup.allow, alone, ..FilterOptions::default() };
    match seccomp::install_counted(mode, &options)? {
        Some(listener) => denials::hand_over(&listener, launcher).step("refusals"),
        None => Ok(()),
    }
}

/// Confines a file worker, which never starts a process.
pub fn confine_worker(setup: &SandboxSetup) -> Result<(), StepError> {
    drop_rights(setup, &Rlimits::default())?;
    seccomp::install(&seccomp::file_worker(setup.mechanism == Mechanism::Landlock))
}

fn drop_rights(setup: &SandboxSetup, rlimits: &Rlimits) -> Result<(), StepError> {
    limits::apply(rlimits)?;
    mark::apply(setup.network).step("mark")?;
    privileges::drop_all()?;
    match setup.mechanism {
        Mechanism::Namespaces => restrict_files(setup),
        Mechanism::Landlock => restrict_alone(setup),
    }
}

/// Restricts reads and writes with Landlock, independently of the mounts.
fn restrict_files(setup: &SandboxSetup) -> Result<(), StepError> {
    // The private devices. The terminal was opened outside and is allowed by its descriptor.
    let own = ["/dev", "/proc"].map(|path| writable(Path::new(path)));
    let stdin = io::stdin();
    let read_root = setup.view.base == Base::Everything;
    // A rule allows everything below its path, so that of the root includes all that only allow reading.
    let places = places(setup).filter(|rule| !read_root || rule.access != Access::Read);
    let rules = LandlockRules {
        read_root,
        rules: places.chain(own).chain(terminal(&stdin)).collect(),
        no_tcp: false,
    };
    landlock::restrict(&rules).map(drop)
}

/// The devices of a command without a private `/dev`; all others belong to the machine.
const DEVICES: [&str; 6] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// Landlock as the only layer: everything except devices is readable, only the policy's paths are writable.
fn restrict_alone(setup: &SandboxSetup) -> Result<(), StepError> {
    let abi = landlock::kernel_abi().step("landlock")?;
    if abi < landlock::ALONE_ABI {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)).step("landlock");
    }
    // Landlock has no deny rules, so everything except devices is allowed one by one.
    let readable = below_root().step("landlock root")?;
    let readable = readable.iter().map(|path| rule(path, Access::Read));
    let devices = DEVICES.map(|path| writable(Path::new(path)));
    let stdin = io::stdin();
    let rules = LandlockRules {
        read_root: false,
        rules: [rule(Path::new("/"), Access::List)]
            .into_iter()
            .chain(readable)
            .chain(devices)
            .chain(places(setup))
            .chain(terminal(&stdin))
            .collect(),
        no_tcp: setup.network == Network::Isolated,
    };
    landlock::restrict(&rules).map(drop)
}

fn below_root() -> io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir("/")?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let paths: io::Result<Vec<_>> = paths.collect();
    Ok(paths?.into_iter().filter(|path| path != Path::new("/dev")).collect())
}

fn places(setup: &SandboxSetup) -> impl Iterator<Item = LandlockRule<'_>> {
    setup.view.places.iter().filter_map(|place| {
        let access = match place.access {
            MountAccess::Writable => Access::Write,
            MountAccess::ReadOnly => Access::Read,
            MountAccess::Denied => return None,
        };
        Some(rule(&place.path, access))
    })
}

fn terminal(stdin: &io::Stdin) -> Option<LandlockRule<'_>> {
    rustix::termios::isatty(stdin)
        .then(|| LandlockRule { target: RuleTarget::Fd(stdin.as_fd()), access: Access::Write })
}

fn writable(path: &Path) -> LandlockRule<'_> {
    rule(path, Access::Write)
}

fn rule(path: &Path, access: Access) -> LandlockRule<'_> {
    LandlockRule { target: RuleTarget::Path(path), access }
}
