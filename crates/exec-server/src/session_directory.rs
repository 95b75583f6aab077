//! Looking at processes from outside: those of the caller's session, and those of others that it may use.

use std::time::SystemTime;

use exec_server_protocol::process::{ProcessListResponse, ProcessSummary};
use exec_server_protocol::session::{SessionListResponse, SessionSummary};
use tokio::sync::oneshot;

use crate::dispatch::Caller;
use crate::processes::Command;
use crate::reply::Reply;
use crate::sessions::{Session, millis};

/// Answers `process/list`.
pub fn list_processes(caller: &Caller, reply: Reply) {
    let asked = Asked::of(caller.session.clone());
    caller.server.spawn(async move {
        reply.ok(&ProcessListResponse { processes: asked.answers().await });
    });
}

/// Answers `session/list`.
pub fn list_sessions(caller: &Caller, reply: Reply) {
    let sessions = caller.server.sessions.of(caller.session.principal());
    // All are asked before the first is waited for.
    let asked: Vec<Asked> = sessions.into_iter().map(Asked::of).collect();
    caller.server.spawn(async move {
        let mut sessions = Vec::with_capacity(asked.len());
        for asked in asked {
            sessions.push(asked.summary().await);
        }
        reply.ok(&SessionListResponse { sessions });
    });
}

/// A session whose processes have been asked to describe themselves.
struct Asked {
    session: Session,
    answers: Vec<oneshot::Receiver<ProcessSummary>>,
}

impl Asked {
    fn of(session: Session) -> Self {
        let ask = |process: &crate::processes::ProcessHandle| {
            let (answer, summary) = oneshot::channel();
            // A process that is gone is not listed.
            let _ = process.send(Command::Summarise(answer));
            summary
        };
        let answers = session.processes().iter().map(ask).collect();
        Self { session, answers }
    }

    async fn answers(self) -> Vec<ProcessSummary> {
        let mut summaries = Vec::with_capacity(self.answers.len());
        for answer in self.answers {
            summaries.extend(answer.await);
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
            processes: self.answers().await,
        }
    }
}
