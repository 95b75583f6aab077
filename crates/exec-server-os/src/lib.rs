//! The hands of exec-server: everything that only the operating system can do.
//!
//! | look here | for |
//! |---|---|
//! | [`spawn`] | what to start and what comes back; the same on every platform |
//! | [`env_policy`] | which environment a child gets |
//! | [`files`] | what can be asked of a file system, and what comes back |
//! | [`limits`] | what limits a process, decided from what this machine has |
//! | [`host`] | facts about this machine and its user |
//! | [`mod@probe`] | what this machine can enforce |
//! | [`sandbox`] | what a request may touch, compiled from the wire |
//! | [`MissingWatch`] | being told when a missing path appears |
//! | `linux` | the one implementation so far: clone, pipes, terminals, trees, cgroups, the guardian |
//! | `unsupported` | what other platforms answer until they have their own |
//!
//! All `unsafe` of the project is in `linux`.

pub mod env_policy;
pub mod files;
pub mod host;
pub mod limits;
pub mod probe;
pub mod sandbox;
pub mod spawn;

mod byte_fields;
mod missing_watch;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as platform;
#[cfg(not(target_os = "linux"))]
mod unsupported;
#[cfg(not(target_os = "linux"))]
use unsupported as platform;

pub use missing_watch::{MissingWatch, NotWatched};
pub use platform::cgroup::CgroupParent;
pub use platform::cgroup::probe::probe as probe_limits;
pub use platform::exit_watch::ExitWatch;
pub use platform::foreground::{
    HeldSignals, ignore_stops, run_in_foreground, sandbox_trial, working_mechanism,
};
pub use platform::guardian::{Guardian, enter_guardian};
pub use platform::oom::OomCounter;
pub use platform::own_terminal::{RawMode, terminal_size};
pub use platform::pipes::{ChildInput, ChildOutput};
pub use platform::placeholders::{Claim as PlaceholderClaim, Journal as PlaceholderJournal};
pub use platform::process_tree::{
    ProcessTree, TreeTag, end_all_trees, prepare_to_adopt, reap_orphans,
};
pub use platform::sandbox::connect_back::is_from_sandbox;
#[cfg(unix)]
pub use platform::sandbox::connect_back::is_peer_inside;
pub use platform::sandbox::denials::RefusedCalls;
pub use platform::sandbox::file_worker::{ConfinedFile, FileWorker};
pub use platform::sandbox::launch::use_zygote_program;
pub use platform::sandbox::network::SandboxNetwork;
pub use platform::sandbox::probe::probe;
pub use platform::sandbox::view::{Base, Place, PlaceAccess, View, check_writable_root};
pub use platform::sandbox::zygote::{ZYGOTE_ARGUMENT, run_zygote};
pub use platform::sandbox::{Mechanism, Network, SandboxSetup, expected as expected_sandbox};
pub use platform::signals::{SIGKILL, SIGTERM};
pub use platform::signals::{errno_name, number as signal_number, signal_name};
pub use platform::spawner::Spawner;
pub use platform::startup::{
    limit_means, raise_open_file_limit, survive_file_size_limit, tune_allocator,
};
