//! The user that a request names.

use exec_server_client::protocol::environment::EnvironmentInfo;
use http::{HeaderMap, header};

use crate::refusal::{Code, Refusal};

/// Which users a request may name.
pub struct Users {
    own: Option<String>,
    any: bool,
    can_become_others: bool,
}

impl Users {
    pub fn new(info: &EnvironmentInfo, any: bool) -> Self {
        Self {
            own: info.host.as_ref().and_then(|host| host.user.clone()),
            any,
            can_become_others: info.capabilities.process_user,
        }
    }

    /// The user of a command; none is the server's own.
    pub fn of_command(&self, headers: &HeaderMap) -> Result<Option<String>, Refusal> {
        let name = basic_user(headers)?;
        match name {
            Some(name) if !self.is_own(&name) && self.can_become_others => Ok(Some(name)),
            name => self.check_own(name.as_deref()).map(|()| None),
        }
    }

    /// Checks the user of a file operation, which is always the server's own.
    pub fn check_file_call(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        self.check_own(basic_user(headers)?.as_deref())
    }

    /// Checks the name of an upload or download.
    pub fn check_own(&self, name: Option<&str>) -> Result<(), Refusal> {
        match name {
            Some(name) if !self.is_own(name) => Err(Refusal::new(
                Code::Unauthenticated,
                format!(
                    "user {name:?} is not available: the server works as {} (start the facade with --any-user to take every name for it)",
                    self.own.as_deref().unwrap_or("another user")
                ),
            )),
            _ => Ok(()),
        }
    }

    fn is_own(&self, name: &str) -> bool {
        self.any || name.is_empty() || self.own.as_deref() == Some(name)
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
