//! Handles servers that lack a capability: emulates it, refuses the command before the start, or prints a warning.
//!
//! | missing | consequence |
//! |---|---|
//! | `processTimeouts` | the client enforces the timeout |
//! | `processCloseStdin` | a terminal gets Ctrl-D; piped input is refused before the start unless it is empty |
//! | `processResize` | a warning that the terminal stays 80x24 |
//! | `envExcludeSecrets` | the client library sends the names of secrets as patterns |
//! | `sessionLinger` | the detach keys are off |
//! | `sessionDirectory` | a user who leaves is told that reattaching is impossible |
//! | error kinds | the exit code of a failed start comes from the errno in the message |

use std::io::{self, IsTerminal};
use std::time::Duration;

use exec_server_client::{ExecServerError, RemoteExecServerClient};
use exec_server_os::{stdin_is_empty, terminal_size};
use exec_server_protocol::environment::Capabilities;
use exec_server_protocol::fs::{FsGetMetadataParams, FsGetMetadataResponse};
use exec_server_protocol::methods::Method;
use exec_server_protocol::path_uri::PathUri;
use exec_server_protocol::process::ProcessStartParams;

use super::console::Console;
use super::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND};
use super::follow::FollowOptions;
use super::ls::shown;

/// The terminal size on servers without `processResize`.
const USUAL_SIZE: (u16, u16) = (24, 80);

/// Adapts a start request to the capabilities of the server; fails before the start if that is impossible.
pub fn adapt(
    can: Capabilities,
    params: &mut ProcessStartParams,
    follow_options: &mut FollowOptions,
    console: &mut Console,
) -> Result<(), Failure> {
    if let Some(timeout_ms) = params.timeout_ms.filter(|_| !can.process_timeouts) {
        params.timeout_ms = None;
        follow_options.timeout = Some(Duration::from_millis(timeout_ms));
    }
    if !can.process_close_stdin {
        adapt_input(params, follow_options)?;
    }
    if params.tty && !can.process_resize {
        let size = terminal_size().map(|size| (size.rows, size.cols));
        if size.is_some_and(|size| size != USUAL_SIZE) {
            warn("this server cannot set the size of a terminal; it stays 80x24");
        }
        params.size = None;
    }
    if follow_options.has_terminal && !can.session_linger {
        let had_keys = console.forbid_detach();
        if had_keys && io::stdin().is_terminal() {
            warn("this server does not keep detached commands, so the detach keys are off");
        }
    }
    if !can.session_directory {
        follow_options.reattach.forbid();
    }
    Ok(())
}

/// Rejects a script on stdin, whose end the server could not pass on to its shell.
pub fn check_script(can: Capabilities) -> Result<(), Failure> {
    if can.process_close_stdin || io::stdin().is_terminal() || stdin_is_empty() {
        return Ok(());
    }
    let text = "this server cannot end the input of a shell, so the shell would wait forever; copy the script first \
                (`exec-server cp - TARGET:FILE`), and run it: `exec-server run TARGET -- sh FILE`";
    Err(Failure::Usage(text.to_owned()))
}

fn adapt_input(
    params: &mut ProcessStartParams,
    follow_options: &mut FollowOptions,
) -> Result<(), Failure> {
    if !follow_options.has_input() {
        return Ok(());
    }
    if params.tty {
        follow_options.ends_input_by_key = true;
        return Ok(());
    }
    if io::stdin().is_terminal() {
        warn("this server cannot end the input of a command; use Ctrl-C to end the command");
        return Ok(());
    }
    if stdin_is_empty() {
        params.pipe_stdin = false;
        follow_options.leave_input();
        return Ok(());
    }
    let text = "this server cannot end the input of a command, so the command would wait forever; use -n \
                to run it without input, or copy the input first: `exec-server cp - TARGET:FILE`";
    Err(Failure::Usage(text.to_owned()))
}

/// Maps a failed start to the exit code of a shell, even if the server sends no error kind.
pub async fn start_failure(
    client: &RemoteExecServerClient,
    program: &str,
    cwd: &PathUri,
    error: ExecServerError,
) -> Failure {
    let number = match &error {
        ExecServerError::Server { message, data: None, .. } => error_number(message),
        _ => None,
    };
    let code = match number {
        // ENOENT: the program or the working directory.
        Some(2) => {
            if is_missing(client, cwd).await {
                let text =
                    format!("the working directory {} does not exist on the server", shown(cwd));
                return Failure::Usage(text);
            }
            Some(NOT_FOUND)
        }
        // ENOEXEC, EACCES, ENOTDIR.
        Some(8 | 13 | 20) => Some(NOT_EXECUTABLE),
        _ => None,
    };
    let failure = about(program, error);
    match code {
        Some(code) => Failure::NotStarted { code, source: Box::new(failure) },
        None => failure,
    }
}

/// Adds the program name, unless the error already names its subject.
fn about(program: &str, error: ExecServerError) -> Failure {
    let names_its_subject = matches!(
        error.kind(),
        Some("name_in_use" | "limit_unavailable" | "cwd_not_found" | "cwd_unusable")
    );
    let failure = Failure::from(error);
    if names_its_subject { failure } else { failure.about(program) }
}

/// Parses the errno at the end of `No such file or directory (os error 2)`.
fn error_number(message: &str) -> Option<i32> {
    let (_, number) = message.strip_suffix(')')?.rsplit_once("(os error ")?;
    number.parse().ok()
}

async fn is_missing(client: &RemoteExecServerClient, path: &PathUri) -> bool {
    let params = FsGetMetadataParams {
        path: path.clone(),
        follow_symlinks: None,
        sandbox: None,
        user: None,
        detailed: None,
    };
    let found: Result<FsGetMetadataResponse, _> =
        client.call(Method::FsGetMetadata.name(), &params).await;
    matches!(found, Err(error) if error.is_not_found())
}

fn warn(text: &str) {
    eprintln!("exec-server: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_number_is_at_the_end_of_a_message() {
        assert_eq!(error_number("No such file or directory (os error 2)"), Some(2));
        assert_eq!(error_number("could not start: Permission denied (os error 13)"), Some(13));
        for message in ["", "no such file", "(os error 2) happened", "x (os error )", "os error 2)"]
        {
            assert_eq!(error_number(message), None, "{message}");
        }
    }
}
