//! Forwards messages between two wires, unchanged and with backpressure.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use exec_server_transport::connection::{InMessage, Received, Wire, WireError};
use exec_server_transport::keepalive_timer::{KeepaliveAction, KeepaliveConfig, KeepaliveTimer};
use exec_server_transport::outbox::CloseReason;

/// Bytes of messages passed to a wire between two flushes.
const BATCH_BYTES: usize = 256 * 1024;
/// Bounds one direction's turn, so that it cannot starve the other.
const BATCHES_PER_TURN: usize = 8;
/// Limit for flushing to the far side after the end, or for answering its close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Which side ended the splice.
#[derive(Debug)]
pub enum SpliceEnd {
    /// The near side closed, or failed with this error.
    Near(Option<WireError>),
    /// The far side sent a close frame with this reason.
    Closed(CloseReason),
    /// The far side ended without a close frame, or failed with this error.
    Far(Option<WireError>),
    /// The far side missed its keepalive deadline.
    Silent,
}

/// Forwards messages between two wires until one of them ends; keepalive pings go to the far wire only, if it has pings.
///
/// The near wire is flushed before it is dropped; the far wire gets no close frame from this end.
pub async fn splice(near: impl Wire, far: Box<dyn Wire>, pings: KeepaliveConfig) -> SpliceEnd {
    let keepalive = far.can_ping().then(|| KeepaliveTimer::new(pings));
    let mut splice = Splice { near, far, keepalive, far_took: 0, farewell: None };
    let end = poll_fn(|cx| splice.poll(cx)).await;
    let Splice { mut near, mut far, farewell, .. } = splice;
    let end = match (end, farewell) {
        (SpliceEnd::Far(_), Some(reason)) => SpliceEnd::Closed(reason),
        (end, _) => end,
    };
    let leaving = poll_fn(|cx| match &end {
        SpliceEnd::Near(_) => far.poll_flush(cx).map(|_| ()),
        SpliceEnd::Closed(_) | SpliceEnd::Far(None) => far.poll_drain(cx),
        SpliceEnd::Far(Some(_)) | SpliceEnd::Silent => Poll::Ready(()),
    });
    // A peer that does not read in time is dropped anyway.
    let _ = timeout(CLOSE_TIMEOUT, leaving).await;
    if let SpliceEnd::Closed(_) | SpliceEnd::Far(_) = end {
        let _ = timeout(pings.deadline, poll_fn(|cx| near.poll_flush(cx))).await;
    }
    end
}

struct Splice<N> {
    near: N,
    far: Box<dyn Wire>,
    keepalive: Option<KeepaliveTimer>,
    far_took: u64,
    /// The close reason of the far side.
    farewell: Option<CloseReason>,
}

/// Why one direction has ended.
enum CarryEnd {
    Source(Option<WireError>),
    Sink(WireError),
}

impl<N: Wire> Splice<N> {
    fn poll(&mut self, cx: &mut Context) -> Poll<SpliceEnd> {
        // The far side first, so that its close reason is reported even if the near side ends as well.
        let (keepalive, farewell) = (&mut self.keepalive, &mut self.farewell);
        let on_activity = |closing: Option<CloseReason>| {
            if let Some(keepalive) = keepalive {
                keepalive.handle_activity();
            }
            if closing.is_some() {
                *farewell = closing;
            }
        };
        match poll_carry(&mut *self.far, &mut self.near, cx, on_activity) {
            Poll::Ready(CarryEnd::Source(error)) => return Poll::Ready(SpliceEnd::Far(error)),
            Poll::Ready(CarryEnd::Sink(error)) => return Poll::Ready(SpliceEnd::Near(Some(error))),
            Poll::Pending => {}
        }
        match poll_carry(&mut self.near, &mut *self.far, cx, |_| {}) {
            Poll::Ready(CarryEnd::Source(error)) => return Poll::Ready(SpliceEnd::Near(error)),
            Poll::Ready(CarryEnd::Sink(error)) => return Poll::Ready(SpliceEnd::Far(Some(error))),
            Poll::Pending => {}
        }
        self.poll_keepalive(cx)
    }

    fn poll_keepalive(&mut self, cx: &mut Context) -> Poll<SpliceEnd> {
        let Some(keepalive) = &mut self.keepalive else { return Poll::Pending };
        loop {
            let taken = self.far.bytes_sent();
            if taken > std::mem::replace(&mut self.far_took, taken) {
                keepalive.handle_activity();
            }
            match ready!(keepalive.poll(cx)) {
                KeepaliveAction::GiveUp => return Poll::Ready(SpliceEnd::Silent),
                KeepaliveAction::Ping => {
                    if let Err(error) = self.far.start_ping(0) {
                        return Poll::Ready(SpliceEnd::Far(Some(error)));
                    }
                    // If the flush is pending, the ping is sent with the data that is already queued.
                    if let Poll::Ready(Err(error)) = self.far.poll_flush(cx) {
                        return Poll::Ready(SpliceEnd::Far(Some(error)));
                    }
                    // The ping's own bytes do not count as activity.
                    self.far_took = self.far.bytes_sent();
                }
            }
        }
    }
}

/// Forwards available messages in one direction; ready only when a wire has ended.
fn poll_carry(
    from: &mut dyn Wire,
    to: &mut dyn Wire,
    cx: &mut Context,
    mut on_activity: impl FnMut(Option<CloseReason>),
) -> Poll<CarryEnd> {
    for _ in 0..BATCHES_PER_TURN {
        if let Err(error) = ready!(to.poll_flush(cx)) {
            return Poll::Ready(CarryEnd::Sink(error));
        }
        let mut batch = 0;
        while batch < BATCH_BYTES {
            let received = match from.poll_next(cx) {
                Poll::Ready(Some(Ok(received))) => received,
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(CarryEnd::Source(Some(error)));
                }
                Poll::Ready(None) => return Poll::Ready(CarryEnd::Source(None)),
                Poll::Pending => break,
            };
            match received {
                Received::Message(message) => {
                    on_activity(None);
                    let message = payload(message);
                    batch += message.len().max(1);
                    if let Err(error) = to.start_send(message) {
                        return Poll::Ready(CarryEnd::Sink(error));
                    }
                }
                Received::Closing(reason) => on_activity(Some(reason)),
                Received::Pong(_) | Received::Life => on_activity(None),
            }
        }
        if batch == 0 {
            return Poll::Pending;
        }
    }
    cx.waker().wake_by_ref();
    Poll::Pending
}

fn payload(message: InMessage) -> Bytes {
    match message {
        InMessage::Bytes(bytes) => bytes,
        InMessage::Text(message) => Bytes::from(message.into_payload()),
    }
}
