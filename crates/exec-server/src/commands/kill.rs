//! `kill`: the end of a process, or a signal for it.

use std::str::FromStr;
use std::time::Duration;

use exec_server_protocol::methods::Method;
use exec_server_protocol::process::{
    Empty, ProcessSignal, ProcessSignalParams, ProcessTerminateParams, ProcessTerminateResponse,
};

use super::failure::Failure;
use super::processes::ProcessReference;

/// Which process, and how.
#[derive(Debug, clap::Args)]
pub struct KillArguments {
    /// Send this signal to the whole tree, instead of ending it: HUP, INT, QUIT, KILL, USR1, USR2, TERM, CONT, STOP, WINCH.
    #[arg(short, long, value_name = "SIGNAL")]
    signal: Option<SignalName>,
    /// How long it has from SIGTERM to SIGKILL.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = crate::cli::duration, conflicts_with = "signal")]
    grace: Duration,
    #[command(flatten)]
    process: ProcessReference,
}

/// A signal by any of its names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SignalName(ProcessSignal);

impl FromStr for SignalName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let upper = text.to_ascii_uppercase();
        Ok(Self(match upper.strip_prefix("SIG").unwrap_or(&upper) {
            "HUP" | "1" => ProcessSignal::Hangup,
            "INT" | "2" => ProcessSignal::Interrupt,
            "QUIT" | "3" => ProcessSignal::Quit,
            "KILL" | "9" => ProcessSignal::Kill,
            "USR1" | "10" => ProcessSignal::Usr1,
            "USR2" | "12" => ProcessSignal::Usr2,
            "TERM" | "15" => ProcessSignal::Terminate,
            "CONT" | "18" => ProcessSignal::Continue,
            "STOP" | "19" => ProcessSignal::Stop,
            "WINCH" | "28" => ProcessSignal::Winch,
            _ => {
                return Err(
                    "a server knows HUP, INT, QUIT, KILL, USR1, USR2, TERM, CONT, STOP and WINCH"
                        .to_owned(),
                );
            }
        }))
    }
}

/// Ends or signals.
pub async fn run(arguments: KillArguments) -> Result<u8, Failure> {
    let (client, located) = arguments.process.find().await?;
    let process_id = located.process.process_id;
    let session_id = Some(located.session.session_id);
    let was_running = match arguments.signal {
        Some(SignalName(signal)) => {
            let params = ProcessSignalParams { process_id: process_id.clone(), signal, session_id };
            let Empty {} = client.call(Method::ProcessSignal.name(), &params).await?;
            !located.process.exited
        }
        None => {
            let grace_ms = Some(u64::try_from(arguments.grace.as_millis()).unwrap_or(u64::MAX));
            let params =
                ProcessTerminateParams { process_id: process_id.clone(), grace_ms, session_id };
            let answer: ProcessTerminateResponse =
                client.call(Method::ProcessTerminate.name(), &params).await?;
            answer.running
        }
    };
    if !was_running {
        return Err(Failure::Partly(format!("`{process_id}` has ended already")));
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_many_names() {
        for name in ["TERM", "SIGTERM", "sigterm", "15"] {
            assert_eq!(name.parse(), Ok(SignalName(ProcessSignal::Terminate)), "{name}");
        }
        assert!("SIGSEGV".parse::<SignalName>().is_err() && "".parse::<SignalName>().is_err());
    }
}
