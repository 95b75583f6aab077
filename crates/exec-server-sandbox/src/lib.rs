//! The sandbox of exec-server: from the policy of a request to a confined process.
//!
//! | module | purpose |
//! |---|---|
//! | [`policy`] | compiles the `sandbox` object of a request into rules; without I/O |
//! | [`plan`] | policy and disk → [`SandboxSetup`]: writable roots, denied matches, placeholders |
//! | [`setup`] | the confinement of one process: rootfs, network, mechanism |
//! | [`mod@probe`] | what this machine can enforce |
//! | `linux` | enforcement: warm pool, zygote, launcher, rootfs, seccomp, Landlock, network namespaces, file worker |
//! | `unsupported` | entry points of other platforms, which return errors |

pub mod plan;
pub mod policy;
pub mod probe;
pub mod setup;

mod children;
mod work_clock;

#[cfg(all(target_os = "linux", not(exec_server_unsupported)))]
mod linux;
#[cfg(not(all(target_os = "linux", not(exec_server_unsupported))))]
mod unsupported;

pub use children::{SandboxedChild, Watching, WorkerOutcome, ZYGOTE_ARGUMENT};
pub use setup::{Base, Mechanism, MountAccess, MountRule, Network, RootfsSpec, SandboxSetup};
pub use work_clock::{MOST_WORK, WorkClock};

#[cfg(all(target_os = "linux", not(exec_server_unsupported)))]
pub use exec_server_os::linux::directory::Directory as PlaceholderDirectory;
#[cfg(all(target_os = "linux", not(exec_server_unsupported)))]
pub use linux::{
    denials::RefusedCalls,
    foreground::{run_in_foreground, sandbox_trial, working_mechanism},
    launch::use_zygote_program,
    limits::limit_means,
    netns::SandboxNetwork,
    placeholders::{Claim as PlaceholderClaim, Journal as PlaceholderJournal},
    probe::{probe, probe_limits},
    report::expected as expected_sandbox,
    rootfs::check_writable_root,
    spawner::{PendingStart, SandboxSpawner},
    worker::client::{ConfinedFile, FileWorker},
    zygote::run_zygote,
};
#[cfg(not(all(target_os = "linux", not(exec_server_unsupported))))]
pub use unsupported::*;
