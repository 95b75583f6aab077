//! What a command loses before it runs: in this order, because each step needs what the next one takes away.
//!
//! With namespaces around, Landlock is a second lock; without, it is the only one, and the filter keeps what Landlock
//! does not know.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use super::filter::{self, FilterOptions, NetworkMode};
use super::landlock::{self, Access, LandlockRule, LandlockRules, Place};
use super::step::{Step, StepError};
use super::view::{Base, PlaceAccess};
use super::{Mechanism, Network, SandboxSetup, denials, keyring, limits, privileges};
use crate::limits::Rlimits;

/// Confines a command; the calling process is inside the view already and has one thread.
///
/// The launcher is told where refusals wait for its answer.
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
        keyring::begin_anew().step("keyring")?;
    }
    let options = FilterOptions { allow: setup.allow, alone, ..FilterOptions::default() };
    match filter::install_counted(mode, &options)? {
        Some(listener) => denials::hand_over(&listener, launcher).step("refusals"),
        None => Ok(()),
    }
}

/// Confines a worker for files, which never needs to start anything.
pub fn confine_worker(setup: &SandboxSetup) -> Result<(), StepError> {
    drop_rights(setup, &Rlimits::default())?;
    filter::install(&filter::file_worker(setup.mechanism == Mechanism::Landlock))
}

fn drop_rights(setup: &SandboxSetup, rlimits: &Rlimits) -> Result<(), StepError> {
    limits::apply(rlimits)?;
    privileges::drop_all()?;
    match setup.mechanism {
        Mechanism::Namespaces => restrict_files(setup),
        Mechanism::Landlock => restrict_alone(setup),
    }
}

/// The second lock: what may be read and written at all, whatever is mounted where.
fn restrict_files(setup: &SandboxSetup) -> Result<(), StepError> {
    // Devices of the view's own; the terminal was opened outside and is known by its descriptor only.
    let own = ["/dev", "/proc"].map(|path| writable(Path::new(path)));
    let stdin = io::stdin();
    let rules = LandlockRules {
        read_root: setup.view.base == Base::Everything,
        rules: places(setup).chain(own).chain(terminal(&stdin)).collect(),
        no_tcp: false,
    };
    landlock::restrict(&rules).map(drop)
}

/// The devices that a command gets without a `/dev` of its own; all others are the machine's.
const DEVICES: [&str; 6] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// The only lock: everything can be read but devices, nothing can be written but what the policy names.
fn restrict_alone(setup: &SandboxSetup) -> Result<(), StepError> {
    let abi = landlock::kernel_abi().step("landlock")?;
    if abi < landlock::ALONE_ABI {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)).step("landlock");
    }
    // There is no rule against something, so all but devices is allowed one by one.
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
            PlaceAccess::Writable => Access::Write,
            PlaceAccess::ReadOnly => Access::Read,
            PlaceAccess::Denied => return None,
        };
        Some(rule(&place.path, access))
    })
}

fn terminal(stdin: &io::Stdin) -> Option<LandlockRule<'_>> {
    rustix::termios::isatty(stdin)
        .then(|| LandlockRule { place: Place::Fd(stdin.as_fd()), access: Access::Write })
}

fn writable(path: &Path) -> LandlockRule<'_> {
    rule(path, Access::Write)
}

fn rule(path: &Path, access: Access) -> LandlockRule<'_> {
    LandlockRule { place: Place::Path(path), access }
}
