//! Distinguishes a lost process from a lost connection: checks whether the server was restarted.

use std::time::Duration;

use exec_server_client::{ExecServerError, RemoteExecServerClient};

use super::failure::{Failure, Gone};

/// A server that has just rejected a session answers at once, unless its link is broken again.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// Replaces a failure by [`Gone`] if the server no longer knows the session or the process.
pub async fn explain(client: &RemoteExecServerClient, failure: Failure) -> Failure {
    let is_unknown = match &failure {
        Failure::Client(error) => names_something_unknown(error),
        Failure::LinkLost(_) => {
            client.session().terminal_error().is_some_and(|error| names_something_unknown(&error))
        }
        _ => false,
    };
    if !is_unknown {
        return failure;
    }
    let answer = tokio::time::timeout(ANSWER_TIME, client.session().connection()).await;
    if !matches!(answer, Ok(Ok(_))) {
        return failure;
    }
    match client.session().is_other_server() {
        Some(true) => Failure::Gone(Gone::Restarted),
        Some(false) => Failure::Gone(Gone::Expired),
        None => Failure::Gone(Gone::Unknown),
    }
}

fn names_something_unknown(error: &ExecServerError) -> bool {
    match error {
        ExecServerError::SessionLost { source, .. } => names_something_unknown(source),
        ExecServerError::UnknownProcess(_) => true,
        // The reference sends no error kinds.
        ExecServerError::Server { message, .. } => match error.kind() {
            Some(kind) => matches!(kind, "unknown_session" | "unknown_process"),
            None => message.starts_with("unknown session id"),
        },
        _ => false,
    }
}
