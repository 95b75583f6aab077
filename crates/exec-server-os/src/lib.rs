//! Operating-system layer of exec-server: processes, files, sandboxes and limits.
//!
//! | module | purpose |
//! |---|---|
//! | [`spawn`] | platform-independent types for starting a child |
//! | [`env_policy`] | computes the environment of a child |
//! | [`destination`] | local destination of a copy from a server: a directory, a pipe or a device |
//! | [`secret_names`] | recognises variable names that denote secrets |
//! | [`files`] | file-system requests and replies |
//! | [`limits`] | chooses the mechanism for each resource limit |
//! | [`host`] | facts about this machine and its user |
//! | [`users`] | names of users and groups |
//! | [`mod@probe`] | results of probing the sandbox and limit features of this machine |
//! | [`search`] | searches of trees by content and by name |
//! | [`tree_watch`] | reports changes of trees |
//! | [`sandbox`] | compiled form of the sandbox policy of a request |
//! | [`MissingWatch`] | reports when a missing path appears |
//! | `linux` | the Linux implementation: clone, pipes, terminals, trees, cgroups, the guardian |
//! | `unsupported` | stubs for other platforms, which return errors |
//!
//! All `unsafe` of the project is in `linux`.

pub mod destination;
pub mod env_policy;
pub mod files;
pub mod host;
pub mod limits;
pub mod peer;
pub mod probe;
pub mod sandbox;
pub mod search;
pub mod secret_names;
pub mod spawn;
pub mod tree_watch;
pub mod users;

mod byte_fields;
mod missing_watch;
mod work_clock;

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
pub use platform::leftovers::{Leftovers, ServerRecord};
pub use platform::oom::OomCounter;
pub use platform::own_terminal::{RawMode, stdin_is_empty, terminal_size};
pub use platform::peer::Peers;
pub use platform::pipes::{ChildInput, ChildOutput};
pub use platform::placeholders::{
    Claim as PlaceholderClaim, Directory as PlaceholderDirectory, Journal as PlaceholderJournal,
};
pub use platform::process_tree::{
    ProcessTree, TreeTag, end_all_trees, prepare_to_adopt, reap_orphans,
};
pub use platform::sandbox::denials::RefusedCalls;
pub use platform::sandbox::file_worker::{ConfinedFile, FileWorker};
pub use platform::sandbox::launch::use_zygote_program;
pub use platform::sandbox::netns::SandboxNetwork;
pub use platform::sandbox::probe::probe;
pub use platform::sandbox::rootfs::{
    Base, MountAccess, MountRule, RootfsSpec, check_writable_root,
};
pub use platform::sandbox::zygote::{ZYGOTE_ARGUMENT, run_zygote};
pub use platform::sandbox::{Mechanism, Network, SandboxSetup, expected as expected_sandbox};
pub use platform::signals::{SIGKILL, SIGTERM};
pub use platform::signals::{access_denied, errno_name, number as signal_number, signal_name};
pub use platform::spawner::Spawner;
pub use platform::startup::{
    conceal_memory, limit_means, raise_open_file_limit, survive_file_size_limit, tune_allocator,
};
pub use work_clock::{MOST_WORK, WorkClock};
