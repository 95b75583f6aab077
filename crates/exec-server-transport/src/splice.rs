//! Two wires made into one: what comes from either goes to the other, as it is and only as fast as it is taken.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exec_server_machines::keepalive::{Keepalive, KeepaliveAction};
use tokio::time::{Sleep, timeout};

use crate::connection::{InMessage, PingTimes, Received, Wire, WireError};

/// Messages that are handed over before they are sent.
const BATCH_BYTES: usize = 256 * 1024;
/// Batches that one direction carries before the other has its turn.
const BATCHES_PER_TURN: usize = 8;
/// After the end, what is on its way to the far side may take this long, the answer to its goodbye included.
const FAREWELL: Duration = Duration::from_secs(1);

/// Which side ended it.
#[derive(Debug)]
pub enum SpliceEnd {
    /// The near side.
    Near,
    /// The far side: in order, or because it broke.
    Far(Option<WireError>),
    /// The far side gave no sign of life.
    Silent,
}

/// Carries messages between two wires until one of them ends; only the far one is asked for signs of life.
///
/// The near wire is dropped after it took everything that came; the far one without a goodbye of ours.
pub async fn splice(near: impl Wire, far: Box<dyn Wire>, pings: PingTimes) -> SpliceEnd {
    let keepalive = Keepalive::new(Instant::now(), pings.interval, pings.deadline);
    let sleep = Box::pin(tokio::time::sleep_until(keepalive.poll_timeout().into()));
    let mut splice = Splice { near, far, keepalive, sleep, far_took: 0 };
    let end = poll_fn(|cx| splice.poll(cx)).await;
    let Splice { mut near, mut far, .. } = splice;
    let leaving = poll_fn(|cx| match &end {
        SpliceEnd::Near => far.poll_flush(cx).map(|_| ()),
        SpliceEnd::Far(None) => far.poll_drain(cx),
        SpliceEnd::Far(Some(_)) | SpliceEnd::Silent => Poll::Ready(()),
    });
    // Whoever does not take it in time is left anyway.
    let _ = timeout(FAREWELL, leaving).await;
    if let SpliceEnd::Far(_) = end {
        let _ = timeout(pings.deadline, poll_fn(|cx| near.poll_flush(cx))).await;
    }
    end
}

struct Splice<N> {
    near: N,
    far: Box<dyn Wire>,
    keepalive: Keepalive,
    sleep: Pin<Box<Sleep>>,
    far_took: u64,
}

/// Why one direction carries nothing more.
enum CarryEnd {
    Source(Option<WireError>),
    Sink(WireError),
}

impl<N: Wire> Splice<N> {
    fn poll(&mut self, cx: &mut Context) -> Poll<SpliceEnd> {
        // First what comes from the far side: its last words count, even if the near one ends as well.
        let keepalive = &mut self.keepalive;
        let alive = || keepalive.handle_life();
        match poll_carry(&mut *self.far, &mut self.near, cx, alive) {
            Poll::Ready(CarryEnd::Source(error)) => return Poll::Ready(SpliceEnd::Far(error)),
            Poll::Ready(CarryEnd::Sink(_)) => return Poll::Ready(SpliceEnd::Near),
            Poll::Pending => {}
        }
        match poll_carry(&mut self.near, &mut *self.far, cx, || {}) {
            Poll::Ready(CarryEnd::Source(_)) => return Poll::Ready(SpliceEnd::Near),
            Poll::Ready(CarryEnd::Sink(error)) => return Poll::Ready(SpliceEnd::Far(Some(error))),
            Poll::Pending => {}
        }
        self.poll_keepalive(cx)
    }

    fn poll_keepalive(&mut self, cx: &mut Context) -> Poll<SpliceEnd> {
        loop {
            let taken = self.far.bytes_sent();
            if taken > std::mem::replace(&mut self.far_took, taken) {
                self.keepalive.handle_life();
            }
            ready!(self.sleep.as_mut().poll(cx));
            match self.keepalive.handle_timeout(Instant::now()) {
                Some(KeepaliveAction::GiveUp) => return Poll::Ready(SpliceEnd::Silent),
                Some(KeepaliveAction::Ping) => {
                    if let Err(error) = self.far.start_ping(0) {
                        return Poll::Ready(SpliceEnd::Far(Some(error)));
                    }
                    // It goes out now, or with what is already on its way.
                    if let Poll::Ready(Err(error)) = self.far.poll_flush(cx) {
                        return Poll::Ready(SpliceEnd::Far(Some(error)));
                    }
                    // Its own bytes are no sign of life.
                    self.far_took = self.far.bytes_sent();
                }
                None => {}
            }
            self.sleep.as_mut().reset(self.keepalive.poll_timeout().into());
        }
    }
}

/// Carries what there is in one direction; ready only at the end.
fn poll_carry(
    from: &mut dyn Wire,
    to: &mut dyn Wire,
    cx: &mut Context,
    mut alive: impl FnMut(),
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
            alive();
            if let Received::Message(message) = received {
                let message = payload(message);
                batch += message.len().max(1);
                if let Err(error) = to.start_send(message) {
                    return Poll::Ready(CarryEnd::Sink(error));
                }
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
