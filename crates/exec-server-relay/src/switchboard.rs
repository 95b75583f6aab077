//! Routing table of a rendezvous node: the attached sockets, their streams and their queues.
//!
//! ```text
//! harness socket ─first frame claims a stream─▶ queue of the stream ─round robin─▶ executor socket
//! harness socket ◀─ queue of the harness ◀──────────── by stream id ──────────────  executor socket
//! ```
//!
//! Owner: `bus/local.rs` of the rendezvous, behind a lock that is held for one call at a time. A frame never leaves its
//! environment, because its stream is looked up in the environment of the sending socket.
//! Invariant: a stream has at most one harness, and a harness at most one stream.
//!
//! Frames are not dropped while both ends are attached; backpressure pauses reading instead. A harness that sends too
//! fast is not read. An executor is not read while the queue of one of its harnesses is full. Such a harness blocks the
//! other harnesses, so it is closed if it does not catch up within [`SwitchboardLimits::slow_timeout`]. An executor that
//! takes no frame for that long while a harness waits for it is closed as well.

mod attach;
mod budget;
mod close_reason;
mod environment;
mod queue;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::frame::{RESET_HARNESS_DISCONNECTED, RelayBody, RelayFrame, RelayHeader, RelayKind};
use bytes::Bytes;

pub use attach::{AttachError, Presence, SwitchboardLimits, Ticket};
pub use budget::{BufferBudget, Charge, DEFAULT_BUDGET};
pub use close_reason::CloseReason;
use environment::{Environment, Executor, HARNESS_QUEUE, Stream};
use queue::Queue;

/// Executors drop the whole socket, with all streams, on a larger message.
pub const MAX_FRAME_BYTES: usize = 256 * 1024;

/// Identifies a socket; an id is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(u64);

/// How a frame was routed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteOutcome {
    /// The frame was queued, or its sender is being closed.
    Taken,
    /// Dropped: a harness used a stream id that it has not claimed.
    Foreign,
    /// Dropped: an executor's frame is invalid, or its stream has no harness (any more).
    Unknown,
}

/// The attached sockets by environment, with their queues.
pub struct Switchboard {
    limits: SwitchboardLimits,
    budget: Arc<BufferBudget>,
    environments: BTreeMap<String, Environment>,
    sockets: BTreeMap<SocketId, Socket>,
    /// Number of attached harnesses per token.
    by_token: BTreeMap<String, usize>,
    /// Sockets whose owners must be woken.
    wakes: BTreeSet<SocketId>,
    /// Environments whose executor is no longer attached.
    departures: Vec<String>,
    next_socket: u64,
}

struct Socket {
    environment: Arc<str>,
    token: String,
    /// Set once; frames from the socket are ignored from then on.
    close_reason: Option<CloseReason>,
    side: Side,
}

enum Side {
    Executor,
    Harness(Harness),
}

struct Harness {
    attached: Instant,
    stream: Option<String>,
    has_sent_handshake: bool,
    outgoing: Queue,
    behind_since: Option<Instant>,
}

impl Switchboard {
    /// Starts without sockets; the budget may be shared with other switchboards.
    pub fn new(limits: SwitchboardLimits, budget: Arc<BufferBudget>) -> Self {
        Self {
            limits,
            budget,
            environments: BTreeMap::new(),
            sockets: BTreeMap::new(),
            by_token: BTreeMap::new(),
            wakes: BTreeSet::new(),
            departures: Vec::new(),
            next_socket: 0,
        }
    }

    /// Attaches an executor and closes the previous one; fails if the previous one's registration is newer.
    pub fn attach_executor(
        &mut self,
        now: Instant,
        ticket: Ticket,
        generation: u64,
    ) -> Result<SocketId, AttachError> {
        let Ticket { environment, registration, token } = ticket;
        let attached = self.environments.get(&environment).and_then(|env| env.executor.as_ref());
        if attached.is_some_and(|executor| executor.generation > generation) {
            return Err(AttachError::Stale);
        }
        self.end_executor(&environment, CloseReason::Superseded);
        let socket = self.insert(environment.clone(), token, Side::Executor);
        self.environments.entry(environment).or_default().executor = Some(Executor {
            socket,
            registration,
            generation,
            since: now,
            turns: VecDeque::new(),
            waits_for: BTreeSet::new(),
            taken: 0,
            stall: None,
        });
        Ok(socket)
    }

    /// Attaches a harness to an attached executor; `max_streams` limits the harnesses of its token.
    pub fn attach_harness(
        &mut self,
        now: Instant,
        ticket: Ticket,
        max_streams: Option<usize>,
    ) -> Result<SocketId, AttachError> {
        let Ticket { environment, registration, token } = ticket;
        let limit = self.limits.streams_per_environment;
        let env = self.environments.get(&environment).ok_or(AttachError::Offline)?;
        let executor = env.executor.as_ref().ok_or(AttachError::Offline)?;
        if executor.registration != registration {
            return Err(AttachError::Stale);
        }
        if env.is_full(limit) {
            return Err(AttachError::Full);
        }
        let has = self.by_token.get(&token).copied().unwrap_or(0);
        if max_streams.is_some_and(|max| has >= max) {
            return Err(AttachError::TokenFull);
        }
        self.by_token.insert(token.clone(), has + 1);
        let harness = Harness {
            attached: now,
            stream: None,
            has_sent_handshake: false,
            outgoing: Queue::new(&self.budget),
            behind_since: None,
        };
        let socket = self.insert(environment.clone(), token, Side::Harness(harness));
        self.environment(&environment).harnesses.insert(socket);
        Ok(socket)
    }

    /// Routes a binary message from a socket.
    pub fn handle_frame(&mut self, now: Instant, id: SocketId, frame: Bytes) -> RouteOutcome {
        let Some(Socket { side, close_reason: None, .. }) = self.sockets.get(&id) else {
            return RouteOutcome::Taken;
        };
        if frame.len() > MAX_FRAME_BYTES {
            self.end(id, CloseReason::TooBig);
            return RouteOutcome::Taken;
        }
        match side {
            Side::Executor => self.handle_executor_frame(now, id, frame),
            Side::Harness(_) => self.handle_harness_frame(now, id, frame),
        }
    }

    /// Closes a socket that broke the protocol outside of frames.
    pub fn handle_misuse(&mut self, id: SocketId, why: CloseReason) {
        self.end(id, why);
    }

    /// Removes a socket that has closed, for whatever reason.
    pub fn handle_gone(&mut self, id: SocketId) {
        self.end(id, CloseReason::Gone);
        let Some(socket) = self.sockets.remove(&id) else { return };
        self.wakes.remove(&id);
        self.remove_if_empty(&socket.environment);
    }

    /// Closes an attached executor whose registration is older than `generation`.
    pub fn supersede(&mut self, environment: &str, generation: u64) {
        let attached = self.environments.get(environment).and_then(|env| env.executor.as_ref());
        if attached.is_some_and(|executor| executor.generation < generation) {
            self.end_executor(environment, CloseReason::Superseded);
            self.remove_if_empty(environment);
        }
    }

    /// Closes the attached executor of an environment and its harnesses.
    pub fn close_executor(&mut self, environment: &str, why: CloseReason) {
        self.end_executor(environment, why);
        self.remove_if_empty(environment);
    }

    /// Closes up to `most` executors and their harnesses; returns how many were closed, and how many are left.
    pub fn close_executors(&mut self, most: usize, why: CloseReason) -> (usize, usize) {
        let attached = self.environments.iter().filter(|(_, env)| env.executor.is_some());
        let attached: Vec<String> = attached.map(|(name, _)| name.clone()).collect();
        let closed = most.min(attached.len());
        for environment in &attached[..closed] {
            self.close_executor(environment, why);
        }
        (closed, attached.len() - closed)
    }

    /// Closes every socket that attached with one of these tokens.
    pub fn end_tokens(&mut self, ended: &BTreeMap<String, CloseReason>) {
        if ended.is_empty() {
            return;
        }
        let why = |(id, socket): (&SocketId, &Socket)| Some((*id, *ended.get(&socket.token)?));
        let sockets: Vec<_> = self.sockets.iter().filter_map(why).collect();
        for (id, why) in sockets {
            self.end(id, why);
        }
    }

    /// Closes every socket, because the rendezvous is shutting down.
    pub fn drain(&mut self) {
        let sockets: Vec<_> = self.sockets.keys().copied().collect();
        for id in sockets {
            self.end(id, CloseReason::Draining);
        }
    }

    /// The attached executor of an environment.
    pub fn presence(&self, environment: &str) -> Option<Presence> {
        let env = self.environments.get(environment)?;
        let executor = env.executor.as_ref()?;
        Some(Presence {
            registration: executor.registration.clone(),
            since: executor.since,
            streams: env.harnesses.len(),
            is_full: env.is_full(self.limits.streams_per_environment),
        })
    }

    /// A socket with a frame to write, a close reason, or permission to read again.
    pub fn poll_wake(&mut self) -> Option<SocketId> {
        self.wakes.pop_first()
    }

    /// An environment whose executor was attached until now.
    pub fn poll_departure(&mut self) -> Option<String> {
        self.departures.pop()
    }

    /// The next frame to write to a socket.
    pub fn poll_frame(&mut self, id: SocketId) -> Option<Bytes> {
        let socket = self.sockets.get_mut(&id)?;
        match &mut socket.side {
            Side::Harness(harness) => {
                let frame = harness.outgoing.pop()?;
                if harness.behind_since.is_some() && harness.outgoing.has_drained(HARNESS_QUEUE) {
                    harness.behind_since = None;
                    let environment = socket.environment.clone();
                    self.stop_waiting(&environment, id);
                }
                Some(frame)
            }
            Side::Executor if socket.close_reason.is_some() => None,
            Side::Executor => {
                let environment = socket.environment.clone();
                self.take_turn(&environment)
            }
        }
    }

    /// The close reason for a socket, once all its frames are written.
    pub fn poll_close_reason(&self, id: SocketId) -> Option<CloseReason> {
        let socket = self.sockets.get(&id)?;
        match &socket.side {
            Side::Harness(harness) if !harness.outgoing.is_empty() => None,
            _ => socket.close_reason,
        }
    }

    /// The stream that a harness has claimed; none for executors.
    pub fn stream_id(&self, id: SocketId) -> Option<&str> {
        match &self.sockets.get(&id)?.side {
            Side::Harness(harness) => harness.stream.as_deref(),
            Side::Executor => None,
        }
    }

    /// Whether a socket is closing; queued frames may still be written.
    pub fn is_ending(&self, id: SocketId) -> bool {
        self.sockets.get(&id).is_none_or(|socket| socket.close_reason.is_some())
    }

    /// Whether the socket may be read now; if not, it is woken when it may.
    pub fn poll_reading(&mut self, id: SocketId) -> bool {
        let Some(socket) = self.sockets.get(&id) else { return false };
        let Some(env) = self.environments.get_mut(&*socket.environment) else { return true };
        match &socket.side {
            // A closing socket is read and its frames discarded, so that the peer's close frame is seen.
            _ if socket.close_reason.is_some() => true,
            Side::Executor => env.executor.as_ref().is_none_or(|it| it.waits_for.is_empty()),
            Side::Harness(Harness { stream: Some(stream), .. }) => env.poll_room_for(stream),
            Side::Harness(_) => true,
        }
    }

    /// When to call [`Switchboard::handle_timeout`] for this socket.
    pub fn poll_timeout(&self, id: SocketId) -> Option<Instant> {
        let socket = self.sockets.get(&id).filter(|socket| socket.close_reason.is_none())?;
        let Side::Harness(harness) = &socket.side else {
            let executor = self.environments.get(&*socket.environment)?.executor.as_ref()?;
            return executor.stall.map(|stall| stall.since + self.limits.slow_timeout);
        };
        let claim = harness.stream.is_none().then(|| harness.attached + self.limits.claim);
        claim.or(harness.behind_since.map(|since| since + self.limits.slow_timeout))
    }

    /// Closes a socket whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant, id: SocketId) {
        if self.poll_timeout(id).is_none_or(|deadline| now < deadline) {
            return;
        }
        let Some(socket) = self.sockets.get(&id) else { return };
        let why = match &socket.side {
            Side::Harness(harness) if harness.stream.is_none() => CloseReason::Silent,
            Side::Harness(_) => CloseReason::Slow,
            Side::Executor => {
                let env = self.environments.get_mut(&*socket.environment);
                if !env.is_some_and(|env| env.has_stalled(now)) {
                    return;
                }
                CloseReason::Slow
            }
        };
        self.end(id, why);
    }

    /// The numbers of attached executors and harnesses.
    pub fn counts(&self) -> (usize, usize) {
        let executors = self.environments.values().filter(|env| env.executor.is_some()).count();
        let harnesses = self.environments.values().map(|env| env.harnesses.len()).sum();
        (executors, harnesses)
    }

    fn handle_harness_frame(&mut self, now: Instant, id: SocketId, bytes: Bytes) -> RouteOutcome {
        let Ok(frame) = RelayHeader::decode(bytes.clone()) else {
            self.end(id, CloseReason::NoFrame);
            return RouteOutcome::Taken;
        };
        let socket = self.sockets.get_mut(&id).expect("the caller found the socket");
        let Side::Harness(harness) = &mut socket.side else { return RouteOutcome::Taken };
        let env = self.environments.get_mut(&*socket.environment);
        let env = env.expect("an attached harness has an environment");
        match &harness.stream {
            None if env.streams.contains_key(&frame.stream_id) => {
                self.end(id, CloseReason::StreamTaken);
                return RouteOutcome::Foreign;
            }
            None => {
                let stream = Stream::new(id, Queue::new(&self.budget));
                env.streams.insert(frame.stream_id.clone(), stream);
                harness.stream = Some(frame.stream_id.clone());
            }
            Some(claimed) if *claimed != frame.stream_id => return RouteOutcome::Foreign,
            Some(_) => {}
        }
        if frame.kind == RelayKind::Handshake {
            // Failed handshakes start a cooldown at the executor, so each harness gets one attempt.
            if harness.has_sent_handshake {
                self.end(id, CloseReason::SecondHandshake);
                return RouteOutcome::Taken;
            }
            harness.has_sent_handshake = true;
        }
        let executor = env.push_to_executor(frame.stream_id.clone(), bytes);
        env.note_stall(now, &frame.stream_id);
        self.wakes.extend(executor);
        RouteOutcome::Taken
    }

    fn handle_executor_frame(&mut self, now: Instant, id: SocketId, bytes: Bytes) -> RouteOutcome {
        let Ok(frame) = RelayHeader::decode(bytes.clone()) else { return RouteOutcome::Unknown };
        let environment = self.sockets[&id].environment.clone();
        let Some(env) = self.environments.get_mut(&*environment) else {
            return RouteOutcome::Unknown;
        };
        let Some(to) = env.streams.get(&frame.stream_id).and_then(|stream| stream.harness) else {
            return RouteOutcome::Unknown;
        };
        let socket = self.sockets.get_mut(&to).expect("a stream's harness is attached");
        let Side::Harness(harness) = &mut socket.side else { return RouteOutcome::Unknown };
        harness.outgoing.push(bytes);
        self.wakes.insert(to);
        if !harness.outgoing.has_room(HARNESS_QUEUE) && harness.behind_since.is_none() {
            harness.behind_since = Some(now);
            if let Some(executor) = &mut env.executor {
                executor.waits_for.insert(to);
            }
        }
        if frame.kind == RelayKind::Reset {
            self.end(to, CloseReason::StreamEnded);
        }
        RouteOutcome::Taken
    }

    /// Pops one frame of the next stream in round-robin order.
    fn take_turn(&mut self, environment: &str) -> Option<Bytes> {
        let (frame, resumed) = self.environments.get_mut(environment)?.take_turn()?;
        self.wakes.extend(resumed);
        Some(frame)
    }

    /// Sets the close reason of a socket and removes it from its environment.
    fn end(&mut self, id: SocketId, why: CloseReason) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        if socket.close_reason.is_some() {
            return;
        }
        let environment = socket.environment.clone();
        let Side::Harness(harness) = &mut socket.side else {
            return self.end_executor_socket(id, &environment, why);
        };
        socket.close_reason = Some(why);
        if !why.waits_for_frames() {
            harness.outgoing.clear();
        }
        let claimed = harness.stream.take();
        self.wakes.insert(id);
        if let Some(count) = self.by_token.get_mut(&socket.token) {
            *count -= 1;
            if *count == 0 {
                self.by_token.remove(&socket.token);
            }
        }
        let env = self.environment(&environment);
        env.harnesses.remove(&id);
        if let Some(stream_id) = claimed
            && let Some(stream) = env.streams.get_mut(&stream_id)
        {
            stream.harness = None;
            // Queued behind the harness's frames; the session stays attached until the executor reads this reset.
            let body = RelayBody::Reset { reason: RESET_HARNESS_DISCONNECTED.into() };
            let reset = RelayFrame::new(stream_id.clone(), body).encode();
            let executor = env.push_to_executor(stream_id, reset.into());
            self.wakes.extend(executor);
        }
        self.stop_waiting(&environment, id);
    }

    fn end_executor_socket(&mut self, id: SocketId, environment: &str, why: CloseReason) {
        let env = self.environments.get(environment);
        let is_current =
            env.and_then(|env| env.executor.as_ref()).is_some_and(|it| it.socket == id);
        if is_current {
            self.end_executor(environment, why);
        }
    }

    /// Closes an executor and all its harnesses.
    fn end_executor(&mut self, environment: &str, why: CloseReason) {
        let Some(env) = self.environments.get_mut(environment) else { return };
        let Some(executor) = env.executor.take() else { return };
        env.streams.clear();
        let harnesses = std::mem::take(&mut env.harnesses);
        let socket = self.sockets.get_mut(&executor.socket).expect("an executor has a socket");
        socket.close_reason = Some(why);
        self.wakes.insert(executor.socket);
        self.departures.push(environment.to_owned());
        for harness in harnesses {
            self.end(harness, CloseReason::ExecutorGone);
        }
    }

    /// Removes a harness from those that pause reading from the executor.
    fn stop_waiting(&mut self, environment: &str, harness: SocketId) {
        let Some(env) = self.environments.get_mut(environment) else { return };
        let Some(executor) = &mut env.executor else { return };
        if executor.waits_for.remove(&harness) && executor.waits_for.is_empty() {
            self.wakes.insert(executor.socket);
        }
    }

    fn insert(&mut self, environment: String, token: String, side: Side) -> SocketId {
        let id = SocketId(self.next_socket);
        self.next_socket += 1;
        let environment = environment.into();
        self.sockets.insert(id, Socket { environment, token, close_reason: None, side });
        id
    }

    fn environment(&mut self, environment: &str) -> &mut Environment {
        let env = self.environments.get_mut(environment);
        env.expect("a harness that is attached has an environment")
    }

    fn remove_if_empty(&mut self, environment: &str) {
        let is_empty = |env: &Environment| env.executor.is_none() && env.harnesses.is_empty();
        if self.environments.get(environment).is_some_and(is_empty) {
            self.environments.remove(environment);
        }
    }
}

#[cfg(test)]
mod tests;
