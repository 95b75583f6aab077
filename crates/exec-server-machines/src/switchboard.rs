//! Who is attached to a rendezvous, and which frame goes to whom.
//!
//! ```text
//! harness socket ─first frame claims a stream─▶ queue of the stream ─turn by turn─▶ executor socket
//! harness socket ◀─ queue of the harness ◀──────────── by stream id ──────────────  executor socket
//! ```
//!
//! Owner: `bus/local.rs` of the rendezvous, behind a lock that is never held for longer than one call. A frame only ever
//! meets sockets of its own environment, because streams are looked up in the environment of the socket that sent it.
//! Invariant: a stream has at most one harness, and a harness at most one stream.
//!
//! Nothing is lost while both ends are there: a harness that sends too fast is not read, and neither is an executor
//! while one of its harnesses has much to read. That harness has a little time to catch up, and is then let go, because
//! the others wait with it.

mod attach;
mod environment;
mod goodbye;
mod queue;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use exec_server_protocol::relay_frame::{RESET_HARNESS_DISCONNECTED, RelayBody, RelayFrame};

pub use attach::{AttachError, Presence, SwitchboardLimits, Ticket};
use environment::{Environment, Executor, Stream};
pub use goodbye::Goodbye;
use queue::Queue;

/// The largest message that a peer takes; one more byte, and an executor drops all its streams.
pub const MAX_FRAME_BYTES: usize = 256 * 1024;

/// Names a socket; it never returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(u64);

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameFate {
    /// It is on its way, or its sender is.
    Taken,
    /// A harness spoke on a stream that is another's; the frame goes nowhere.
    Foreign,
    /// An executor spoke on a stream that nobody has, perhaps not any more; the frame goes nowhere.
    Unknown,
}

/// Everything that is attached.
pub struct Switchboard {
    limits: SwitchboardLimits,
    environments: BTreeMap<String, Environment>,
    sockets: BTreeMap<SocketId, Socket>,
    /// How many harnesses each token has.
    by_token: BTreeMap<String, usize>,
    /// Sockets whose owners have something to look at.
    wakes: BTreeSet<SocketId>,
    next_socket: u64,
}

struct Socket {
    environment: Arc<str>,
    token: String,
    /// Set once; from then on nothing is taken from it.
    goodbye: Option<Goodbye>,
    side: Side,
}

enum Side {
    Executor,
    Harness(Harness),
}

struct Harness {
    attached: Instant,
    stream: Option<String>,
    has_shaken_hands: bool,
    outgoing: Queue,
    behind_since: Option<Instant>,
}

impl Switchboard {
    /// Nobody is attached yet.
    pub fn new(limits: SwitchboardLimits) -> Self {
        Self {
            limits,
            environments: BTreeMap::new(),
            sockets: BTreeMap::new(),
            by_token: BTreeMap::new(),
            wakes: BTreeSet::new(),
            next_socket: 0,
        }
    }

    /// An executor comes; one that was there before goes, unless its registration is newer.
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
        self.end_executor(&environment, Goodbye::Superseded);
        let socket = self.insert(environment.clone(), token, Side::Executor);
        self.environments.entry(environment).or_default().executor = Some(Executor {
            socket,
            registration,
            generation,
            since: now,
            turns: VecDeque::new(),
            waits_for: BTreeSet::new(),
        });
        Ok(socket)
    }

    /// A harness comes to an executor that is there.
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
            has_shaken_hands: false,
            outgoing: Queue::default(),
            behind_since: None,
        };
        let socket = self.insert(environment.clone(), token, Side::Harness(harness));
        self.environment(&environment).harnesses.insert(socket);
        Ok(socket)
    }

    /// A binary message arrived.
    pub fn handle_frame(&mut self, now: Instant, id: SocketId, frame: Bytes) -> FrameFate {
        let Some(Socket { side, goodbye: None, .. }) = self.sockets.get(&id) else {
            return FrameFate::Taken;
        };
        if frame.len() > MAX_FRAME_BYTES {
            self.end(id, Goodbye::TooBig);
            return FrameFate::Taken;
        }
        match side {
            Side::Executor => self.handle_executor_frame(now, id, frame),
            Side::Harness(_) => self.handle_harness_frame(id, frame),
        }
    }

    /// Something else than a frame arrived.
    pub fn handle_misuse(&mut self, id: SocketId, why: Goodbye) {
        self.end(id, why);
    }

    /// A socket is no more, whatever ended it.
    pub fn handle_gone(&mut self, id: SocketId) {
        self.end(id, Goodbye::Gone);
        let Some(socket) = self.sockets.remove(&id) else { return };
        self.wakes.remove(&id);
        self.forget_if_empty(&socket.environment);
    }

    /// A newer registration exists: an executor with an older one goes.
    pub fn supersede(&mut self, environment: &str, generation: u64) {
        let attached = self.environments.get(environment).and_then(|env| env.executor.as_ref());
        if attached.is_some_and(|executor| executor.generation < generation) {
            self.end_executor(environment, Goodbye::Superseded);
            self.forget_if_empty(environment);
        }
    }

    /// Ends every socket that came with one of these tokens.
    pub fn end_tokens(&mut self, ended: &BTreeMap<String, Goodbye>) {
        if ended.is_empty() {
            return;
        }
        let why = |(id, socket): (&SocketId, &Socket)| Some((*id, *ended.get(&socket.token)?));
        let sockets: Vec<_> = self.sockets.iter().filter_map(why).collect();
        for (id, why) in sockets {
            self.end(id, why);
        }
    }

    /// Ends every socket, because the rendezvous stops.
    pub fn drain(&mut self) {
        let sockets: Vec<_> = self.sockets.keys().copied().collect();
        for id in sockets {
            self.end(id, Goodbye::Draining);
        }
    }

    /// The executor of an environment, if it is there.
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

    /// A socket whose owner has something to look at: a frame, a goodbye, or that it is read again.
    pub fn poll_wake(&mut self) -> Option<SocketId> {
        self.wakes.pop_first()
    }

    /// The next frame to write to a socket.
    pub fn poll_frame(&mut self, id: SocketId) -> Option<Bytes> {
        let socket = self.sockets.get_mut(&id)?;
        match &mut socket.side {
            Side::Harness(harness) => {
                let frame = harness.outgoing.pop()?;
                let env = self.environments.get(&*socket.environment);
                let eased = env.map(|env| env.harness_mark().half());
                if harness.behind_since.is_some()
                    && eased.is_none_or(|eased| harness.outgoing.is_below(eased))
                {
                    harness.behind_since = None;
                    let environment = socket.environment.clone();
                    self.stop_waiting(&environment, id);
                }
                Some(frame)
            }
            Side::Executor if socket.goodbye.is_some() => None,
            Side::Executor => {
                let environment = socket.environment.clone();
                self.take_turn(&environment)
            }
        }
    }

    /// The last word to a socket, once all its frames are out.
    pub fn poll_goodbye(&self, id: SocketId) -> Option<Goodbye> {
        let socket = self.sockets.get(&id)?;
        match &socket.side {
            Side::Harness(harness) if !harness.outgoing.is_empty() => None,
            _ => socket.goodbye,
        }
    }

    /// The stream that a harness has claimed.
    pub fn stream_id(&self, id: SocketId) -> Option<&str> {
        match &self.sockets.get(&id)?.side {
            Side::Harness(harness) => harness.stream.as_deref(),
            Side::Executor => None,
        }
    }

    /// Whether a socket is to be closed, once its frames are out.
    pub fn is_ending(&self, id: SocketId) -> bool {
        self.sockets.get(&id).is_none_or(|socket| socket.goodbye.is_some())
    }

    /// Whether more is taken from a socket now.
    pub fn is_reading(&self, id: SocketId) -> bool {
        let Some(socket) = self.sockets.get(&id) else { return false };
        let Some(env) = self.environments.get(&*socket.environment) else { return true };
        match &socket.side {
            // What a socket that is to go still sends is read and thrown away, so that its own goodbye is seen.
            _ if socket.goodbye.is_some() => true,
            Side::Executor => env.executor.as_ref().is_none_or(|it| it.waits_for.is_empty()),
            Side::Harness(Harness { stream: Some(stream), .. }) => env.has_room_for(stream),
            Side::Harness(_) => true,
        }
    }

    /// When [`Switchboard::handle_timeout`] wants to be called for this socket.
    pub fn poll_timeout(&self, id: SocketId) -> Option<Instant> {
        let socket = self.sockets.get(&id).filter(|socket| socket.goodbye.is_none())?;
        let Side::Harness(harness) = &socket.side else { return None };
        let claim = harness.stream.is_none().then(|| harness.attached + self.limits.claim);
        claim.or(harness.behind_since.map(|since| since + self.limits.patience))
    }

    /// Time has passed for a socket.
    pub fn handle_timeout(&mut self, now: Instant, id: SocketId) {
        if self.poll_timeout(id).is_none_or(|deadline| now < deadline) {
            return;
        }
        let Some(Socket { side: Side::Harness(harness), .. }) = self.sockets.get(&id) else {
            return;
        };
        let why = if harness.stream.is_none() { Goodbye::Silent } else { Goodbye::Slow };
        self.end(id, why);
    }

    /// How many executors and harnesses are attached.
    pub fn counts(&self) -> (usize, usize) {
        let executors = self.environments.values().filter(|env| env.executor.is_some()).count();
        let harnesses = self.environments.values().map(|env| env.harnesses.len()).sum();
        (executors, harnesses)
    }

    fn handle_harness_frame(&mut self, id: SocketId, bytes: Bytes) -> FrameFate {
        let Ok(frame) = RelayFrame::decode(bytes.clone()) else {
            self.end(id, Goodbye::NoFrame);
            return FrameFate::Taken;
        };
        let socket = self.sockets.get_mut(&id).expect("the caller looked it up");
        let Side::Harness(harness) = &mut socket.side else { return FrameFate::Taken };
        let env = self.environments.get_mut(&*socket.environment);
        let env = env.expect("an attached harness has an environment");
        match &harness.stream {
            None if env.streams.contains_key(&frame.stream_id) => {
                self.end(id, Goodbye::StreamTaken);
                return FrameFate::Foreign;
            }
            None => {
                let stream = Stream { harness: Some(id), queue: Queue::default() };
                env.streams.insert(frame.stream_id.clone(), stream);
                harness.stream = Some(frame.stream_id.clone());
            }
            // Another's stream is none of its business.
            Some(claimed) if *claimed != frame.stream_id => return FrameFate::Foreign,
            Some(_) => {}
        }
        if let RelayBody::Handshake(_) = frame.body {
            // An executor that saw too many bad ones refuses everybody for a while.
            if harness.has_shaken_hands {
                self.end(id, Goodbye::SecondHandshake);
                return FrameFate::Taken;
            }
            harness.has_shaken_hands = true;
        }
        if let Some(executor) = env.push_to_executor(frame.stream_id, bytes) {
            self.wakes.insert(executor);
        }
        FrameFate::Taken
    }

    fn handle_executor_frame(&mut self, now: Instant, id: SocketId, bytes: Bytes) -> FrameFate {
        // Whose it would be cannot be known.
        let Ok(frame) = RelayFrame::decode(bytes.clone()) else { return FrameFate::Unknown };
        let environment = self.sockets[&id].environment.clone();
        let Some(env) = self.environments.get_mut(&*environment) else {
            return FrameFate::Unknown;
        };
        let Some(to) = env.streams.get(&frame.stream_id).and_then(|stream| stream.harness) else {
            return FrameFate::Unknown;
        };
        let socket = self.sockets.get_mut(&to).expect("a stream's harness is attached");
        let Side::Harness(harness) = &mut socket.side else { return FrameFate::Unknown };
        harness.outgoing.push(bytes);
        self.wakes.insert(to);
        if !harness.outgoing.is_below(env.harness_mark()) && harness.behind_since.is_none() {
            harness.behind_since = Some(now);
            if let Some(executor) = &mut env.executor {
                executor.waits_for.insert(to);
            }
        }
        if let RelayBody::Reset { .. } = frame.body {
            self.end(to, Goodbye::StreamEnded);
        }
        FrameFate::Taken
    }

    /// One frame of the stream whose turn it is.
    fn take_turn(&mut self, environment: &str) -> Option<Bytes> {
        let env = self.environments.get_mut(environment)?;
        env.take_turn(|harness| {
            self.wakes.insert(harness);
        })
    }

    /// Says goodbye to a socket and takes it out of its environment.
    fn end(&mut self, id: SocketId, why: Goodbye) {
        let Some(socket) = self.sockets.get_mut(&id) else { return };
        if socket.goodbye.is_some() {
            return;
        }
        let environment = socket.environment.clone();
        let Side::Harness(harness) = &mut socket.side else {
            return self.end_executor_socket(id, &environment, why);
        };
        socket.goodbye = Some(why);
        if !why.waits_for_frames() {
            harness.outgoing = Queue::default();
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
            // After everything that the harness has sent: the executor keeps the session attached until it hears this.
            let body = RelayBody::Reset { reason: RESET_HARNESS_DISCONNECTED.into() };
            let reset = RelayFrame::new(stream_id.clone(), body).encode();
            let executor = env.push_to_executor(stream_id, reset.into());
            self.wakes.extend(executor);
        }
        self.stop_waiting(&environment, id);
    }

    fn end_executor_socket(&mut self, id: SocketId, environment: &str, why: Goodbye) {
        let env = self.environments.get(environment);
        let is_current =
            env.and_then(|env| env.executor.as_ref()).is_some_and(|it| it.socket == id);
        if is_current {
            self.end_executor(environment, why);
        }
    }

    /// An executor goes, and with it every harness that it had.
    fn end_executor(&mut self, environment: &str, why: Goodbye) {
        let Some(env) = self.environments.get_mut(environment) else { return };
        let Some(executor) = env.executor.take() else { return };
        env.forget_streams();
        let harnesses = std::mem::take(&mut env.harnesses);
        let socket = self.sockets.get_mut(&executor.socket).expect("an executor has a socket");
        socket.goodbye = Some(why);
        self.wakes.insert(executor.socket);
        for harness in harnesses {
            self.end(harness, Goodbye::ExecutorGone);
        }
    }

    /// The executor does not wait for this harness any more.
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
        self.sockets.insert(id, Socket { environment, token, goodbye: None, side });
        id
    }

    fn environment(&mut self, environment: &str) -> &mut Environment {
        let env = self.environments.get_mut(environment);
        env.expect("a harness that is attached has an environment")
    }

    fn forget_if_empty(&mut self, environment: &str) {
        let is_empty = |env: &Environment| env.executor.is_none() && env.harnesses.is_empty();
        if self.environments.get(environment).is_some_and(is_empty) {
            self.environments.remove(environment);
        }
    }
}

#[cfg(test)]
mod tests;
