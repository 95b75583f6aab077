//! Requests between nodes, and signals to all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Message as NatsMessage;
use exec_server_relay::switchboard::{AttachError, CloseReason, Ticket};
use prost::Message;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Shared;
use super::nats::{Nats, Subjects, next};
use super::trunk_link::{LinkEnd, TrunkLink, run_home_link};
use crate::bus::{Bus, Link};
use crate::store::ClaimId;
use crate::trunk::LinkId;
use crate::wire::{
    Control, Disowned, Open, Refused, Reply, Signal, StreamCount, StreamCounts, Streams,
    Superseded, control, reply,
};

/// How long a node has to answer; it needs no database for that.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// A claim, and the node and epoch that hold it.
pub struct Home<'a> {
    pub node: &'a str,
    pub epoch: u64,
    pub claim: ClaimId,
}

/// Opens a link to the home node of an executor.
pub async fn open_link(
    shared: &Arc<Shared>,
    nats: &Nats,
    home: Home<'_>,
    ticket: Ticket,
    max_streams: Option<usize>,
) -> Result<Box<dyn Link>, AttachError> {
    let peer = nats.trunks.peer(home.node, home.epoch).ok_or(AttachError::Unavailable)?;
    let id = LinkId { is_ours: true, number: nats.trunks.next_link() };
    // Frames may arrive before the answer does.
    let credit = peer.with(|trunk| trunk.open(Instant::now(), id, 0));
    let link = TrunkLink::new(LinkEnd { shared: shared.clone(), peer: peer.clone(), id });
    let open = Open {
        node: shared.node.id.clone(),
        epoch: nats.trunks.epoch(),
        link: id.number,
        credit,
        claim: Some(home.claim.into()),
        environment: ticket.environment,
        registration: ticket.registration,
        token: ticket.token,
        max_streams: max_streams.map(|max| max as u64),
    };
    let answer = nats.ask(home.node, home.epoch, control::Kind::Open(open)).await;
    match answer {
        Some(reply::Kind::Opened(credit)) => {
            peer.with(|trunk| trunk.handle_opened(id, credit));
            Ok(Box::new(link))
        }
        Some(reply::Kind::Refused(why)) => Err(match Refused::try_from(why) {
            Ok(Refused::Stale) => AttachError::Offline,
            Ok(Refused::Full) => AttachError::Full,
            Ok(Refused::TokenFull) => AttachError::TokenFull,
            _ => AttachError::Unavailable,
        }),
        _ => Err(AttachError::Unavailable),
    }
}

impl Nats {
    /// Sends a request; none if there is no answer in time.
    async fn ask(&self, node: &str, epoch: u64, kind: control::Kind) -> Option<reply::Kind> {
        let subject = self.subjects.control(node, epoch);
        let request = Control { kind: Some(kind) }.encode_to_vec();
        let asked = self.control.request(subject, request.into());
        let answer = match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                tracing::info!(node, epoch, %error, "the node does not answer");
                return None;
            }
            Err(_) => {
                tracing::info!(node, epoch, "the node does not answer in time");
                return None;
            }
        };
        Reply::decode(answer.payload).ok()?.kind
    }

    /// The harnesses of environments that are attached to another node.
    pub async fn streams(
        &self,
        node: &str,
        epoch: u64,
        environments: Vec<String>,
    ) -> BTreeMap<String, (usize, bool)> {
        let asked = control::Kind::Streams(Streams { environments });
        let Some(reply::Kind::Streams(answer)) = self.ask(node, epoch, asked).await else {
            return BTreeMap::new();
        };
        let count = |it: StreamCount| {
            (it.environment, (usize::try_from(it.streams).unwrap_or(usize::MAX), it.is_full))
        };
        answer.counts.into_iter().map(count).collect()
    }

    /// Tells a node that its claim was replaced; the database is the repair.
    pub fn tell_superseded(&self, environment: &str, previous: (String, u64, ClaimId)) {
        let (node, epoch, claim) = previous;
        let superseded =
            Superseded { environment: environment.to_owned(), claim: Some(claim.into()) };
        let kind = Some(control::Kind::Superseded(superseded));
        self.post(self.subjects.control(&node, epoch), Control { kind }.encode_to_vec());
    }

    /// Tells a node that heartbeats with a dead epoch to take a new one.
    pub fn tell_disowned(&self, node: &str, epoch: u64) {
        let kind = Some(control::Kind::Disowned(Disowned {}));
        self.post(self.subjects.control(node, epoch), Control { kind }.encode_to_vec());
    }

    /// Tells all nodes that tokens were revoked; the database is the repair.
    pub fn tell_revoked(&self, node: &str, tokens: impl Iterator<Item = String>) {
        let signal = Signal { node: node.to_owned(), revoked_tokens: tokens.collect() };
        self.post(self.subjects.all(), signal.encode_to_vec());
    }

    /// Queues a message that may be lost.
    fn post(&self, subject: String, message: Vec<u8>) {
        if self.outbox.try_send((subject, message)).is_err() {
            tracing::debug!("a message to other nodes was dropped, because too many wait");
        }
    }
}

/// Answers requests and signals until the node stops; the links that others open here end with it.
pub async fn run_control(
    shared: Arc<Shared>,
    mut outbox: mpsc::Receiver<(String, Vec<u8>)>,
    mut lost_lanes: mpsc::Receiver<usize>,
) {
    let Some(nats) = &shared.nats else { return };
    let requests = nats.control.subscribe(nats.subjects.any_control(&shared.node.id)).await;
    let signals = nats.control.subscribe(nats.subjects.all()).await;
    let (mut requests, mut signals) = match (requests, signals) {
        (Ok(requests), Ok(signals)) => (requests, signals),
        (Err(error), _) | (_, Err(error)) => {
            return tracing::error!(%error, "cannot subscribe to requests of other nodes");
        }
    };
    let mut links = JoinSet::new();
    loop {
        tokio::select! {
            Some(request) = next(&mut requests) => handle_request(&shared, nats, request, &mut links).await,
            Some(signal) = next(&mut signals) => handle_signal(&shared, signal).await,
            Some((subject, message)) = outbox.recv() => {
                let _ = nats.control.publish(subject, message.into()).await;
            }
            Some(lane) = lost_lanes.recv() => {
                tracing::warn!(lane, "the connection to NATS was lost; its streams end and come back");
                nats.trunks.handle_lane_lost(lane);
            }
            Some(_) = links.join_next() => {}
            else => return,
        }
    }
}

async fn handle_request(
    shared: &Arc<Shared>,
    nats: &Nats,
    request: NatsMessage,
    links: &mut JoinSet<()>,
) {
    let is_ours = Subjects::epoch(&request.subject) == Some(nats.trunks.epoch());
    let Ok(Control { kind: Some(kind) }) = Control::decode(request.payload) else { return };
    let kind = match kind {
        control::Kind::Superseded(told) => {
            if let Some(claim) = told.claim.filter(|_| is_ours) {
                shared.handle_replaced(&told.environment, claim.into());
            }
            return;
        }
        control::Kind::Disowned(_) => {
            if is_ours {
                shared.state().is_disowned = true;
            }
            return;
        }
        control::Kind::Open(_) if !is_ours => refused(AttachError::Stale),
        control::Kind::Open(open) => match open_home_link(shared, nats, open, links).await {
            Ok(credit) => reply::Kind::Opened(credit),
            Err(error) => refused(error),
        },
        control::Kind::Streams(asked) => reply::Kind::Streams(count_streams(shared, asked)),
    };
    if let Some(to) = request.reply {
        let reply = Reply { kind: Some(kind) }.encode_to_vec();
        let _ = nats.control.publish(to, reply.into()).await;
    }
}

fn refused(error: AttachError) -> reply::Kind {
    let why = match error {
        AttachError::Offline | AttachError::Stale => Refused::Stale,
        AttachError::Full => Refused::Full,
        AttachError::TokenFull => Refused::TokenFull,
        AttachError::Unavailable => Refused::Unavailable,
    };
    reply::Kind::Refused(why.into())
}

/// Attaches the harness of another node to an executor of this one; returns the first credit.
async fn open_home_link(
    shared: &Arc<Shared>,
    nats: &Nats,
    open: Open,
    links: &mut JoinSet<()>,
) -> Result<u64, AttachError> {
    if shared.pause.is_on() {
        return Err(AttachError::Unavailable);
    }
    // A node whose claim was replaced opens no new stream.
    let held = shared.state().claims.claim(&open.environment);
    if held.is_none() || held != open.claim.map(ClaimId::from) {
        return Err(AttachError::Stale);
    }
    let peer = nats.trunks.peer(&open.node, open.epoch).ok_or(AttachError::Unavailable)?;
    let id = LinkId { is_ours: false, number: open.link };
    // A doubled request would start the link again, with other numbers than its frames have.
    if peer.with(|trunk| trunk.is_open(id)) {
        return Err(AttachError::Stale);
    }
    let max_streams = open.max_streams.map(|max| usize::try_from(max).unwrap_or(usize::MAX));
    let Open { environment, registration, token, .. } = open;
    let ticket = Ticket { environment, registration, token };
    let link = shared.local.attach_harness(ticket, max_streams).await?;
    let credit = peer.with(|trunk| trunk.open(Instant::now(), id, open.credit));
    links.spawn(run_home_link(LinkEnd { shared: shared.clone(), peer, id }, link));
    Ok(credit)
}

fn count_streams(shared: &Shared, asked: Streams) -> StreamCounts {
    let count = |environment: String| {
        let presence = shared.local.presence(&environment)?;
        let streams = presence.streams.unwrap_or(0) as u64;
        Some(StreamCount { environment, streams, is_full: presence.is_full })
    };
    StreamCounts { counts: asked.environments.into_iter().filter_map(count).collect() }
}

async fn handle_signal(shared: &Shared, signal: NatsMessage) {
    let Ok(signal) = Signal::decode(signal.payload) else { return };
    if signal.node == shared.node.id || signal.revoked_tokens.is_empty() {
        return;
    }
    let ended = signal.revoked_tokens.into_iter().map(|token| (token, CloseReason::Revoked));
    shared.local.end_tokens(&ended.collect()).await;
}
