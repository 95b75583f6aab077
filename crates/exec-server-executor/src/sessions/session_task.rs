//! The session task: owns the attachment of one session and ends its processes.
//!
//! Owner of `Shared::connection` and `Shared::attached`; other tasks only send it a [`SessionCommand`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use exec_server_core::attachment::{AttachError, Attachment, ConnectionId};
use exec_server_protocol::duration::millis;
use exec_server_protocol::process::ExitReason;
use tokio::sync::mpsc;

use super::{ResumeRequest, Session, SessionCommand, TakeOver, allowed_linger};
use crate::close_codes;
use crate::process::Command;
use crate::server::Server;
use crate::timings::sleep_until;

/// Owns the attachment of one session until the linger expires or the server shuts down, then ends its processes.
pub(crate) async fn run_session(
    server: Arc<Server>,
    session: Session,
    mut attachment: Attachment,
    mut commands: mpsc::UnboundedReceiver<SessionCommand>,
) {
    let _active = server.metrics.session();
    tracing::debug!(session_id = session.id(), "session opened");
    let mut ended = None;
    loop {
        let load = session.load();
        if attachment.handle_timeout(Instant::now(), load) {
            break;
        }
        let deadline = attachment.poll_timeout(load);
        tokio::select! {
            biased;
            command = commands.recv() => match command {
                Some(SessionCommand::Attach { request, answer }) => {
                    let connection = request.connection;
                    let result = attach(&server, &session, &mut attachment, request).await;
                    // The connection may have closed while the request was pending.
                    if answer.send(result).is_err() && result.is_ok() {
                        detach(&session, &mut attachment, connection);
                    }
                }
                Some(SessionCommand::Detach(connection)) => detach(&session, &mut attachment, connection),
                Some(SessionCommand::SetLinger(linger)) => attachment.set_linger(linger),
                Some(SessionCommand::Emptied) => {}
                Some(SessionCommand::End { reason, grace, done }) => {
                    ended = Some((reason, grace, done));
                    break;
                }
                None => break,
            },
            () = sleep_until(deadline), if deadline.is_some() => {}
        }
    }
    let (reason, grace, done) = match ended {
        Some((reason, grace, done)) => (reason, grace, Some(done)),
        None => (ExitReason::Terminated, None, None),
    };
    server.sessions.remove(session.id());
    commands.close();
    session.watches().clear();
    end_processes(&session, reason, grace).await;
    tracing::debug!(session_id = session.id(), ?reason, "session ended");
    if let Some(done) = done {
        let _ = done.send(());
    }
}

async fn attach(
    server: &Server,
    session: &Session,
    attachment: &mut Attachment,
    request: ResumeRequest,
) -> Result<(), AttachError> {
    let connection = request.connection;
    let mut result = attachment.handle_attach(Instant::now(), session.load(), connection);
    if let Err(AttachError::AttachedTo(holder)) = result {
        let held_by = session.shared.attached.borrow().clone();
        let patience = server.config.timings.take_over_probe;
        let is_alive = match (&held_by, request.take_over) {
            (None, _) | (_, TakeOver::Always) => false,
            // A relay stream has no pings: a live peer is as silent as a dead one, and only the end of a stream tells.
            (Some(outbox), TakeOver::IfProvenSilent) if !outbox.can_ping() => {
                !outbox.ends_within(patience).await
            }
            (Some(outbox), _) => outbox.probe(patience).await,
        };
        if !is_alive {
            let take_over = request.take_over;
            tracing::info!(session_id = session.id(), ?take_over, "session taken over");
            detach(session, attachment, holder);
            if let Some(outbox) = held_by {
                let reason = "session resumed by another connection";
                outbox.close_with_notice(close_codes::SESSION_MOVED, reason);
            }
            result = attachment.handle_attach(Instant::now(), session.load(), connection);
        }
    }
    result?;
    session.shared.connection.store(connection.0, Ordering::Release);
    if let Some(wanted) = request.linger {
        let linger = allowed_linger(server, Some(wanted));
        session.shared.linger_ms.store(millis(linger.busy), Ordering::Relaxed);
        attachment.set_linger(linger);
    }
    // The reply is queued before the outbox is published, so events always follow it.
    request.outbox.push_reply((request.build_reply)(session.linger_ms()));
    session.shared.attached.send_replace(Some(request.outbox));
    Ok(())
}

fn detach(session: &Session, attachment: &mut Attachment, connection: ConnectionId) {
    if attachment.handle_detach(Instant::now(), connection) {
        session.shared.attached.send_replace(None);
        tracing::debug!(
            session_id = session.id(),
            connection_id = connection.0,
            "session detached"
        );
    }
}

async fn end_processes(session: &Session, reason: ExitReason, grace: Option<Duration>) {
    let (mut tasks, children) = {
        let mut processes = session.shared.processes.lock().expect("no holder panics");
        processes.is_ended = true;
        for handle in processes.by_id.values() {
            // A send error means that the process task has already stopped.
            let _ = handle.send(Command::End { reason, grace });
        }
        (std::mem::take(&mut processes.tasks), std::mem::take(&mut processes.children))
    };
    while tasks.join_next().await.is_some() {}
    // Daemons that outlive their process still belong to the session.
    while exec_server_os::end_all_trees(|tag| children.contains(&tag.child())) > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
