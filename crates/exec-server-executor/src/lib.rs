//! The executor: accepts connections and serves sessions, processes, files and outgoing HTTP.
//!
//! Start with [`Server`] and [`Listener`] to serve from a program of your own, or with [`run_main`] to serve as the
//! `exec-server` program does. Sandboxes need an `exec-server` program; see [`ExecServerRuntimePaths`].

pub mod auth;
pub mod config;
pub mod event_loops;
pub mod listen;
pub mod listen_url;
pub mod logging;
pub mod metrics;
pub mod remote;
pub mod sandbox_command;
pub mod server;
#[cfg_attr(not(target_os = "linux"), path = "no_service_manager.rs")]
pub mod service_manager;
pub mod state_dir;
pub mod timings;

mod audit;
mod close_codes;
mod codex;
mod connection;
mod dispatch;
mod egress;
mod environment;
mod errors;
mod files;
mod ignored;
mod process;
mod reaper;
mod reply;
mod reply_memory;
mod request_spans;
mod run;
mod runtime_paths;
mod sandbox;
mod session_list;
mod sessions;
mod shell_snapshot;
mod spool;
mod user;

pub use config::ServerConfig;
pub use listen::{ListenError, Listener};
pub use listen_url::{DEFAULT_LISTEN_URL, ExecServerListenUrlParseError, ListenUrl};
pub use remote::{RemoteEnvironmentConfig, run_remote_environment};
pub use run::{RunError, run_main, stop_signal};
pub use runtime_paths::ExecServerRuntimePaths;
pub use server::Server;
