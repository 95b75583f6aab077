//! Client of exec-server: runs processes, handles files and makes HTTP requests on another machine, and reconnects.
//!
//! ```no_run
//! # async fn example() -> Result<(), exec_server_client::ExecServerError> {
//! use exec_server_client::ExecServerClient;
//!
//! let client = ExecServerClient::connect("ws://127.0.0.1:7777").await?;
//! let output = client.command("cargo").arg("test").current_dir("/srv/project").output().await?;
//! println!("{}\n{}", output.status, output.stdout_text());
//! # Ok(())
//! # }
//! ```
//!
//! # What survives a disconnect
//!
//! A server keeps a session and its processes for a while after the connection breaks. The client reconnects at once,
//! resumes the session and reads the events that it missed. The caller sees a delay, and what this table lists:
//!
//! | what | when the connection breaks |
//! |---|---|
//! | output and exit of processes | arrive once and in order; output that the server evicted is reported as a [`Gap`] |
//! | [`ProcessSession::write`] | retried with the same write id, and applied once |
//! | [`ProcessSession::read`] | retried |
//! | start | retried, and started once; on servers without `processStartRetry` as the next row |
//! | signal, terminate, changes of files, HTTP | not retried: [`ExecServerError::Ambiguous`] if the outcome is unknown |
//! | a streamed file or body | ends with an error |
//! | a call that was not sent yet | waits for the new connection |
//!
//! If the session cannot be resumed within [55 s](ExecServerClientConnectOptions::recovery_budget), or the server no
//! longer knows it, its processes fail with [`ProcessEvent::Failed`], and the next call opens a new session.
//!
//! # Where to look
//!
//! | look here | for |
//! |---|---|
//! | [`ExecServerClient`] | the entry point: a client that reconnects |
//! | [`Command`], [`Child`] | commands with the interface of `std::process` |
//! | [`ProcessSession`], [`ProcessEvents`] | one process with all operations and events of the protocol |
//! | [`ExecutorFileSystem`] | files, whole and as streams |
//! | [`HttpClient`] | HTTP requests that the server makes |
//! | [`Environments`] | `environments.toml` and the variables that replace it |
//! | [`RemoteExecServerClient`], [`RemoteExecServerSession`] | the client across connections, and its durable state |
//! | [`ExecServerConnection`] | one connection, without recovery |
//! | [`relay`] | environments that are reached through a registry and its relay |
//! | [`Dial`] | other transports |
//! | [`Tracing`], [`with_trace_context`] | the trace that calls belong to |

#![warn(unreachable_pub)]

mod call;
mod caller;
mod child;
mod child_stdin;
mod client;
mod command;
mod connection;
mod dial;
mod driver;
pub mod environments;
mod error;
mod events;
mod files;
mod front;
mod http;
mod http_body;
mod ignored;
mod inbound;
mod options;
mod process;
mod process_state;
pub mod relay;
mod remote_path;
mod routes;
mod session;
mod stdio;
mod trace;

pub use child::{Child, ChildOutput, ExitStatus, Output};
pub use child_stdin::ChildStdin;
pub use client::RemoteExecServerClient;
pub use command::{Command, Stdin};
pub use connection::ExecServerConnection;
pub use dial::{Dial, DialWith, Dialing, OnceDial};
pub use environments::{Endpoint, Environment, Environments, EnvironmentsError};
pub use error::ExecServerError;
pub use events::ProcessEvents;
pub use exec_server_core::event_order::{Gap, ProcessEvent, ProcessExit};
pub use exec_server_protocol as protocol;
pub use exec_server_protocol::trace_context::TraceContext;
pub use exec_server_relay::registry_client::{RegistryError, RegistryUrlError, registry_name};
pub use exec_server_transport::connection::Wire;
pub use exec_server_transport::dial::{DialError, ServerUrlError};
pub use exec_server_transport::proxy::Proxies;
pub use exec_server_transport::spans;
pub use exec_server_transport::websocket::UpgradeFailure;
pub use files::{
    ExecutorFileSystem, FileReadStream, FileWriteStream, MissingWatch, Parents, Removal,
    SearchPage, SearchPages, TreeWatch,
};
pub use front::ExecServerClient;
pub use http::{HttpClient, HttpResponseBodyStream};
pub use ignored::IgnoredListener;
pub use options::{ExecServerClientConnectOptions, RemoteExecServerConnectArgs};
pub use process::ProcessSession;
pub use relay::{ExecutorTrust, RelayConnectArgs, RelayDial, RelayError, TokenSource};
pub use remote_path::RemotePath;
pub use session::{RemoteExecServerSession, SessionStatus};
pub use stdio::StdioServer;
pub use trace::{Tracing, with_trace_context};
