//! The user that a request names, and the files with the rights of that user.

use std::collections::BTreeMap;
use std::sync::Mutex;

use exec_server_client::ExecutorFileSystem;
use exec_server_client::protocol::environment::EnvironmentInfo;
use exec_server_client::protocol::process::{EnvInherit, EnvPolicy};
use http::{HeaderMap, header};

use crate::Shared;
use crate::paths::{self, uri_of};
use crate::refusal::{Code, Refusal};

/// Homes that are kept; more users are looked up each time.
const MAX_HOMES: usize = 1000;
/// Prints the home of the user that it runs as.
const PRINT_HOME: &str = "printf %s \"$HOME\"";

/// Which users a request may name.
pub struct Users {
    own: Option<String>,
    any: bool,
    can_run_commands: bool,
    can_use_files: bool,
    /// The homes of other users.
    homes: Mutex<BTreeMap<String, String>>,
}

impl Users {
    pub fn new(info: &EnvironmentInfo, any: bool) -> Self {
        Self {
            own: info.host.as_ref().and_then(|host| host.user.clone()),
            any,
            can_run_commands: info.capabilities.process_user,
            // A home is found by a command.
            can_use_files: info.capabilities.process_user && info.capabilities.fs_user,
            homes: Mutex::default(),
        }
    }

    /// The user of a command; none is the server's own.
    pub fn of_command(&self, headers: &HeaderMap) -> Result<Option<String>, Refusal> {
        self.other(basic_user(headers)?, self.can_run_commands)
    }

    /// The user of a call about files.
    pub fn of_file_call(&self, headers: &HeaderMap) -> Result<Option<String>, Refusal> {
        self.of_transfer(basic_user(headers)?)
    }

    /// The user of an upload or download, by its name in the query.
    pub fn of_transfer(&self, name: Option<String>) -> Result<Option<String>, Refusal> {
        self.other(name, self.can_use_files)
    }

    fn other(&self, name: Option<String>, is_possible: bool) -> Result<Option<String>, Refusal> {
        match name {
            Some(name) if !self.is_own(&name) && is_possible => Ok(Some(name)),
            Some(name) if !self.is_own(&name) => Err(Refusal::new(
                Code::Unauthenticated,
                format!(
                    "user {name:?} is not available: the server works as {} (start the facade with --any-user to take every name for it)",
                    self.own.as_deref().unwrap_or("another user")
                ),
            )),
            _ => Ok(None),
        }
    }

    fn is_own(&self, name: &str) -> bool {
        self.any || name.is_empty() || self.own.as_deref() == Some(name)
    }
}

/// The files of the machine with the rights of one user; relative paths begin in its home.
pub struct UserFiles<'a> {
    shared: &'a Shared,
    pub user: Option<String>,
    pub fs: ExecutorFileSystem,
}

impl Shared {
    /// The files with the rights of a user; none is the server's own.
    pub fn files_of(&self, user: Option<String>) -> UserFiles<'_> {
        let own = self.client.fs();
        let fs = user.as_deref().map_or_else(|| own.clone(), |user| own.with_user(user));
        UserFiles { shared: self, user, fs }
    }

    /// Where a command of a user begins, if the request does not say it.
    pub async fn start_directory(&self, user: Option<&str>) -> Result<String, Refusal> {
        let Some(user) = user else { return Ok(self.home.clone()) };
        let home = self.home_of(user).await?;
        // System users have homes that do not exist.
        let found = self.client.fs().metadata(uri_of(&home)).await;
        Ok(if found.is_ok_and(|found| found.is_directory) { home } else { "/".to_owned() })
    }

    async fn home_of(&self, user: &str) -> Result<String, Refusal> {
        if let Some(home) = self.users.homes.lock().expect("no holder panics").get(user) {
            return Ok(home.clone());
        }
        let mut command = self.client.command("/bin/sh");
        command.args(["-c", PRINT_HOME]).user(user).current_dir("/");
        command.env_policy(EnvPolicy::without_secrets(EnvInherit::All));
        let output = command.output().await?;
        let home = String::from_utf8_lossy(&output.stdout).into_owned();
        if !home.starts_with('/') {
            return Err(Refusal::unavailable(format!("the home of user {user:?} is not known")));
        }
        let mut homes = self.users.homes.lock().expect("no holder panics");
        if homes.len() < MAX_HOMES {
            homes.insert(user.to_owned(), home.clone());
        }
        Ok(home)
    }
}

impl UserFiles<'_> {
    /// The absolute path, without `.`, `..` and empty segments.
    pub async fn absolute(&self, path: &str) -> Result<String, Refusal> {
        match &self.user {
            Some(user) if !path.starts_with('/') => {
                paths::absolute(&self.shared.home_of(user).await?, path)
            }
            _ => paths::absolute(&self.shared.home, path),
        }
    }
}

/// The name in `Authorization: Basic`.
fn basic_user(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().ok().and_then(|value| value.split_once(' '));
    let Some((scheme, encoded)) = text else { return Err(bad_header()) };
    if !scheme.eq_ignore_ascii_case("basic") {
        return Ok(None);
    }
    let decoded = exec_server_protocol::base64::decode(encoded.trim()).map_err(|_| bad_header())?;
    let pair = String::from_utf8(decoded).map_err(|_| bad_header())?;
    Ok(Some(pair.split(':').next().unwrap_or_default().to_owned()))
}

fn bad_header() -> Refusal {
    Refusal::new(Code::Unauthenticated, "the authorization header cannot be read")
}
