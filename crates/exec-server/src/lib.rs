//! The executor: listens, keeps sessions, owns processes; and the client to call one.
//!
//! Start with [`run_main`] to serve as the `exec-server` program does, with [`Server`] and [`Listener`] to serve
//! from a program of your own, or with [`ExecServerClient`] to run commands on a server.

pub mod auth;
pub mod config;
pub mod listen;
pub mod listen_url;
pub mod logging;
pub mod metrics;
pub mod sandbox_command;
pub mod server;
pub mod shards;
pub mod state_dir;
pub mod timings;

mod close_codes;
mod connection;
mod discovery;
mod dispatch;
mod environment;
mod environment_config;
mod errors;
mod files;
mod http;
mod lookups;
mod processes;
mod reaper;
mod reply;
mod run;
mod sandbox;
mod sessions;
mod shell_snapshot;

pub use config::ServerConfig;
pub use exec_server_client as client;
pub use exec_server_client::{
    Child, ChildOutput, ChildStdin, Command, Dial, DialWith, Environment, Environments,
    EnvironmentsError, ExecServerClient, ExecServerClientConnectOptions, ExecServerConnection,
    ExecServerError, ExecutorFileSystem, ExitStatus, FileReadStream, FileWriteStream, Gap,
    HttpClient, HttpResponseBodyStream, OnceDial, Output, Parents, ProcessEvent, ProcessEvents,
    ProcessExit, ProcessSession, RemoteExecServerClient, RemoteExecServerConnectArgs,
    RemoteExecServerSession, RemotePath, Removal, SessionStatus, Stdin, StdioServer,
};
pub use exec_server_protocol as protocol;
pub use exec_server_protocol::environment::*;
pub use exec_server_protocol::fs::*;
pub use exec_server_protocol::http::*;
pub use exec_server_protocol::initialize::*;
pub use exec_server_protocol::process::*;
pub use listen::{ListenError, Listener};
pub use listen_url::{DEFAULT_LISTEN_URL, ExecServerListenUrlParseError, ListenUrl};
pub use run::{RunError, run_main};
pub use server::Server;
