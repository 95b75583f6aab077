//! What comes in on one connection, handed to whoever it is for.

use std::sync::Arc;
use std::time::Duration;

use exec_server_machines::event_order::{NeededRead, ProcessEvent, ProcessExit};
use exec_server_protocol::answers::{ProcessExitedEvent, ProcessOutputEvent};
use exec_server_protocol::envelope::{self, Incoming, RequestId};
use exec_server_protocol::errors::{ErrorCode, RpcError};
use exec_server_protocol::fs::FsMissingChangedNotification;
use exec_server_protocol::http::HttpBodyDeltaNotification;
use exec_server_protocol::methods::{
    FS_MISSING_CHANGED, HTTP_BODY_DELTA, PROCESS_CLOSED, PROCESS_EXITED, PROCESS_OUTPUT,
};
use exec_server_protocol::params;
use exec_server_protocol::process::ProcessClosedNotification;
use exec_server_transport::connection::{Connection, Ended, Event, InMessage};
use tokio::task::JoinSet;

use crate::call::{Answer, Reply};
use crate::connection::Shared;
use crate::error::ExecServerError;
use crate::process_state::Process;

/// Messages handed on before their readers get a turn, when a server never pauses.
const MESSAGES_PER_TURN: usize = 64;
/// How long an event that is overtaken by later ones may be on its way before it counts as lost.
const REORDER_PATIENCE: Duration = Duration::from_millis(200);
/// How long a server has to hang up after the farewell, so that it surely reads it.
const FAREWELL: Duration = Duration::from_secs(2);

/// Reads from a link until it ends, and then tells everybody.
pub(crate) async fn run_connection(mut link: Connection, shared: Arc<Shared>) {
    // Reads that bring back what is missing; they end with the connection, since another one begins them anew.
    let mut repairs = JoinSet::new();
    let reason = read_to_end(&mut link, &shared, &mut repairs).await;
    drop(repairs);
    shared.handle_end(reason);
    link.linger(FAREWELL).await;
}

async fn read_to_end(
    link: &mut Connection,
    shared: &Arc<Shared>,
    repairs: &mut JoinSet<()>,
) -> Arc<str> {
    let mut messages = 0;
    loop {
        let event = tokio::select! {
            biased;
            event = link.next() => event,
            Some(_) = repairs.join_next(), if !repairs.is_empty() => continue,
        };
        match event {
            Event::Message(message) => {
                if let Err(problem) = handle_message(shared, message, repairs) {
                    tracing::warn!(%problem, "the server broke the protocol");
                    shared.outbox.close(1002, "protocol error");
                    return format!("the server broke the protocol: {problem}").into();
                }
                messages += 1;
                if messages % MESSAGES_PER_TURN == 0 {
                    tokio::task::yield_now().await;
                }
            }
            Event::Finished(_) => {}
            Event::EndOfInput => return "the server hung up".into(),
            Event::Closed(Ended::ByPeer) => return "the server hung up".into(),
            Event::Closed(Ended::ByUs(_)) => return "closed by this client".into(),
            Event::Closed(Ended::Silent) => return "the server gave no sign of life".into(),
            Event::Closed(Ended::Broken(error)) => return error.to_string().into(),
        }
    }
}

fn handle_message(
    shared: &Arc<Shared>,
    message: InMessage,
    repairs: &mut JoinSet<()>,
) -> Result<(), String> {
    let (id, start, len) = match message.decode().map_err(|error| error.to_string())? {
        Incoming::Notification { method, params } => {
            return handle_notification(shared, &method, params, repairs);
        }
        Incoming::Request { id, method, .. } => {
            let text = format!("this client does not implement `{method}`");
            let error = RpcError::new(ErrorCode::MethodNotFound, "method_not_found", text);
            shared.outbox.push_reply(envelope::error(&id, &error));
            return Ok(());
        }
        Incoming::Error { id, error } => {
            let error: RpcError = lenient_error(error)?;
            return answer(shared, &id, Answer::Error(error));
        }
        Incoming::Response { id, result } => {
            let start = result.as_ptr().addr() - message.text().as_ptr().addr();
            (id, start, result.len())
        }
    };
    answer(shared, &id, Answer::Result(Reply::new(message, start, len)))
}

/// The `data` of another server may have any shape; code and message are what counts.
fn lenient_error(raw: &str) -> Result<RpcError, String> {
    #[derive(serde::Deserialize)]
    struct Bare {
        code: i64,
        message: String,
    }
    if let Ok(error) = serde_json::from_str(raw) {
        return Ok(error);
    }
    let Bare { code, message } = params::decode(raw)?;
    Ok(RpcError { code, message, data: None })
}

fn answer(shared: &Arc<Shared>, id: &RequestId, answer: Answer) -> Result<(), String> {
    let RequestId::Integer(number) = id else {
        return Err(format!("an answer to {id:?}, which was never asked"));
    };
    let mut routes = shared.routes();
    match routes.end_call(*number) {
        Some(caller) => {
            drop(routes);
            // A caller that went away at this moment need not be told.
            let _ = caller.send(answer);
            Ok(())
        }
        None if routes.has_issued(*number) => Ok(()),
        None => Err(match answer {
            Answer::Error(error) => format!("an answer to {number}: {}", error.message),
            _ => format!("an answer to {number}, which was never asked"),
        }),
    }
}

fn handle_notification(
    shared: &Arc<Shared>,
    method: &str,
    raw: &str,
    repairs: &mut JoinSet<()>,
) -> Result<(), String> {
    match method {
        PROCESS_OUTPUT => {
            let event = ProcessOutputEvent::decode(raw)?;
            let bytes = event.chunk.into();
            let output = ProcessEvent::Output { seq: event.seq, stream: event.stream, bytes };
            handle_process_event(shared, &event.process_id, output, repairs);
        }
        PROCESS_EXITED => {
            let event: ProcessExitedEvent = params::decode(raw)?;
            let exit = ProcessExit {
                exit_code: event.exit_code,
                sandbox_denied: event.sandbox_denied,
                details: event.details,
            };
            let exited = ProcessEvent::Exited { seq: event.seq, exit };
            handle_process_event(shared, &event.process_id, exited, repairs);
        }
        PROCESS_CLOSED => {
            let event: ProcessClosedNotification = params::decode(raw)?;
            let closed = ProcessEvent::Closed { seq: event.seq };
            handle_process_event(shared, &event.process_id, closed, repairs);
        }
        HTTP_BODY_DELTA => {
            let delta: HttpBodyDeltaNotification = params::decode(raw)?;
            let body = shared.routes().body(&delta.request_id);
            let Some(body) = body else { return Ok(()) };
            let id = delta.request_id.clone();
            if body.handle_delta(delta)? {
                shared.routes().remove_body(&id);
            }
        }
        FS_MISSING_CHANGED => {
            let changed: FsMissingChangedNotification = params::decode(raw)?;
            if let Some(watcher) = shared.routes().end_watch(changed.watch_id) {
                // A watcher that went away need not be told.
                let _ = watcher.send(());
            }
        }
        _ => tracing::debug!(method, "ignored a notification"),
    }
    Ok(())
}

fn handle_process_event(
    shared: &Arc<Shared>,
    id: &str,
    event: ProcessEvent,
    repairs: &mut JoinSet<()>,
) {
    let process = shared.routes().process(id);
    let Some(process) = process else { return };
    if let Some(read) = process.handle_event(event, &shared.outbox) {
        repairs.spawn(repair(shared.clone(), process, read));
    }
}

/// Brings back what is missing of a process, as long as anything is.
pub(crate) async fn repair(shared: Arc<Shared>, process: Arc<Process>, read: NeededRead) {
    let mut next = Some(read);
    while let Some(read) = next {
        if read.may_be_late {
            tokio::time::sleep(REORDER_PATIENCE).await;
            if !process.still_needs_read() {
                return;
            }
        }
        match process.read_missing(&shared).await {
            Ok(more) => next = more,
            // Others will be answered, and then there is room for this one.
            Err(ExecServerError::TooManyCalls { .. }) => {
                tokio::time::sleep(REORDER_PATIENCE).await;
                next = Some(NeededRead { may_be_late: false, ..read });
            }
            // The link broke; the next connection brings everything back.
            Err(_) => return,
        }
    }
}
