//! Facade of the executor (listener, sessions, processes) and of the client that connects to it.
//!
//! Use [`run_main`] to serve as the `exec-server` program does, [`Server`] and [`Listener`] to embed a server (sandboxes
//! then need the path of an `exec-server` program, see [`ExecServerRuntimePaths`]), or [`ExecServerClient`] to run
//! commands on a server.
//!
//! # Run a command
//!
//! ```
//! # use exec_server::{ExecServerClient, Listener, Server, ServerConfig, DEFAULT_LISTEN_URL};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = Server::new(ServerConfig::new(DEFAULT_LISTEN_URL.parse()?))?;
//! # let listener = Listener::bind(&server).await?;
//! # let url = listener.url()?;
//! # let serving = server.clone();
//! # tokio::spawn(async move { listener.serve(&serving).await });
//! let client = ExecServerClient::connect(url).await?;
//! let mut command = client.command("sh");
//! command.args(["-c", "echo $GREETING; exit 3"]).current_dir("/tmp").env("GREETING", "hello");
//! let output = command.output().await?;
//! assert_eq!(output.stdout_text(), "hello\n");
//! assert_eq!(output.status.code(), 3);
//! # client.close().await;
//! # server.shut_down().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Talk to a running command
//!
//! ```
//! # use exec_server::{ExecServerClient, Listener, Server, ServerConfig, DEFAULT_LISTEN_URL};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = Server::new(ServerConfig::new(DEFAULT_LISTEN_URL.parse()?))?;
//! # let listener = Listener::bind(&server).await?;
//! # let url = listener.url()?;
//! # let serving = server.clone();
//! # tokio::spawn(async move { listener.serve(&serving).await });
//! # let client = ExecServerClient::connect(url).await?;
//! use exec_server::Stdin;
//! use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
//!
//! let mut child = client.command("cat").stdin(Stdin::Piped).kill_on_drop(true).spawn().await?;
//! let mut stdin = child.stdin.take().expect("stdin is piped");
//! let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
//! stdin.write_all(b"hello\n").await?;
//! assert_eq!(lines.next_line().await?.as_deref(), Some("hello"));
//! drop(stdin);
//! assert!(child.wait().await?.success());
//! # client.close().await;
//! # server.shut_down().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Files
//!
//! ```
//! # use exec_server::{ExecServerClient, Listener, Server, ServerConfig, DEFAULT_LISTEN_URL};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = Server::new(ServerConfig::new(DEFAULT_LISTEN_URL.parse()?))?;
//! # let listener = Listener::bind(&server).await?;
//! # let url = listener.url()?;
//! # let serving = server.clone();
//! # tokio::spawn(async move { listener.serve(&serving).await });
//! # let client = ExecServerClient::connect(url).await?;
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("notes.txt");
//! let files = client.fs();
//! files.write_file(&path, "remember\n").await?;
//! assert_eq!(files.read_file_text(&path).await?, "remember\n");
//! let mut stream = files.read_file_stream(&path).await?;
//! while let Some(block) = stream.next_block().await? {
//!     println!("{} bytes", block.len());
//! }
//! # client.close().await;
//! # server.shut_down().await;
//! # Ok(())
//! # }
//! ```

pub use exec_server_client as client;
pub use exec_server_client::{
    Child, ChildOutput, ChildStdin, Command, Dial, DialWith, Environment, Environments,
    EnvironmentsError, ExecServerClient, ExecServerClientConnectOptions, ExecServerConnection,
    ExecServerError, ExecutorFileSystem, ExitStatus, FileReadStream, FileWriteStream, Gap,
    HttpClient, HttpResponseBodyStream, OnceDial, Output, Parents, ProcessEvent, ProcessEvents,
    ProcessExit, ProcessSession, RelayConnectArgs, RemoteExecServerClient,
    RemoteExecServerConnectArgs, RemoteExecServerSession, RemotePath, Removal, SearchPage,
    SearchPages, SessionStatus, Stdin, StdioServer, TreeWatch,
};
pub use exec_server_executor::{
    DEFAULT_LISTEN_URL, ExecServerListenUrlParseError, ExecServerRuntimePaths, ListenError,
    ListenUrl, Listener, RemoteEnvironmentConfig, RunError, Server, ServerConfig, run_main,
    run_remote_environment, stop_signal,
};
pub use exec_server_executor::{
    auth, config, event_loops as shards, listen, listen_url, logging, metrics, remote,
    sandbox_command, server, service_manager, state_dir, timings,
};
pub use exec_server_protocol as protocol;
pub use exec_server_protocol::environment::*;
pub use exec_server_protocol::fs::*;
pub use exec_server_protocol::http::*;
pub use exec_server_protocol::initialize::*;
pub use exec_server_protocol::process::*;
