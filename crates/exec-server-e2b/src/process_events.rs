//! The events of a command as the messages of a stream.

use std::sync::Arc;
use std::time::Duration;

use exec_server_client::protocol::process::{ExitReason, OutputStream};
use exec_server_client::{ProcessEvent, ProcessEvents, ProcessExit};
use exec_server_protocol::base64;
use serde_json::{Value, json};

use crate::connect::{Deadline, Sink};
use crate::processes::Process;
use crate::refusal::{Code, Refusal};

/// Sends events until the end, the deadline, or the reader is gone; a command outlives its reader.
pub async fn pump(
    process: Arc<Process>,
    mut events: ProcessEvents,
    sink: Sink,
    deadline: Deadline,
    keepalive: Option<Duration>,
    is_start: bool,
) {
    let work = send_events(&process, &mut events, &sink, keepalive);
    let result = tokio::select! {
        biased;
        result = work => result,
        () = sink.closed() => {
            if is_start {
                end_at(&process, deadline).await;
            }
            return;
        }
        () = deadline.passed() => {
            if is_start {
                process.session.terminate_later();
            }
            Err(Deadline::refusal())
        }
    };
    sink.finish(result).await;
}

/// Keeps the time limit of a command whose reader is gone, for servers that do not keep it.
async fn end_at(process: &Process, deadline: Deadline) {
    tokio::select! {
        biased;
        _ = process.session.wait() => {}
        () = deadline.passed() => process.session.terminate_later(),
    }
}

async fn send_events(
    process: &Process,
    events: &mut ProcessEvents,
    sink: &Sink,
    keepalive: Option<Duration>,
) -> Result<(), Refusal> {
    let mut exit = None;
    sink.send(&json!({"event": {"start": {"pid": process.pid}}})).await;
    loop {
        let event = match keepalive {
            None => events.next().await,
            Some(interval) => match tokio::time::timeout(interval, events.next()).await {
                Ok(event) => event,
                Err(_) => {
                    sink.send(&json!({"event": {"keepalive": {}}})).await;
                    continue;
                }
            },
        };
        match event {
            Some(ProcessEvent::Output { stream, bytes, .. }) => {
                let name = match stream {
                    OutputStream::Stdout => "stdout",
                    OutputStream::Stderr => "stderr",
                    OutputStream::Pty => "pty",
                };
                let data = json!({name: base64::encode(&bytes)});
                sink.send(&json!({"event": {"data": data}})).await;
            }
            Some(ProcessEvent::Exited { exit: found, .. }) => exit = Some(found),
            Some(ProcessEvent::Closed { .. }) => {
                let exit = exit.or_else(|| process.session.exit());
                let end = end_of(&exit.ok_or_else(|| lost("the exit of the command"))?)?;
                sink.send(&json!({"event": {"end": end}})).await;
                return Ok(());
            }
            Some(ProcessEvent::Gap(gap)) => {
                let pieces = gap.last + 1 - gap.first;
                return Err(lost(&format!("output that was not read in time ({pieces} pieces)")));
            }
            Some(ProcessEvent::ResyncRequired) => {}
            Some(ProcessEvent::Failed(reason)) => {
                return Err(Refusal::unavailable(format!(
                    "the command cannot be followed any further: {reason}"
                )));
            }
            None => return Err(lost("the end of the command")),
        }
    }
}

fn lost(what: &str) -> Refusal {
    Refusal::new(Code::DataLoss, format!("{what} was lost"))
}

/// The end event; a command that the server ended at its time limit is an error.
fn end_of(exit: &ProcessExit) -> Result<Value, Refusal> {
    if exit.details.reason == Some(ExitReason::Timeout) {
        return Err(Deadline::refusal());
    }
    if let Some(signal) = &exit.details.signal {
        let status = format!("signal: {}", signal_words(signal));
        return Ok(json!({"exitCode": -1, "exited": false, "status": status, "error": status}));
    }
    let status = format!("exit status {}", exit.exit_code);
    let mut end = json!({"exitCode": exit.exit_code, "exited": true, "status": status});
    if exit.exit_code != 0 {
        end["error"] = status.into();
    }
    Ok(end)
}

/// The usual words for a signal.
fn signal_words(name: &str) -> String {
    let words = match name {
        "SIGABRT" => "aborted",
        "SIGALRM" => "alarm clock",
        "SIGBUS" => "bus error",
        "SIGFPE" => "floating point exception",
        "SIGHUP" => "hangup",
        "SIGILL" => "illegal instruction",
        "SIGINT" => "interrupt",
        "SIGKILL" => "killed",
        "SIGPIPE" => "broken pipe",
        "SIGQUIT" => "quit",
        "SIGSEGV" => "segmentation fault",
        "SIGTERM" => "terminated",
        "SIGTRAP" => "trace/breakpoint trap",
        "SIGUSR1" => "user defined signal 1",
        "SIGUSR2" => "user defined signal 2",
        name => return name.to_owned(),
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use exec_server_client::protocol::process::ExitDetails;

    use super::*;

    #[test]
    fn ends_are_told_as_sdks_expect_them() {
        let check = |exit_code, signal: Option<&str>, reason| {
            let details =
                ExitDetails { signal: signal.map(str::to_owned), reason, ..Default::default() };
            end_of(&ProcessExit { exit_code, sandbox_denied: None, details })
        };
        let end = check(0, None, None).unwrap();
        assert_eq!(end, json!({"exitCode": 0, "exited": true, "status": "exit status 0"}));
        let end = check(3, None, Some(ExitReason::Exited)).unwrap();
        assert_eq!((&end["exitCode"], &end["error"]), (&json!(3), &json!("exit status 3")));
        let end = check(137, Some("SIGKILL"), Some(ExitReason::Signaled)).unwrap();
        assert_eq!(end["exitCode"], -1);
        assert_eq!((&end["exited"], &end["error"]), (&json!(false), &json!("signal: killed")));
        let refused = check(137, Some("SIGKILL"), Some(ExitReason::Timeout)).unwrap_err();
        assert_eq!(refused.code, Code::DeadlineExceeded);
    }
}
