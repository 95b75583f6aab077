//! Hints for an environment that cannot be reached through its registry.

use std::io;

use exec_server_client::relay::{RelayError, TokenError};
use exec_server_client::{DialError, RegistryError};

/// The next step for the user.
pub fn hint(environment_id: &str, registry: &str, error: &RelayError) -> Option<String> {
    let new_token = format!(
        "`exec-server token create --environment {environment_id} --role harness`, where the rendezvous runs"
    );
    match error {
        RelayError::Registry(error) if error.is_offline() => Some(format!(
            "its executor is not there; on that machine: exec-server --remote {registry} --environment-id {environment_id}"
        )),
        RelayError::Registry(RegistryError::Auth { status: 403, .. }) => {
            Some(format!("the token is for another environment or role; make one with {new_token}"))
        }
        RelayError::Registry(RegistryError::Auth { .. }) => {
            Some(format!("the token is wrong, expired or revoked; make one with {new_token}"))
        }
        RelayError::Registry(RegistryError::Refused { status: 404, .. }) => Some(format!(
            "{registry} does not know it; `exec-server environments` there lists those that it knows"
        )),
        RelayError::Registry(RegistryError::Unreachable(error)) | RelayError::Relay(error) => {
            dial_hint(error)
        }
        RelayError::Token(TokenError::Missing) => Some(format!("make one with {new_token}")),
        RelayError::AnotherKey { found, known_hosts, .. } => {
            Some(another_key(environment_id, registry, &found.to_string(), known_hosts.is_some()))
        }
        _ => None,
    }
}

fn dial_hint(error: &DialError) -> Option<String> {
    match error {
        DialError::Connect(error) if error.kind() == io::ErrorKind::ConnectionRefused => Some(
            "no server listens at this address; check that `exec-server rendezvous` runs and that the URL is right (--remote, EXEC_SERVER_REMOTE_URL)"
                .to_owned(),
        ),
        DialError::Handshake(_) => {
            Some("a certificate that the system does not know needs --ca-file FILE".to_owned())
        }
        _ => None,
    }
}

/// A prominent warning: either the machine was reinstalled or an attacker answers in its place.
fn another_key(environment_id: &str, registry: &str, found: &str, is_listed: bool) -> String {
    let warning = "\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
WARNING: ANOTHER EXECUTOR ANSWERS IN PLACE OF THE ONE THAT YOU KNOW.
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
Nothing was sent to it. An attacker may be intercepting the connection, or the machine was reinstalled.";
    if !is_listed {
        return format!(
            "{warning}\nAsk its owner for its key, and give the right one with --executor-key."
        );
    }
    format!(
        "{warning}\nAsk its owner whether its key is {found} now (its log says so at the start). If it is:\n\
         \n  exec-server known-hosts forget env:{environment_id} --remote {registry}"
    )
}
