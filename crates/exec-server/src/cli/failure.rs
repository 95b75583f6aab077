//! Errors of client commands, with hints and exit codes.

mod relay;

use std::io;

pub use exec_server::logging::chain;
use exec_server_client::{DialError, EnvironmentsError, ExecServerError, UpgradeFailure};

use super::format::plain_lines;

/// exec-server failed before the command could run, as in docker.
pub const OUR_FAILURE: u8 = 125;
/// The program exists but cannot be executed, as in a shell.
pub const NOT_EXECUTABLE: u8 = 126;
/// The program is not found, as in a shell.
pub const NOT_FOUND: u8 = 127;
/// The connection or the authentication failed, as in ssh.
const LINK_FAILURE: u8 = 255;
/// Another client took the process over.
pub const TAKEN_OVER: u8 = 254;

/// Why a client command failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The arguments contradict each other.
    #[error("{0}")]
    Usage(String),
    /// The target cannot be resolved.
    #[error(transparent)]
    Environments(#[from] EnvironmentsError),
    /// No registry URL for `env:NAME`.
    #[error("no registry is configured for `{0}`")]
    NoRegistry(String),
    /// The server rejected the request, or could not be reached.
    #[error(transparent)]
    Client(#[from] ExecServerError),
    /// A failure with its subject, such as a path.
    #[error("{what}")]
    About {
        /// The subject.
        what: String,
        /// The failure.
        source: Box<Failure>,
    },
    /// A program could not be started, for a reason that has a shell exit code.
    #[error("could not start")]
    NotStarted {
        /// 126 or 127.
        code: u8,
        /// The failure.
        source: Box<Failure>,
    },
    /// A local operation failed.
    #[error("{what}")]
    Local {
        /// The failed operation.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// There is no such process.
    #[error("there is no process `{0}`")]
    NoProcess(String),
    /// The id is ambiguous.
    #[error("`{id}` is more than one process: {}", .found.join(", "))]
    ManyProcesses {
        /// The id that was given.
        id: String,
        /// The matching ids.
        found: Vec<String>,
    },
    /// The connection was lost for good.
    #[error("lost the connection: {0}")]
    LinkLost(String),
    /// The server no longer knows the command.
    #[error("{0}")]
    Gone(Gone),
    /// Another client is attached to the process.
    #[error("`{id}` is attached to another client ({holder})")]
    AttachedElsewhere {
        /// The process.
        id: String,
        /// Client name and age of the other session.
        holder: String,
        /// The command that attaches.
        attach_command: String,
    },
    /// Another client took the process over.
    #[error("taken over by another client")]
    TakenOver {
        /// The command that attaches.
        attach_command: String,
    },
    /// A signal ended this client; the exit code.
    #[error("interrupted")]
    Interrupted(u8),
    /// The user left by keys.
    #[error("{0}")]
    Left(String),
    /// Some of the operands failed.
    #[error("{0}")]
    Partly(String),
}

/// Why a server no longer knows a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Gone {
    /// The server was restarted.
    #[error("the server was restarted; the command is gone")]
    Restarted,
    /// The server still runs, so the session or process has expired.
    #[error("the server no longer has the session of the command; the command is gone")]
    Expired,
    /// The server has no instance id, so a restart cannot be detected.
    #[error("the server was restarted, or no longer has the session; the command is gone")]
    Unknown,
}

impl Failure {
    /// A local operation failed; `what` names it.
    pub fn local(what: impl Into<String>, source: io::Error) -> Self {
        Self::Local { what: what.into(), source }
    }

    /// Adds the subject of the failure.
    pub fn about(self, what: impl Into<String>) -> Self {
        Self::About { what: what.into(), source: Box::new(self) }
    }

    /// Whether the connection was lost, so that a retry may succeed.
    pub fn is_link(&self) -> bool {
        match self {
            Self::Client(error) => error.is_disconnected(),
            Self::About { source, .. } | Self::NotStarted { source, .. } => source.is_link(),
            _ => false,
        }
    }

    /// Prints the error chain and its hint to stderr.
    pub fn print(&self) {
        // An interrupt by the user needs no message.
        if let Self::Interrupted(_) = self {
            return;
        }
        // Parts of the text may come from a server.
        let mut text = format!("exec-server: {}\n", plain_lines(&chain(self)));
        if let Some(hint) = self.hint() {
            text.push_str(&plain_lines(&hint));
            text.push('\n');
        }
        super::output::print_stderr(&text);
    }

    /// The exit code; commands that exit like the remote command use 125 instead of 1.
    pub fn exit_code(&self, is_like_the_command: bool) -> u8 {
        let other = if is_like_the_command { OUR_FAILURE } else { 1 };
        match self {
            Self::About { source, .. } => source.exit_code(is_like_the_command),
            Self::NotStarted { code, .. } if is_like_the_command => *code,
            Self::LinkLost(_) | Self::Gone(_) | Self::Left(_) => LINK_FAILURE,
            Self::TakenOver { .. } => TAKEN_OVER,
            Self::Interrupted(code) => *code,
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
            Self::NotStarted { code: NOT_FOUND, .. } => Some(PROGRAM_HINT.to_owned()),
            Self::NoProcess(_) => Some("`exec-server ps -a TARGET` lists what is there".to_owned()),
            Self::ManyProcesses { .. } => Some("name it as SESSION/ID".to_owned()),
            Self::AttachedElsewhere { attach_command, .. } => {
                Some(format!("`{}` takes it from there", taking_over(attach_command)))
            }
            Self::TakenOver { attach_command } => {
                Some(format!("`{}` takes it back", taking_over(attach_command)))
            }
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

const PROGRAM_HINT: &str =
    "the program is looked up in the server's PATH; a shell's words need `sh -c '…'`";

fn taking_over(attach_command: &str) -> String {
    attach_command.replacen("attach", "attach --take-over", 1)
}

fn client_hint(error: &ExecServerError) -> Option<String> {
    match error {
        ExecServerError::SessionLost { source, .. } => client_hint(source),
        ExecServerError::Relay { environment_id, registry, source } => {
            relay::hint(environment_id, registry, source)
        }
        ExecServerError::Connect { source, .. } => match &**source {
            DialError::Upgrade(UpgradeFailure::Status(403)) => Some(
                "the server does not serve this user or this host name: connect as the server's own user, or start \
                 the server with --ws-auth, or with --allow-other-users (its log says why it refused)"
                    .to_owned(),
            ),
            DialError::Upgrade(UpgradeFailure::Status(401)) => Some(
                "the server wants a token, or another one: --token-file FILE, EXEC_SERVER_TOKEN_FILE or EXEC_SERVER_TOKEN"
                    .to_owned(),
            ),
            DialError::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused => Some(
                "no server listens at this address; start one with `exec-server --listen URL`".to_owned(),
            ),
            DialError::Handshake(_) => {
                Some("a certificate that the system does not know needs --ca-file FILE; a server without TLS is ws://".to_owned())
            }
            _ => None,
        },
        ExecServerError::Server { .. } => match error.kind()? {
            "program_not_found" => Some(PROGRAM_HINT.to_owned()),
            "name_in_use" => Some("`exec-server ps TARGET` lists what runs; `exec-server kill TARGET NAME` ends it".to_owned()),
            "edit_not_found" => {
                let nearest = error.edit_mismatch()?.nearest.as_ref()?;
                Some(format!("line {} reads:\n{}", nearest.line, nearest.text))
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
