//! The caller of exec-server: processes, files and HTTP on another machine, over a link that may break.
//!
//! ```no_run
//! # async fn example() -> Result<(), exec_server_client::ExecServerError> {
//! use exec_server_client::ExecServerClient;
//!
//! let client = ExecServerClient::connect("ws://127.0.0.1:4512").await?;
//! let output = client.command("cargo").arg("test").current_dir("/srv/project").output().await?;
//! println!("{}\n{}", output.status, output.stdout_text());
//! # Ok(())
//! # }
//! ```
//!
//! # What survives a broken link
//!
//! A server keeps a session, and all its processes, for a while after its link broke. This client dials again at once,
//! resumes the session, and reads what it missed; nobody notices but by the time that it took.
//!
//! | what | when the link breaks |
//! |---|---|
//! | output and exit of processes | arrive once and in order; what the server no longer has is a [`Gap`] |
//! | [`ProcessSession::write`] | repeated under the same name, and applied once |
//! | [`ProcessSession::read`] | repeated |
//! | start, signal, terminate, files, HTTP | never repeated: [`ExecServerError::Ambiguous`] says that nobody knows |
//! | a streamed file or body | ends with an error, never as if it were complete |
//! | a call that was not sent yet | waits for the link |
//!
//! If the session cannot be had back within [25 s](ExecServerClientConnectOptions::recovery_budget), or the server no longer
//! knows it, its processes fail with [`ProcessEvent::Failed`], and the next call opens a fresh session.
//!
//! # Where to look
//!
//! | look here | for |
//! |---|---|
//! | [`ExecServerClient`] | the front door |
//! | [`Command`], [`Child`] | commands in the manner of `std::process` |
//! | [`ProcessSession`], [`ProcessEvents`] | one process in every detail |
//! | [`ExecutorFileSystem`] | files, whole and as streams |
//! | [`HttpClient`] | HTTP from where the server stands |
//! | [`Environments`] | `environments.toml` and the variables beside it |
//! | [`RemoteExecServerClient`], [`RemoteExecServerSession`] | the logical client and its durable state |
//! | [`ExecServerConnection`] | one live link, without recovery |
//! | [`relay`] | environments that only a registry can show the way to |
//! | [`Dial`] | other ways to a server |

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
mod inbound;
mod options;
mod process;
mod process_state;
pub mod relay;
mod remote_path;
mod routes;
mod session;
mod stdio;

pub use child::{Child, ChildOutput, ExitStatus, Output};
pub use child_stdin::ChildStdin;
pub use client::RemoteExecServerClient;
pub use command::{Command, Stdin};
pub use connection::ExecServerConnection;
pub use dial::{Dial, DialWith, Dialing, OnceDial};
pub use environments::{Environment, Environments, EnvironmentsError, Way};
pub use error::ExecServerError;
pub use events::ProcessEvents;
pub use exec_server_machines::event_order::{Gap, ProcessEvent, ProcessExit};
pub use exec_server_protocol as protocol;
pub use exec_server_transport::connection::Wire;
pub use exec_server_transport::dial::{DialError, ServerUrlError};
pub use exec_server_transport::proxy::Proxies;
pub use exec_server_transport::registry::{RegistryError, RegistryUrlError, registry_name};
pub use exec_server_transport::websocket::UpgradeFailure;
pub use files::{
    ExecutorFileSystem, FileReadStream, FileWriteStream, MissingWatch, Parents, Removal,
};
pub use front::ExecServerClient;
pub use http::{HttpClient, HttpResponseBodyStream};
pub use options::{ExecServerClientConnectOptions, RemoteExecServerConnectArgs};
pub use process::ProcessSession;
pub use relay::{ExecutorTrust, RelayConnectArgs, RelayDial, RelayError, TokenSource};
pub use remote_path::RemotePath;
pub use session::{RemoteExecServerSession, SessionStatus};
pub use stdio::StdioServer;
