//! Claims of executors, batched: after a crash of a node thousands come at once.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use exec_server_relay::switchboard::AttachError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::Shared;
use crate::store::{ClaimId, ClaimRequest};

/// How long a batch waits for more; far less than an executor notices.
const GATHER: Duration = Duration::from_millis(5);

/// Claims of one statement.
const MOST_TOGETHER: usize = 256;

/// A message to the task that claims.
pub enum ClaimMessage {
    Claim { request: ClaimRequest, reply: oneshot::Sender<Result<Option<ClaimId>, AttachError>> },
    Release { environment: String, claim: ClaimId },
}

/// Claims an executor for this node.
pub async fn claim(shared: &Shared, request: ClaimRequest) -> Result<ClaimId, AttachError> {
    let (reply, answer) = oneshot::channel();
    let message = ClaimMessage::Claim { request, reply };
    shared.requests.send(message).await.map_err(|_| AttachError::Unavailable)?;
    answer.await.unwrap_or(Err(AttachError::Unavailable))?.ok_or(AttachError::Stale)
}

/// Collects claims and makes them together.
pub async fn run_claims(shared: Arc<Shared>, mut queue: mpsc::Receiver<ClaimMessage>) {
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(message) => message,
            None => match queue.recv().await {
                Some(message) => message,
                None => return,
            },
        };
        let mut batch = Batch::default();
        next = batch.add(&shared, first).await;
        let deadline = Instant::now() + GATHER;
        while next.is_none() && batch.requests.len() < MOST_TOGETHER {
            let Ok(Some(message)) = timeout_at(deadline, queue.recv()).await else { break };
            next = batch.add(&shared, message).await;
        }
        batch.commit(&shared).await;
    }
}

#[derive(Default)]
struct Batch {
    requests: Vec<ClaimRequest>,
    replies: Vec<oneshot::Sender<Result<Option<ClaimId>, AttachError>>>,
    environments: BTreeSet<String>,
}

impl Batch {
    /// Adds a claim, or releases one; returns a claim that must wait, because its environment is in the batch.
    async fn add(&mut self, shared: &Shared, message: ClaimMessage) -> Option<ClaimMessage> {
        match message {
            ClaimMessage::Release { environment, claim } => {
                release(shared, environment, claim).await;
            }
            ClaimMessage::Claim { request, reply } => {
                if !self.environments.insert(request.environment.clone()) {
                    return Some(ClaimMessage::Claim { request, reply });
                }
                self.requests.push(request);
                self.replies.push(reply);
            }
        }
        None
    }

    async fn commit(self, shared: &Shared) {
        if self.requests.is_empty() {
            return;
        }
        let epoch = shared.state().epoch;
        let claims = shared.store.claim(&shared.node.id, epoch, &self.requests).await;
        let claims: Vec<_> = match claims {
            Ok(claims) => {
                let mut state = shared.state();
                state.counts.claims += claims.iter().flatten().count() as u64;
                state.counts.claim_batches += 1;
                drop(state);
                let told = claims.into_iter().zip(&self.requests).map(|(claimed, request)| {
                    let claimed = claimed?;
                    if let Some(previous) = claimed.previous {
                        shared.tell_superseded(&request.environment, previous);
                    }
                    Some(claimed.claim)
                });
                told.map(Ok).collect()
            }
            Err(error) => {
                tracing::error!(%error, claims = self.requests.len(), "could not claim executors");
                let mut state = shared.state();
                for request in &self.requests {
                    state.claims.handle_unanswered(&request.environment);
                }
                drop(state);
                self.requests.iter().map(|_| Err(AttachError::Unavailable)).collect()
            }
        };
        for ((reply, claim), request) in self.replies.into_iter().zip(claims).zip(self.requests) {
            if let Err(Ok(Some(claim))) = reply.send(claim) {
                // The connection ended meanwhile.
                release(shared, request.environment, claim).await;
            }
        }
    }
}

async fn release(shared: &Shared, environment: String, claim: ClaimId) {
    let ended = [(environment, claim)];
    if let Err(error) = shared.store.release(&shared.node.id, &ended).await {
        let [(environment, claim)] = ended;
        tracing::debug!(%error, environment, "could not release a claim; it is tried again");
        shared.state().release_later(environment, claim);
    }
}
