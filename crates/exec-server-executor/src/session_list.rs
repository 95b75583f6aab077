//! Answers `process/list` and `session/list`.

use std::time::SystemTime;

use exec_server_protocol::duration::millis;
use exec_server_protocol::process::{ProcessListResponse, ProcessSummary};
use exec_server_protocol::session::{SessionListResponse, SessionSummary};
use tokio::sync::oneshot;

use crate::dispatch::Caller;
use crate::process::{Command, ProcessHandle};
use crate::reply::Reply;
use crate::sessions::Session;

/// Answers `process/list`.
pub fn list_processes(caller: &Caller, reply: Reply) {
    let (server, session) = (caller.server.clone(), caller.session.clone());
    let room = list_room(&session);
    reply.with_room(room, move |reply| {
        let pending = PendingSummaries::request(session);
        server.spawn(async move {
            reply.ok(&ProcessListResponse { processes: pending.collect().await });
        });
    });
}

/// Estimated bytes of one process in a list, without its arguments.
const SUMMARY_BYTES: usize = 512;
/// Arguments stand in a list as text, then in its JSON, where they may need escapes.
const COPIES: usize = 3;

/// The memory to reserve for a list of the processes of a session.
fn list_room(session: &Session) -> usize {
    let process = |process: &ProcessHandle| SUMMARY_BYTES + COPIES * process.described_bytes;
    SUMMARY_BYTES + session.processes().iter().map(process).sum::<usize>()
}

/// Answers `session/list`.
pub fn list_sessions(caller: &Caller, reply: Reply) {
    let (server, principal) = (caller.server.clone(), caller.session.principal().clone());
    let room = server.sessions.of(&principal).iter().map(list_room).sum();
    reply.with_room(room, move |reply| {
        // All requests are sent before the first reply is awaited.
        let own_sessions = server.sessions.of(&principal);
        let pending: Vec<PendingSummaries> =
            own_sessions.into_iter().map(PendingSummaries::request).collect();
        server.spawn(async move {
            let mut sessions = Vec::with_capacity(pending.len());
            for session in pending {
                sessions.push(session.summary().await);
            }
            reply.ok(&SessionListResponse { sessions });
        });
    });
}

/// Summaries requested from all processes of a session.
struct PendingSummaries {
    session: Session,
    summaries: Vec<oneshot::Receiver<ProcessSummary>>,
}

impl PendingSummaries {
    fn request(session: Session) -> Self {
        let request = |process: &ProcessHandle| {
            let (answer, summary) = oneshot::channel();
            // A process whose task has stopped is left out of the list.
            let _ = process.send(Command::Summarise(answer));
            summary
        };
        let summaries = session.processes().iter().map(request).collect();
        Self { session, summaries }
    }

    async fn collect(self) -> Vec<ProcessSummary> {
        let mut summaries = Vec::with_capacity(self.summaries.len());
        for summary in self.summaries {
            summaries.extend(summary.await);
        }
        summaries.sort_by(|a, b| a.process_id.cmp(&b.process_id));
        summaries
    }

    async fn summary(self) -> SessionSummary {
        let session = self.session.clone();
        let since_1970 =
            session.opened_at().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        SessionSummary {
            session_id: session.id().to_owned(),
            client_name: session.client_name().to_owned(),
            opened_at_ms: millis(since_1970),
            attached: session.is_attached(),
            session_linger_ms: session.linger_ms(),
            processes: self.collect().await,
        }
    }
}
