//! Administers a rendezvous, over HTTP or through its local data directory.

mod remote;

use std::io;
use std::path::PathBuf;

use exec_server::protocol::escape_untrusted::escape_untrusted;
use exec_server_rendezvous::StartError;
use exec_server_rendezvous::admin::{
    self, AdminError, EnvironmentStatus, MadeToken, NewToken, NodeStatus, PUBLIC_URL,
};
use exec_server_rendezvous::clock;
use exec_server_rendezvous::data_dir::{DataDir, DataDirError};
use exec_server_rendezvous::open_store;
use exec_server_rendezvous::presence;
use exec_server_rendezvous::store::{RegistrationPolicy, SqliteStore, Store, StoreError, Token};

use remote::{RemoteError, RemoteRegistry};

/// Selects the rendezvous.
#[derive(Debug, clap::Args)]
pub struct RegistryArguments {
    /// URL of the rendezvous; needs an admin token in EXEC_SERVER_ADMIN_TOKEN, or in the file that
    /// EXEC_SERVER_ADMIN_TOKEN_FILE names.
    #[arg(long, value_name = "URL", conflicts_with = "data")]
    remote: Option<String>,
    /// Data directory of a rendezvous on this machine [default: EXEC_SERVER_RENDEZVOUS_DATA, or the default directory
    /// of
    /// `exec-server rendezvous`].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// CA certificates in PEM form for --remote https://, in place of the system's.
    #[arg(long, value_name = "FILE", env = "EXEC_SERVER_CA_FILE")]
    ca_file: Option<PathBuf>,
}

/// Output format of administrative commands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OutputFormat {
    /// Text, for people.
    #[default]
    Text,
    /// JSON, for programs.
    Json,
}

/// Why a request to a rendezvous failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// Neither --remote nor --data was given, and there is no default directory.
    #[error("no rendezvous given: use --remote URL, or --data DIR on the machine where it runs")]
    Which,
    /// The data directory cannot be used.
    #[error(transparent)]
    Data(#[from] DataDirError),
    /// The database cannot be opened.
    #[error(transparent)]
    Open(#[from] StartError),
    /// The rendezvous rejected the change.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A database operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The HTTP request failed or was rejected.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// No event loop can be made, such as without descriptors.
    #[error("could not start the runtime")]
    Runtime(#[source] io::Error),
    /// The object does not exist.
    #[error("there is no {0} `{1}`")]
    NotFound(&'static str, String),
}

/// A rendezvous to administer.
pub enum Registry {
    /// Through its data directory.
    Local(SqliteStore, DataDir),
    /// Over HTTP.
    Remote(Box<RemoteRegistry>),
}

impl RegistryArguments {
    /// Opens the selected rendezvous.
    pub fn open(&self) -> Result<Registry, RegistryError> {
        if let Some(url) = &self.remote {
            let remote = RemoteRegistry::new(url, self.ca_file.clone())?;
            return Ok(Registry::Remote(Box::new(remote)));
        }
        let data = self.data.clone().or_else(default_data_dir).ok_or(RegistryError::Which)?;
        let data = DataDir::open(&data)?;
        Ok(Registry::Local(open_store(&data)?, data))
    }
}

impl Registry {
    /// Creates a token.
    pub fn create_token(&self, new: &NewToken) -> Result<MadeToken, RegistryError> {
        Ok(match self {
            Self::Local(store, _) => wait_for(admin::create_token(store, new, clock::now()))??,
            Self::Remote(remote) => remote.create_token(new)?,
        })
    }

    /// Lists all tokens.
    pub fn tokens(&self) -> Result<Vec<Token>, RegistryError> {
        Ok(match self {
            Self::Local(store, _) => wait_for(store.tokens())??,
            Self::Remote(remote) => remote.tokens()?,
        })
    }

    /// Revokes a token.
    pub fn revoke_token(&self, id: &str) -> Result<(), RegistryError> {
        let is_there = match self {
            Self::Local(store, _) => wait_for(store.revoke_token(id.to_owned(), clock::now()))??,
            Self::Remote(remote) => remote.revoke_token(id)?,
        };
        is_there.then_some(()).ok_or_else(|| RegistryError::NotFound("token", id.to_owned()))
    }

    /// Deletes a token.
    pub fn delete_token(&self, id: &str) -> Result<(), RegistryError> {
        let is_there = match self {
            Self::Local(store, _) => wait_for(store.delete_token(id.to_owned(), clock::now()))??,
            Self::Remote(remote) => remote.delete_token(id)?,
        };
        is_there.then_some(()).ok_or_else(|| RegistryError::NotFound("token", id.to_owned()))
    }

    /// Lists all environments; the text says why presence is unknown, if it is.
    pub fn environments(&self) -> Result<(Vec<EnvironmentStatus>, Option<String>), RegistryError> {
        let (store, data) = match self {
            Self::Local(store, data) => (store, data),
            Self::Remote(remote) => return Ok((remote.environments()?, None)),
        };
        match presence::ask(data) {
            Ok(known) => Ok((known.environments, None)),
            Err(error) => {
                let doubt = match error.kind() {
                    io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                        format!("no rendezvous runs with {}", data.path().display())
                    }
                    _ => format!("{}: {error}", data.presence_socket().display()),
                };
                Ok((wait_for(admin::stored_environments(store))??, Some(doubt)))
            }
        }
    }

    /// Sets which executor is kept when two register for one environment.
    pub fn set_policy(&self, id: &str, policy: RegistrationPolicy) -> Result<(), RegistryError> {
        let is_there = match self {
            Self::Local(store, _) => wait_for(store.set_policy(id.to_owned(), policy))??,
            Self::Remote(remote) => remote.set_policy(id, policy)?,
        };
        is_there.then_some(()).ok_or_else(|| RegistryError::NotFound("environment", id.to_owned()))
    }

    /// Deletes an environment with its tokens.
    pub fn delete_environment(&self, id: &str) -> Result<(), RegistryError> {
        let is_there = match self {
            Self::Local(store, _) => {
                wait_for(store.delete_environment(id.to_owned(), clock::now()))??.is_some()
            }
            Self::Remote(remote) => remote.delete_environment(id)?,
        };
        is_there.then_some(()).ok_or_else(|| RegistryError::NotFound("environment", id.to_owned()))
    }

    /// The nodes of the cluster; a single rendezvous has none.
    pub fn nodes(&self) -> Result<Vec<NodeStatus>, RegistryError> {
        match self {
            Self::Local(..) => Ok(Vec::new()),
            Self::Remote(remote) => Ok(remote.nodes()?),
        }
    }

    /// Public URL of the rendezvous.
    pub fn url(&self) -> Result<String, RegistryError> {
        Ok(match self {
            Self::Local(store, _) => wait_for(store.note(PUBLIC_URL))??.unwrap_or_default(),
            Self::Remote(remote) => remote.url().to_owned(),
        })
    }
}

/// Runs one operation of a store to its end.
fn wait_for<T>(operation: impl Future<Output = T>) -> Result<T, RegistryError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(RegistryError::Runtime)?.block_on(operation))
}

/// Default data directory of a rendezvous.
pub fn default_data_dir() -> Option<PathBuf> {
    let from = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(data) = from("EXEC_SERVER_RENDEZVOUS_DATA") {
        return Some(data);
    }
    let state = from("XDG_STATE_HOME").or_else(|| Some(from("HOME")?.join(".local/state")))?;
    Some(state.join("exec-server/rendezvous"))
}

/// A time relative to now: `3h ago`, `in 29d`.
pub fn relative(moment: clock::Seconds) -> String {
    let distance = moment.saturating_sub(clock::now());
    let (count, unit) = match distance.unsigned_abs() {
        seconds @ 0..120 => (seconds, "s"),
        seconds @ 120..7200 => (seconds / 60, "m"),
        seconds @ 7200..172_800 => (seconds / 3600, "h"),
        seconds => (seconds / 86_400, "d"),
    };
    if distance > 0 { format!("in {count}{unit}") } else { format!("{count}{unit} ago") }
}

/// Longer than every id and than typical URLs.
const MAX_CELL_CHARS: usize = 160;

/// A table with a heading; cells are untrusted and escaped.
pub fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let heading: Vec<String> = heading.iter().map(|&word| word.to_owned()).collect();
    let row =
        |row: &Vec<String>| row.iter().map(|cell| escape_untrusted(cell, MAX_CELL_CHARS)).collect();
    let all: Vec<Vec<String>> = std::iter::once(heading).chain(rows.iter().map(row)).collect();
    let width =
        |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..all[0].len()).map(width).collect();
    let mut text = String::new();
    for row in &all {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// JSON output with terminal control characters escaped.
pub fn json(value: &impl serde::Serialize) -> String {
    let text = serde_json::to_string_pretty(value).expect("plain data can be written");
    let mut safe = String::with_capacity(text.len() + 1);
    for letter in text.chars() {
        // Only characters that JSON does not escape itself; they occur in strings only.
        match u32::from(letter) {
            code @ 0x7f..=0x9f => safe.push_str(&format!("\\u{code:04x}")),
            _ => safe.push(letter),
        }
    }
    safe.push('\n');
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_from_elsewhere_stay_in_their_column() {
        let rows = [vec!["a\x1b[2J\r\nb\u{9b}1m".to_owned(), "x".repeat(1000)]];
        let table = table(&["ID", "NAME"], &rows);
        let lines: Vec<&str> = table.lines().collect();
        let escaped = r"a\u{1b}[2J\r\nb\u{9b}1m";
        assert!(lines[0].starts_with("ID ") && lines[0].ends_with(" NAME"));
        let begins = lines[1].starts_with(&format!("{escaped}  xxx"));
        assert!(begins && lines[1].ends_with("x…"), "{table}");
        assert_eq!((lines.len(), lines[1].chars().count()), (2, escaped.len() + 2 + 161));
    }

    #[test]
    fn json_means_the_same_and_holds_no_control_character() {
        let words = ["\u{9b}31m\x7f\x1b\n", "plain"];
        let text = json(&words);
        assert!(!text.trim_end().contains(|it: char| it.is_control() && it != '\n'), "{text:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), words);
    }
}
