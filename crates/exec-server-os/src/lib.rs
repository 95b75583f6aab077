//! Operating-system layer of exec-server: processes, files, sandboxes and limits.
//!
//! | module | purpose |
//! |---|---|
//! | [`spawn`] | platform-independent types for starting a child |
//! | [`env_policy`] | computes the environment of a child |
//! | [`secret_names`] | recognises variable names that denote secrets |
//! | [`limits`] | chooses the mechanism for each resource limit |
//! | [`host`] | facts about this machine and its user |
//! | [`users`] | names of users and groups |
//! | [`probe`] | results of probing which limits can be enforced |
//! | `linux` | the Linux implementation: clone, pipes, terminals, trees, cgroups, the guardian |
//! | `unsupported` | stubs for other platforms, which return errors |
//!
//! All `unsafe` of the project is in `linux`.

pub mod env_policy;
pub mod host;
pub mod limits;
pub mod peer;
pub mod probe;
pub mod secret_names;
pub mod spawn;
pub mod users;

#[cfg(target_os = "linux")]
pub mod linux;
#[cfg(target_os = "linux")]
use linux as platform;
#[cfg(not(target_os = "linux"))]
mod unsupported;
#[cfg(not(target_os = "linux"))]
use unsupported as platform;

pub use platform::cgroup::CgroupParent;
pub use platform::exit_watch::ExitWatch;
pub use platform::guardian::{Guardian, enter_guardian};
pub use platform::held_signals::{HeldSignals, ignore_stops};
pub use platform::leftovers::{Leftovers, ServerRecord};
pub use platform::oom::OomCounter;
pub use platform::own_terminal::{RawMode, stdin_is_empty, terminal_size};
pub use platform::peer::Peers;
pub use platform::pipes::{ChildInput, ChildOutput};
pub use platform::process_tree::{
    ProcessTree, TreeTag, end_all_trees, prepare_to_adopt, reap_orphans,
};
pub use platform::signals::{SIGKILL, SIGTERM};
pub use platform::signals::{access_denied, errno_name, number as signal_number, signal_name};
pub use platform::spawner::Spawner;
pub use platform::startup::{
    conceal_memory, raise_open_file_limit, survive_file_size_limit, tune_allocator,
};
