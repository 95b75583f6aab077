//! What a command loses before it runs: in this order, because each step needs what the next one takes away.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use super::filter::{self, FilterOptions, NetworkMode};
use super::landlock::{self, Access, LandlockRule, LandlockRules, Place};
use super::limits::{self, Limits};
use super::step::{Step, StepError};
use super::view::{Base, PlaceAccess};
use super::{Network, SandboxSetup, denials, privileges};

/// Confines a command; the calling process is inside the view already and has one thread.
///
/// The launcher is told where refusals wait for its answer.
pub fn confine_command(setup: &SandboxSetup, launcher: BorrowedFd) -> Result<(), StepError> {
    drop_rights(setup)?;
    let mode = match setup.network {
        Network::Isolated => NetworkMode::Restricted,
        Network::Host => NetworkMode::Enabled,
    };
    match filter::install_counted(mode, &FilterOptions::default())? {
        Some(listener) => denials::hand_over(&listener, launcher).step("refusals"),
        None => Ok(()),
    }
}

/// Confines a worker for files, which never needs to start anything.
pub fn confine_worker(setup: &SandboxSetup) -> Result<(), StepError> {
    drop_rights(setup)?;
    filter::install(&filter::file_worker())
}

fn drop_rights(setup: &SandboxSetup) -> Result<(), StepError> {
    limits::apply(&Limits::default())?;
    privileges::drop_all()?;
    restrict_files(setup)
}

/// The second lock: what may be read and written at all, whatever is mounted where.
fn restrict_files(setup: &SandboxSetup) -> Result<(), StepError> {
    let places = setup.view.places.iter().filter_map(|place| {
        let access = match place.access {
            PlaceAccess::Writable => Access::Write,
            PlaceAccess::ReadOnly => Access::Read,
            PlaceAccess::Denied => return None,
        };
        Some(LandlockRule { place: Place::Path(&place.path), access })
    });
    // Devices of the view's own; the terminal was opened outside and is known by its descriptor only.
    let own = ["/dev", "/proc"]
        .map(|path| LandlockRule { place: Place::Path(Path::new(path)), access: Access::Write });
    let stdin = std::io::stdin();
    let terminal = rustix::termios::isatty(&stdin)
        .then(|| LandlockRule { place: Place::Fd(stdin.as_fd()), access: Access::Write });
    let rules = LandlockRules {
        read_root: setup.view.base == Base::Everything,
        rules: places.chain(own).chain(terminal).collect(),
    };
    landlock::restrict(&rules).map(drop)
}
