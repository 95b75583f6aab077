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

mod work_clock;

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
use linux as platform;

pub use exec_server_os::linux::directory::Directory as PlaceholderDirectory;
pub use platform::denials::RefusedCalls;
pub use platform::foreground::{run_in_foreground, sandbox_trial, working_mechanism};
pub use platform::launch::use_zygote_program;
pub use platform::limits::limit_means;
pub use platform::netns::SandboxNetwork;
pub use platform::placeholders::{Claim as PlaceholderClaim, Journal as PlaceholderJournal};
pub use platform::probe::{probe, probe_limits};
pub use platform::report::expected as expected_sandbox;
pub use platform::rootfs::check_writable_root;
pub use platform::spawner::{PendingStart, SandboxSpawner, SandboxedChild};
pub use platform::worker::client::{ConfinedFile, FileWorker, WorkerOutcome};
pub use platform::zygote::{ZYGOTE_ARGUMENT, run_zygote};
pub use setup::{Base, Mechanism, MountAccess, MountRule, Network, RootfsSpec, SandboxSetup};
pub use work_clock::{MOST_WORK, WorkClock};
