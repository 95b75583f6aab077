//! What went wrong, what to do about it, and the exit code that says so.

mod relay;

use std::io;

pub use exec_server::logging::chain;
use exec_server_client::{DialError, EnvironmentsError, ExecServerError, UpgradeFailure};

/// Something of ours went wrong before a command could run, in the words of containers.
pub const OUR_FAILURE: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// The link or the login failed, in the words of ssh.
const LINK_FAILURE: u8 = 255;

/// Why a command did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The arguments make no sense together.
    #[error("{0}")]
    Usage(String),
    /// Nobody knows where the server is.
    #[error(transparent)]
    Environments(#[from] EnvironmentsError),
    /// Nobody said which registry knows an environment.
    #[error("which registry knows `{0}`?")]
    NoRegistry(String),
    /// The server refused, or could not be reached.
    #[error(transparent)]
    Client(#[from] ExecServerError),
    /// The same, about something in particular.
    #[error("{what}")]
    About {
        /// What it is about.
        what: String,
        /// What happened.
        source: Box<Failure>,
    },
    /// Something on this machine did not work.
    #[error("{what}")]
    Here {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// There is no such process.
    #[error("there is no process `{0}`")]
    NoProcess(String),
    /// There are several.
    #[error("`{id}` is more than one process: {}", .found.join(", "))]
    ManyProcesses {
        /// What was asked for.
        id: String,
        /// What was found.
        found: Vec<String>,
    },
    /// The connection was lost for good.
    #[error("lost the connection: {0}")]
    LinkLost(String),
    /// Something was done, and something was not.
    #[error("{0}")]
    Partly(String),
}

impl Failure {
    /// Something on this machine did not work.
    pub fn here(what: impl Into<String>, source: io::Error) -> Self {
        Self::Here { what: what.into(), source }
    }

    /// The same, and what it is about.
    pub fn about(self, what: impl Into<String>) -> Self {
        Self::About { what: what.into(), source: Box::new(self) }
    }

    /// Whether the link broke, so that it may work the next time.
    pub fn is_link(&self) -> bool {
        match self {
            Self::Client(error) => error.is_disconnected(),
            Self::About { source, .. } => source.is_link(),
            _ => false,
        }
    }

    /// Says it on stderr.
    pub fn print(&self) {
        eprintln!("exec-server: {}", chain(self));
        if let Some(hint) = self.hint() {
            eprintln!("{hint}");
        }
    }

    /// The exit code; a command that behaves like the one it runs keeps out of that one's codes.
    pub fn exit_code(&self, is_like_the_command: bool) -> u8 {
        let other = if is_like_the_command { OUR_FAILURE } else { 1 };
        match self {
            Self::About { source, .. } => source.exit_code(is_like_the_command),
            Self::LinkLost(_) => LINK_FAILURE,
            Self::Client(error) => match error {
                ExecServerError::Connect { .. }
                | ExecServerError::Relay { .. }
                | ExecServerError::ConnectTimeout { .. }
                | ExecServerError::InitializeTimedOut { .. }
                | ExecServerError::Spawn { .. }
                | ExecServerError::ProcessFailed { .. } => LINK_FAILURE,
                error if error.is_disconnected() => LINK_FAILURE,
                error if is_like_the_command => match error.kind() {
                    Some("program_not_found") => NOT_FOUND,
                    Some("program_not_executable" | "program_unusable") => NOT_EXECUTABLE,
                    _ => other,
                },
                _ => other,
            },
            _ => other,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::About { source, .. } => source.hint(),
            Self::NoProcess(_) => Some("`exec-server ps -a TARGET` lists what is there".to_owned()),
            Self::ManyProcesses { .. } => Some("name it as SESSION/ID".to_owned()),
            Self::NoRegistry(_) => {
                Some("name it with --remote URL, or set EXEC_SERVER_REMOTE_URL".to_owned())
            }
            Self::Environments(EnvironmentsError::None) => {
                Some("name a server: a URL such as ws://127.0.0.1:7777, or set EXEC_SERVER_URL".to_owned())
            }
            Self::Environments(EnvironmentsError::Unknown(_)) => Some(
                "names are looked up in environments.toml; anything else needs ws://, wss://, unix://, env: or stdio:"
                    .to_owned(),
            ),
            Self::Client(error) => client_hint(error),
            _ => None,
        }
    }
}

fn client_hint(error: &ExecServerError) -> Option<String> {
    match error {
        ExecServerError::SessionLost { source, .. } => client_hint(source),
        ExecServerError::Relay { environment_id, registry, source } => {
            relay::hint(environment_id, registry, source)
        }
        ExecServerError::Connect { source, .. } => match &**source {
            DialError::Upgrade(UpgradeFailure::Status(401)) => Some(
                "the server wants a token, or another one: --token-file FILE, EXEC_SERVER_TOKEN_FILE or EXEC_SERVER_TOKEN"
                    .to_owned(),
            ),
            DialError::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused => Some(
                "nobody listens there; `exec-server --listen URL` starts a server".to_owned(),
            ),
            DialError::Handshake(_) => {
                Some("a certificate that the system does not know needs --ca-file FILE; a server without TLS is ws://".to_owned())
            }
            _ => None,
        },
        ExecServerError::Server { .. } => match error.kind()? {
            "program_not_found" => {
                Some("the program is looked up in the server's PATH; a shell's words need `sh -c '…'`".to_owned())
            }
            "cwd_not_found" => Some("-w DIR is a directory of the server".to_owned()),
            "session_attached" => Some("--take-over takes it from there".to_owned()),
            "sandbox_failed" | "sandbox_unsupported" => {
                Some("`exec-server doctor TARGET` says what the server can enforce".to_owned())
            }
            _ => None,
        },
        ExecServerError::Unsupported(_) => {
            Some("it is another server or an older one; `exec-server info TARGET` says what it can do".to_owned())
        }
        _ => None,
    }
}
