//! Reads one connection and routes replies and notifications.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use exec_server_core::event_order::{NeededRead, ProcessEvent, ProcessExit};
use exec_server_protocol::answers::{ProcessExitedEvent, ProcessOutputEvent};
use exec_server_protocol::envelope::{self, Incoming, RequestId};
use exec_server_protocol::error_kinds::ErrorKind;
use exec_server_protocol::errors::{ErrorCode, RpcError};
use exec_server_protocol::fs::FsMissingChangedNotification;
use exec_server_protocol::http::HttpBodyDeltaNotification;
use exec_server_protocol::methods::{
    FS_MISSING_CHANGED, HTTP_BODY_DELTA, PROCESS_CLOSED, PROCESS_EXITED, PROCESS_OUTPUT,
    SESSION_MOVED,
};
use exec_server_protocol::params;
use exec_server_protocol::process::ProcessClosedNotification;
use exec_server_protocol::session::SESSION_MOVED_CLOSE_CODE;
use exec_server_transport::connection::{Connection, Ended, Event, InMessage};

use crate::call::{Answer, Reply};
use crate::connection::Shared;
use crate::error::ExecServerError;
use crate::process_state::Process;

/// Messages handled in a row before the task yields to the readers.
const MESSAGES_PER_TURN: usize = 64;
/// How long to wait for an event that later events have overtaken before it is read from the server.
const REORDER_TIMEOUT: Duration = Duration::from_millis(200);
/// How long to wait for the server to close its side, so that it can read the close frame.
const CLOSE_LINGER: Duration = Duration::from_secs(2);

/// Reads from the connection until it ends, and then releases all waiters.
pub(crate) async fn run_connection(mut link: Connection, shared: Arc<Shared>) {
    let reason = read_to_end(&mut link, &shared).await;
    // A relay stream carries no close code, so there only the notification reports the takeover.
    let is_moved = shared.is_moved.load(Ordering::Relaxed)
        || link
            .close_reason()
            .is_some_and(|close_reason| close_reason.code == SESSION_MOVED_CLOSE_CODE);
    if is_moved {
        shared.handle_taken_over();
    } else {
        shared.handle_end(reason);
    }
    // Repairs still process answers that have arrived: the server may count those as received.
    tokio::join!(link.linger(CLOSE_LINGER), shared.finish_repairs());
}

async fn read_to_end(link: &mut Connection, shared: &Arc<Shared>) -> Arc<str> {
    let mut messages = 0;
    loop {
        match link.next().await {
            Event::Message(message) => {
                if let Err(problem) = handle_message(shared, message) {
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
            Event::EndOfInput => return "the server closed the connection".into(),
            Event::Closed(Ended::ByPeer) => return "the server closed the connection".into(),
            Event::Closed(Ended::ByUs(_)) => return "closed by this client".into(),
            Event::Closed(Ended::Silent) => {
                return "the server did not answer a ping in time".into();
            }
            Event::Closed(Ended::Broken(error)) => return error.to_string().into(),
        }
    }
}

fn handle_message(shared: &Arc<Shared>, message: InMessage) -> Result<(), String> {
    let (id, start, len) = match message.decode().map_err(|error| error.to_string())? {
        Incoming::Notification { method, params } => {
            return handle_notification(shared, &method, params, message.chunk());
        }
        Incoming::Request { id, method, .. } => {
            let text = format!("this client does not implement `{method}`");
            let error = RpcError::new(ErrorCode::MethodNotFound, ErrorKind::UnknownMethod, text);
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

/// Other servers may send any `data`, so an error with unknown `data` keeps only its code and message.
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
        return Err(format!("an answer to request {id:?}, which was never sent"));
    };
    let mut routes = shared.routes();
    match routes.end_call(*number) {
        Some(caller) => {
            drop(routes);
            // The caller may have been dropped.
            let _ = caller.send(answer);
            Ok(())
        }
        None if routes.has_issued(*number) => Ok(()),
        None => Err(match answer {
            Answer::Error(error) => {
                format!("an answer to request {number}, which was never sent: {}", error.message)
            }
            _ => format!("an answer to request {number}, which was never sent"),
        }),
    }
}

/// `chunk` has the bytes of a binary message.
fn handle_notification(
    shared: &Arc<Shared>,
    method: &str,
    raw: &str,
    chunk: Option<&[u8]>,
) -> Result<(), String> {
    match method {
        PROCESS_OUTPUT => {
            let event = ProcessOutputEvent::decode(raw)?;
            let bytes = chunk.map_or_else(|| event.chunk.into(), Bytes::copy_from_slice);
            let output = ProcessEvent::Output { seq: event.seq, stream: event.stream, bytes };
            handle_process_event(shared, &event.process_id, output);
        }
        PROCESS_EXITED => {
            let event: ProcessExitedEvent = params::decode(raw)?;
            let exit = ProcessExit {
                exit_code: event.exit_code,
                sandbox_denied: event.sandbox_denied,
                details: event.details,
            };
            let exited = ProcessEvent::Exited { seq: event.seq, exit };
            handle_process_event(shared, &event.process_id, exited);
        }
        PROCESS_CLOSED => {
            let event: ProcessClosedNotification = params::decode(raw)?;
            let closed = ProcessEvent::Closed { seq: event.seq };
            handle_process_event(shared, &event.process_id, closed);
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
                // The watcher may have been dropped.
                let _ = watcher.send(());
            }
        }
        SESSION_MOVED => shared.is_moved.store(true, Ordering::Relaxed),
        _ => tracing::debug!(method, "ignored a notification"),
    }
    Ok(())
}

fn handle_process_event(shared: &Arc<Shared>, id: &str, event: ProcessEvent) {
    let process = shared.routes().process(id);
    let Some(process) = process else { return };
    if let Some(read) = process.handle_event(event, &shared.outbox) {
        shared.spawn_repair(process, read);
    }
}

/// Reads the missing events of a process until none is missing.
pub(crate) async fn repair(shared: Arc<Shared>, process: Arc<Process>, read: NeededRead) {
    let mut next = Some(read);
    while let Some(read) = next {
        if read.may_be_late {
            tokio::time::sleep(REORDER_TIMEOUT).await;
            if shared.routes().has_ended() || !process.still_needs_read() {
                return;
            }
        }
        match process.read_missing(&shared).await {
            Ok(more) => next = more,
            // Answers to other calls free slots, so the read is retried.
            Err(ExecServerError::TooManyCalls { .. }) => {
                tokio::time::sleep(REORDER_TIMEOUT).await;
                next = Some(NeededRead { may_be_late: false, ..read });
            }
            // The connection ended; the next connection reads the missing events.
            Err(_) => return,
        }
    }
}
