//! `dial`: connects stdin and stdout to a server, one JSON-RPC message per line.
//!
//! The messages are passed on unchanged and not read. Resuming a session after a lost connection is the caller's part.

use std::time::Duration;

use exec_server_client::{DialError, ExecServerError, RegistryError, RelayError, UpgradeFailure};
use exec_server_protocol::session::SESSION_MOVED_CLOSE_CODE;
use exec_server_relay::splice::{SpliceEnd, splice};
use exec_server_transport::connection::{KeepaliveConfig, WireError};
use exec_server_transport::dial::MAX_REPLY_BYTES;
use exec_server_transport::lines::LineWire;
use exec_server_transport::stdio;

use super::failure::{Failure, TAKEN_OVER, chain};
use super::target::Targeted;

/// The credentials were refused: `EX_NOPERM` of sysexits.h.
const REFUSED: u8 = 77;
/// The same as those of the Rust client, so that a lost connection is found in the same time.
const PINGS: KeepaliveConfig =
    KeepaliveConfig { interval: Duration::from_secs(10), deadline: Duration::from_secs(10) };

/// Arguments of `dial`.
#[derive(Debug, clap::Args)]
pub struct DialArguments {
    #[command(flatten)]
    target: Targeted,
}

/// Forwards messages until stdin or the connection ends.
pub async fn run(arguments: DialArguments) -> Result<u8, Failure> {
    let Targeted { target, options } = arguments.target;
    let transport = options.transport(target.as_deref())?;
    let far = match transport.dial().await {
        Ok(wire) => wire,
        Err(error) if is_refusal(&error) => {
            Failure::from(error).print();
            return Ok(REFUSED);
        }
        Err(error) => return Err(error.into()),
    };
    let stdin = stdio::stdin().map_err(|source| Failure::local("could not open stdin", source))?;
    let stdout =
        stdio::stdout().map_err(|source| Failure::local("could not open stdout", source))?;
    let near = LineWire::new(stdin, stdout, MAX_REPLY_BYTES);
    match splice(near, far, PINGS).await {
        // The reader of stdout may exit before stdin ends; that is an end in order.
        SpliceEnd::Near(None | Some(WireError::Io(_))) => Ok(0),
        SpliceEnd::Near(Some(error @ WireError::Protocol(_))) => {
            Err(Failure::Usage(format!("cannot send a message from stdin: {}", chain(&error))))
        }
        SpliceEnd::Closed(reason) if reason.code == SESSION_MOVED_CLOSE_CODE => {
            Failure::from(ExecServerError::TakenOver).print();
            Ok(TAKEN_OVER)
        }
        SpliceEnd::Closed(reason) => {
            let text = format!("closed by the server with code {}", reason.code);
            Err(lost(match &*reason.reason {
                "" => text,
                said => format!("{text}: {said}"),
            }))
        }
        SpliceEnd::Far(None) => Err(lost("closed by the server".to_owned())),
        SpliceEnd::Far(Some(error)) => Err(lost(chain(&error))),
        SpliceEnd::Silent => Err(lost("the server answers no pings".to_owned())),
    }
}

fn lost(reason: String) -> Failure {
    Failure::LinkLost(reason)
}

/// Whether the server or the registry refused the token, so that another attempt with it is useless.
fn is_refusal(error: &ExecServerError) -> bool {
    let is_status = |status: u16| matches!(status, 401 | 403);
    match error {
        ExecServerError::Connect { source, .. } => {
            matches!(&**source, DialError::Upgrade(UpgradeFailure::Status(status)) if is_status(*status))
        }
        ExecServerError::Relay { source, .. } => match &**source {
            RelayError::Token(_) => true,
            RelayError::Registry(error) => matches!(error, RegistryError::Auth { .. }),
            _ => false,
        },
        _ => false,
    }
}
