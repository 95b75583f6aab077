//! Processes of exec-server: spawning, terminals, signals, process trees, cgroups, the guardian, limits.
//!
//! | module | purpose |
//! |---|---|
//! | [`spawn`] | platform-independent types for starting a child |
//! | [`env_policy`] | computes the environment of a child |
//! | [`secret_names`] | recognises variable names that denote secrets |
//! | [`limits`] | chooses the mechanism for each resource limit |
//! | [`host`] | facts about this machine and its user |
//! | [`users`] | names of users and groups |
//! | [`accounts`] | users with their groups, home and shell |
//! | [`probe`] | results of probing which limits can be enforced |
//! | [`inherited`] | a listening socket that a service manager opened |
//! | [`peer`] | the peer process of a connection, and the mark by which a sandboxed one is recognised |
//! | `linux` | the Linux implementation: clone, pipes, terminals, trees, cgroups, the guardian |
//! | `unsupported` | entry points of other platforms, which return errors |

pub mod accounts;
pub mod env_policy;
pub mod host;
pub mod inherited;
pub mod limits;
pub mod peer;
pub mod probe;
pub mod secret_names;
pub mod spawn;
pub mod users;

mod guardian;
mod tree_tag;

#[cfg(all(target_os = "linux", not(exec_server_unsupported)))]
pub mod linux;
#[cfg(not(all(target_os = "linux", not(exec_server_unsupported))))]
mod unsupported;

pub use guardian::{Guardian, Leftovers};
pub use tree_tag::TreeTag;

#[cfg(all(target_os = "linux", not(exec_server_unsupported)))]
pub use linux::{
    cgroup::CgroupParent,
    credentials::can_change_users,
    exit_watch::ExitWatch,
    guardian::enter_guardian,
    held_signals::{HeldSignals, ignore_stops},
    inherited::inherited_listener,
    leftovers::ServerRecord,
    notify::{NotifySocket, watchdog_interval},
    oom::OomCounter,
    own_terminal::{RawMode, stdin_is_empty, terminal_size},
    peer::Peers,
    pipes::{ChildInput, ChildOutput},
    process_tree::{ProcessTree, end_all_trees, prepare_to_adopt, reap_orphans},
    signals::{SIGKILL, SIGTERM, access_denied, errno_name, number as signal_number, signal_name},
    spawner::Spawner,
    startup::{
        conceal_memory, open_file_limit, raise_open_file_limit, release_free_memory,
        survive_file_size_limit, tune_allocator,
    },
};
#[cfg(not(all(target_os = "linux", not(exec_server_unsupported))))]
pub use unsupported::*;
