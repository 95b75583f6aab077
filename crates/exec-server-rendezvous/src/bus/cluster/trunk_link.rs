//! The two ends of a link: the websocket of a harness at its node, and the switchboard at the home node.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exec_server_relay::frame::RelayHeader;
use exec_server_relay::switchboard::{CloseReason, RouteOutcome};

use super::Shared;
use super::trunks::Peer;
use crate::bus::{Link, LinkState};
use crate::trunk::LinkId;

/// Yield after this many frames, so that a busy link does not starve others.
const FRAMES_PER_TURN: usize = 32;

/// How long the last frames of a closed link wait for credits.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// One end of a link; dropping it closes the link.
pub struct LinkEnd {
    pub shared: Arc<Shared>,
    pub peer: Arc<Peer>,
    pub id: LinkId,
}

impl LinkEnd {
    fn close(&self, why: CloseReason) {
        let ended = self.peer.with(|trunk| {
            let known = trunk.end_reason(self.id);
            trunk.close(self.id, why);
            known.unwrap_or(why)
        });
        self.peer.unwatch(self.id);
        if let Some(nats) = &self.shared.nats {
            nats.trunks.note_end(ended.reason());
        }
    }
}

/// The end at the node of a harness: what its websocket is attached to.
pub struct TrunkLink {
    end: LinkEnd,
    local: Mutex<Local>,
}

#[derive(Default)]
struct Local {
    stream_id: Option<String>,
    /// Set when this end has closed the link.
    closed: Option<CloseReason>,
}

impl TrunkLink {
    pub fn new(end: LinkEnd) -> Self {
        Self { end, local: Mutex::default() }
    }

    fn local(&self) -> std::sync::MutexGuard<'_, Local> {
        self.local.lock().expect("no holder panics")
    }
}

impl Link for TrunkLink {
    fn handle_frame(&self, frame: Bytes) -> RouteOutcome {
        let mut local = self.local();
        if local.closed.is_some() {
            return RouteOutcome::Taken;
        }
        if local.stream_id.is_none() {
            // For the log; the home node checks the frame.
            local.stream_id = RelayHeader::decode(frame.clone()).ok().map(|it| it.stream_id);
        }
        drop(local);
        self.end.peer.with(|trunk| trunk.send(Instant::now(), self.end.id, frame));
        RouteOutcome::Taken
    }

    fn handle_misuse(&self, why: CloseReason) {
        let is_first = self.local().closed.replace(why).is_none();
        if is_first {
            self.end.close(why);
        }
    }

    fn handle_timeout(&self) {}

    fn stream_id(&self) -> Option<String> {
        self.local().stream_id.clone()
    }

    fn poll_frame(&self) -> Option<Bytes> {
        let id = self.end.id;
        self.end.peer.with(|trunk| match trunk.end_reason(id) {
            Some(why) if !why.waits_for_frames() => None,
            _ => trunk.pop(id),
        })
    }

    fn state(&self, waker: &Waker) -> LinkState {
        let id = self.end.id;
        self.end.peer.watch(id, waker);
        let closed = self.local().closed;
        let (ended, can_send, has_frame) = self
            .end
            .peer
            .with(|trunk| (trunk.end_reason(id), trunk.can_send(id), trunk.has_frame(id)));
        let ending = closed.or(ended);
        let is_done = |why: &CloseReason| closed.is_some() || !why.waits_for_frames() || !has_frame;
        LinkState {
            is_reading: ending.is_some() || can_send,
            is_ending: ending.is_some(),
            close_reason: ending.filter(is_done),
            timeout: None,
        }
    }
}

impl Drop for TrunkLink {
    fn drop(&mut self) {
        if self.local().closed.is_none() {
            self.end.close(CloseReason::Gone);
        }
    }
}

/// Connects a link with its attachment at the home node until one of them ends.
pub async fn run_home_link(end: LinkEnd, link: Box<dyn Link>) {
    let mut home = HomeLink { end, link, timer: None, close_deadline: None };
    let why = std::future::poll_fn(|cx| home.poll(cx)).await;
    // The switchboard tells the executor that the stream has ended.
    drop(home.link);
    home.end.close(why);
}

struct HomeLink {
    end: LinkEnd,
    link: Box<dyn Link>,
    timer: Option<Pin<Box<tokio::time::Sleep>>>,
    close_deadline: Option<Instant>,
}

impl HomeLink {
    fn poll(&mut self, cx: &mut Context) -> Poll<CloseReason> {
        let id = self.end.id;
        let mut budget = FRAMES_PER_TURN;
        loop {
            self.end.peer.watch(id, cx.waker());
            if self.link.state(cx.waker()).timeout.is_some_and(|at| Instant::now() >= at) {
                self.link.handle_timeout();
            }
            let mut is_moving = false;
            let can_send = self.end.peer.with(|trunk| trunk.can_send(id));
            if can_send && let Some(frame) = self.link.poll_frame() {
                self.end.peer.with(|trunk| trunk.send(Instant::now(), id, frame));
                is_moving = true;
            }
            let state = self.link.state(cx.waker());
            if let Some(why) = state.close_reason {
                return Poll::Ready(why);
            }
            if state.is_reading
                && let Some(frame) = self.end.peer.with(|trunk| trunk.pop(id))
            {
                self.link.handle_frame(frame);
                is_moving = true;
            }
            let (ended, has_frame) =
                self.end.peer.with(|trunk| (trunk.end_reason(id), trunk.has_frame(id)));
            if let Some(why) = ended.filter(|_| !has_frame) {
                return Poll::Ready(why);
            }
            if is_moving {
                budget -= 1;
                if budget == 0 {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                continue;
            }
            if state.is_ending || ended.is_some() {
                let deadline = self.close_deadline.get_or_insert(Instant::now() + CLOSE_TIMEOUT);
                if Instant::now() >= *deadline {
                    return Poll::Ready(ended.unwrap_or(CloseReason::TrunkLost));
                }
            }
            let next = [state.timeout, self.close_deadline].into_iter().flatten().min();
            if self.wait(cx, next).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Waits for a timer; pending without one.
    fn wait(&mut self, cx: &mut Context, until: Option<Instant>) -> Poll<()> {
        let Some(until) = until.map(tokio::time::Instant::from_std) else {
            self.timer = None;
            return Poll::Pending;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        timer.as_mut().poll(cx)
    }
}
