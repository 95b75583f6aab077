//! The executor: accepts connections and serves sessions, processes, files and outgoing HTTP.
//!
//! Start with [`Server`] and [`Listener`] to serve from a program of your own, or with [`run_main`] to serve as the
//! `exec-server` program does. Sandboxes need an `exec-server` program; see [`ExecServerRuntimePaths`].
//!
//! | look here | for |
//! |---|---|
//! | `run`, [`server`], [`event_loops`] | start, serve and shut down; shared state; the threads of connections |
//! | [`config`], [`listen_url`], [`timings`], [`state_dir`], `runtime_paths` | settings and paths |
//! | [`listen`], [`auth`] | accepting connections, which process may connect, tokens and credentials |
//! | `connection`, `dispatch`, `reply`, `reply_memory`, `ignored`, `errors`, `close_codes` | from a message to its reply; error codes |
//! | `sessions`, `session_list` | sessions, and lists of them and their processes |
//! | `process`, `shell_snapshot`, `spool`, `reaper`, `user` | processes: start, task, snapshots of shells, output in files, orphans, users |
//! | `files` | `fs/*`: params, handles, batches, searches, watches, confined workers |
//! | `egress` | `http/*`: policy, exchange, redirects, pool |
//! | `environment`, `codex` | facts and capabilities of the server; compatibility with the Codex CLI |
//! | `sandbox`, [`sandbox_command`] | error codes of the plan; one command under a policy |
//! | [`remote`] | serving through a relay |
//! | `audit`, [`metrics`], [`logging`], [`service_manager`] | what an operator sees |

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
