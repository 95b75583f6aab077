//! `kill`: terminates processes, or sends them a signal.

use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

use exec_server_client::{ExecServerError, RemoteExecServerClient};
use exec_server_protocol::duration::millis;
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::{
    Empty, ProcessSignal, ProcessSignalParams, ProcessTerminateParams, ProcessTerminateResponse,
    ReadUntil,
};

use super::failure::{Failure, Gone};
use super::ps::{Located, ProcessReferences};
use super::wait::wait_until;

/// Arguments of `kill`.
#[derive(Debug, clap::Args)]
pub struct KillArguments {
    /// Send this signal to the whole tree and return: HUP, INT, QUIT, KILL, USR1, USR2, TERM, CONT, STOP or WINCH. Also
    /// as -9, -KILL or -SIGKILL.
    #[arg(short, long, value_name = "SIGNAL")]
    signal: Option<SignalName>,
    /// Time between SIGTERM and SIGKILL.
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = crate::cli::duration, conflicts_with = "signal")]
    grace: Duration,
    #[command(flatten)]
    processes: ProcessReferences,
}

impl KillArguments {
    /// The process arguments, for shell completion.
    pub fn references(&self) -> &ProcessReferences {
        &self.processes
    }
}

/// A signal by name (TERM, SIGTERM) or number (15).
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

/// Turns `kill -9` and `kill -KILL` into `kill --signal=…`; all other arguments stay as they are.
pub fn with_signal_option(arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_none_or(|command| command != "kill") {
        return arguments;
    }
    let mut is_over = false;
    let rewrite = |argument: OsString| {
        is_over |= argument == "--";
        match argument.to_str().and_then(|text| text.strip_prefix('-')) {
            Some(name) if !is_over && looks_like_a_signal(name) => {
                OsString::from(format!("--signal={name}"))
            }
            _ => argument,
        }
    };
    arguments.into_iter().map(rewrite).collect()
}

/// A number, a signal name, or a word of at least three capital letters, so that short options stay options.
fn looks_like_a_signal(text: &str) -> bool {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_word = text.len() > 2
        && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
    is_number || is_word || text.parse::<SignalName>().is_ok()
}

/// Terminates or signals all processes; continues after a failure.
pub async fn run(arguments: KillArguments) -> Result<u8, Failure> {
    let (client, found) = arguments.processes.find().await?;
    let mut code = 0;
    let mut asked = Vec::new();
    for located in found {
        let result = match located {
            Ok(located) => ask(&client, &located, &arguments).await.map(|()| located),
            Err(failure) => Err(failure),
        };
        match result {
            Ok(located) => asked.push(located),
            Err(failure) if failure.exit_code(false) == 1 => {
                failure.print();
                code = 1;
            }
            Err(failure) => return Err(failure),
        }
    }
    if arguments.signal.is_none() {
        for located in asked {
            match wait_until(&client, &located, ReadUntil::Closed).await {
                // A process that the server no longer knows has ended.
                Ok(_) | Err(Failure::Gone(Gone::Restarted | Gone::Expired | Gone::Unknown)) => {}
                Err(failure) => return Err(failure),
            }
        }
    }
    Ok(code)
}

async fn ask(
    client: &RemoteExecServerClient,
    located: &Located,
    arguments: &KillArguments,
) -> Result<(), Failure> {
    let can = client.session().connection().await?.capabilities();
    let process_id = located.process.process_id.clone();
    let session_id = Some(located.session.session_id.clone());
    let was_running = match arguments.signal {
        Some(SignalName(signal)) => {
            if signal != ProcessSignal::Interrupt && !can.process_signals {
                return Err(ExecServerError::Unsupported("signals other than INT").into());
            }
            let params = ProcessSignalParams { process_id: process_id.clone(), signal, session_id };
            let Empty {} = client.call(Method::ProcessSignal.name(), &params).await?;
            !located.process.exited
        }
        None => {
            if !can.process_terminate_grace && !arguments.grace.is_zero() {
                eprintln!(
                    "exec-server: this server does not support --grace; the process ends at once"
                );
            }
            let grace_ms = Some(millis(arguments.grace));
            let params =
                ProcessTerminateParams { process_id: process_id.clone(), grace_ms, session_id };
            let answer: ProcessTerminateResponse =
                client.call(Method::ProcessTerminate.name(), &params).await?;
            answer.running
        }
    };
    if was_running {
        Ok(())
    } else {
        Err(Failure::Partly(format!("`{process_id}` has ended already")))
    }
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

    #[test]
    fn a_signal_may_be_an_option_of_its_own() {
        let rewritten = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            let words = with_signal_option(words);
            words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(rewritten("x kill -9 a b"), "x kill --signal=9 a b");
        assert_eq!(rewritten("x kill -KILL a"), "x kill --signal=KILL a");
        assert_eq!(rewritten("x kill -kill a"), "x kill --signal=kill a");
        assert_eq!(rewritten("x kill a -SIGSEGV"), "x kill a --signal=SIGSEGV");
        for same in
            ["x kill -s 9 a", "x kill -h", "x kill -- -9", "x run -9", "x kill --grace 1s a"]
        {
            assert_eq!(rewritten(same), same);
        }
    }
}
