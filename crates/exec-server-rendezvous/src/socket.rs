//! Websocket of one executor or harness: reads and writes frames, sends keepalive pings.
//!
//! ```text
//! link state ▶ write queued frames ▶ read if allowed ▶ wait for the peer, the switchboard or a timer
//!   └─ closing ▶ close frame ▶ drain, so that the peer receives the close reason
//! ```

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use exec_server_relay::switchboard::{CloseReason, MAX_FRAME_BYTES, RouteOutcome};
use exec_server_transport::keepalive_timer::{KeepaliveAction, KeepaliveConfig, KeepaliveTimer};
use futures_core::Stream;
use futures_sink::Sink;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_websockets::{CloseCode, Config, Error, Limits, Message, ServerBuilder, WebSocketStream};

use crate::bus::{Link, LinkState};
use crate::config::Timings;
use crate::metrics::RelayMeter;

/// Yield after this many messages, so that a peer that sends without pause does not starve other sockets.
const MESSAGES_PER_TURN: usize = 32;

/// Bytes per write; frames beyond this stay in the switchboard's fair queue instead of this socket's buffer.
const WRITE_AT_ONCE: usize = 64 * 1024;

/// Unread pongs accumulate in memory, so their number is limited.
const MAX_UNREAD_PONGS: usize = 64;

/// How a socket ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketEnd {
    /// The peer closed the connection, or it failed.
    ByPeer,
    /// The peer answered no ping.
    PongTimeout,
    /// A close frame with this reason was sent.
    Closed(CloseReason),
    /// This reason could not be sent, because the peer did not read.
    CloseUnsent(CloseReason),
}

impl SocketEnd {
    /// Label for logs and metrics.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ByPeer => "closed_by_peer",
            Self::PongTimeout => "pong_timeout",
            Self::Closed(close_reason) | Self::CloseUnsent(close_reason) => close_reason.reason(),
        }
    }
}

/// A socket that has ended and is detached from the bus.
pub struct Ended<S> {
    /// How it ended.
    pub end: SocketEnd,
    /// The stream that a harness had claimed.
    pub stream_id: Option<String>,
    /// The connection, if the peer may still have to read the close frame.
    rest: Option<S>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Ended<S> {
    /// Waits up to `time` for the peer to read the close frame.
    pub async fn finish_close(self, time: Duration) {
        if let Some(rest) = self.rest {
            let _ = tokio::time::timeout(time, drain(rest)).await;
        }
    }
}

/// Serves an upgraded connection until it ends.
pub async fn run_socket<S>(
    stream: S,
    link: Box<dyn Link>,
    timings: &Timings,
    meter: RelayMeter,
) -> Ended<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let stream = ServerBuilder::new()
        .config(Config::default().frame_size(MAX_FRAME_BYTES).flush_threshold(WRITE_AT_ONCE))
        .limits(Limits::default().max_payload_len(Some(MAX_FRAME_BYTES)))
        .serve(stream);
    let pings =
        KeepaliveConfig { interval: timings.ping_interval, deadline: timings.pong_deadline };
    let mut socket = Socket {
        stream,
        link,
        meter,
        keepalive: KeepaliveTimer::new(pings),
        close_time: timings.close,
        close_deadline: None,
        is_flushed: true,
        unread_pongs: 0,
        has_first_frame: false,
        stream_id: None,
        has_sent_foreign_frames: false,
        sent_reason: None,
    };
    let end = std::future::poll_fn(|cx| socket.poll(cx)).await;
    let Socket { stream, link, stream_id, .. } = socket;
    // Detach before draining, so that the other side does not wait for it.
    drop(link);
    let rest = matches!(end, SocketEnd::Closed(_)).then(|| stream.into_inner());
    Ended { end, stream_id, rest }
}

/// Reads until the peer closes: closing a socket with unread input resets it and discards the close frame.
async fn drain(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let mut ignored = [0; 4096];
    if stream.shutdown().await.is_ok() {
        while stream.read(&mut ignored).await.is_ok_and(|count| count > 0) {}
    }
}

struct Socket<S> {
    stream: WebSocketStream<S>,
    link: Box<dyn Link>,
    meter: RelayMeter,
    keepalive: KeepaliveTimer,
    close_time: Duration,
    close_deadline: Option<Instant>,
    is_flushed: bool,
    unread_pongs: usize,
    /// Whether the first frame arrived; it claims the stream.
    has_first_frame: bool,
    /// The stream that a harness has claimed, kept for the log after detaching.
    stream_id: Option<String>,
    has_sent_foreign_frames: bool,
    /// Reason of the close frame being sent.
    sent_reason: Option<CloseReason>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket<S> {
    fn poll(&mut self, cx: &mut Context) -> Poll<SocketEnd> {
        let mut budget = MESSAGES_PER_TURN;
        loop {
            // Checked every round: a peer that always has data to read must not escape its deadlines.
            let state = self.link.state(cx.waker());
            if let Some(end) = self.handle_deadlines(&state) {
                return Poll::Ready(end);
            }
            if let Some(end) = self.write(cx) {
                return Poll::Ready(end);
            }
            if let Some(end) = self.send_close(cx) {
                return Poll::Ready(end);
            }
            let outcome = if self.sent_reason.is_none() && state.is_reading {
                self.read(cx)
            } else {
                // Reading is paused, so a missing pong proves nothing.
                self.keepalive.handle_activity();
                Read::Nothing
            };
            match outcome {
                Read::Ended(end) => return Poll::Ready(end),
                Read::Message => {
                    budget -= 1;
                    if budget == 0 {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
                Read::Nothing => match self.wait(cx, &state) {
                    Poll::Ready(Some(end)) => return Poll::Ready(end),
                    Poll::Ready(None) => {}
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    }

    /// Writes as many queued frames as the socket takes.
    fn write(&mut self, cx: &mut Context) -> Option<SocketEnd> {
        let was_flushed = self.is_flushed;
        loop {
            match Pin::new(&mut self.stream).poll_ready(cx) {
                Poll::Pending => {
                    self.is_flushed = false;
                    return None;
                }
                Poll::Ready(Err(_)) => return Some(self.end_unsent()),
                Poll::Ready(Ok(())) => {}
            }
            let Some(frame) = self.link.poll_frame() else { break };
            self.meter.sent(frame.len());
            // Fails after a close frame from the peer; the read side notices the end.
            let _ = Pin::new(&mut self.stream).start_send(Message::binary(frame));
        }
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Pending => self.is_flushed = false,
            Poll::Ready(Err(_)) => return Some(self.end_unsent()),
            Poll::Ready(Ok(())) => {
                self.is_flushed = true;
                self.unread_pongs = 0;
                if !was_flushed {
                    // Progress on a full socket proves that the peer reads.
                    self.keepalive.handle_activity();
                }
            }
        }
        None
    }

    /// Sends the close frame once all frames are written; returns the end when the close frame is flushed.
    fn send_close(&mut self, cx: &mut Context) -> Option<SocketEnd> {
        let state = self.link.state(cx.waker());
        if state.is_ending && self.close_deadline.is_none() {
            self.close_deadline = Some(Instant::now() + self.close_time);
        }
        if let Some(close_reason) = state.close_reason.filter(|_| self.sent_reason.is_none()) {
            self.sent_reason = Some(close_reason);
            let code = CloseCode::try_from(close_reason.code()).ok();
            // Fails if a close frame was sent already.
            let _ =
                Pin::new(&mut self.stream).start_send(Message::close(code, close_reason.reason()));
        }
        let close_reason = self.sent_reason?;
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Pending => None,
            Poll::Ready(Ok(())) => Some(SocketEnd::Closed(close_reason)),
            Poll::Ready(Err(_)) => Some(SocketEnd::CloseUnsent(close_reason)),
        }
    }

    /// Reads one message.
    fn read(&mut self, cx: &mut Context) -> Read {
        let message = match Pin::new(&mut self.stream).poll_next(cx) {
            Poll::Pending => return Read::Nothing,
            Poll::Ready(None) => return Read::Ended(self.end_unsent()),
            Poll::Ready(Some(Err(Error::PayloadTooLong { .. }))) => {
                self.link.handle_misuse(CloseReason::TooBig);
                return Read::Message;
            }
            Poll::Ready(Some(Err(error))) => {
                tracing::debug!(%error, "websocket failed");
                return Read::Ended(self.end_unsent());
            }
            Poll::Ready(Some(Ok(message))) => message,
        };
        if message.is_binary() {
            let frame = Bytes::from(message.into_payload());
            self.meter.received(frame.len());
            match self.link.handle_frame(frame) {
                RouteOutcome::Taken => {}
                RouteOutcome::Unknown => self.meter.dropped("unknown_stream"),
                RouteOutcome::Foreign => {
                    self.meter.dropped("foreign_stream");
                    if !std::mem::replace(&mut self.has_sent_foreign_frames, true) {
                        let stream_id = self.stream_id.as_deref();
                        tracing::warn!(
                            stream_id,
                            "frames for a stream of another harness are dropped"
                        );
                    }
                }
            }
            if !std::mem::replace(&mut self.has_first_frame, true) {
                self.stream_id = self.link.stream_id();
                if let Some(stream_id) = self.stream_id.as_deref() {
                    tracing::info!(stream_id, "stream claimed");
                }
            }
        } else if message.is_text() {
            self.link.handle_misuse(CloseReason::Text);
        } else if message.is_pong() {
            self.keepalive.handle_activity();
        } else if message.is_ping() {
            self.unread_pongs += 1;
            if self.unread_pongs > MAX_UNREAD_PONGS {
                self.link.handle_misuse(CloseReason::PingFlood);
            }
        }
        Read::Message
    }

    /// Enforces the close deadline and the switchboard's timeout.
    fn handle_deadlines(&mut self, state: &LinkState) -> Option<SocketEnd> {
        if self.close_deadline.is_none() && state.timeout.is_none() {
            return None;
        }
        let now = Instant::now();
        if self.close_deadline.is_some_and(|deadline| now >= deadline) {
            return Some(self.end_unsent());
        }
        if state.timeout.is_some_and(|timeout| now >= timeout) {
            self.link.handle_timeout();
        }
        None
    }

    /// Waits for the next timer; handles keepalive.
    fn wait(&mut self, cx: &mut Context, state: &LinkState) -> Poll<Option<SocketEnd>> {
        let other = [state.timeout, self.close_deadline].into_iter().flatten().min();
        Poll::Ready(match ready!(self.keepalive.poll_until(cx, other)) {
            Some(KeepaliveAction::GiveUp) => Some(SocketEnd::PongTimeout),
            Some(KeepaliveAction::Ping) => {
                let _ = Pin::new(&mut self.stream).start_send(Message::ping(Bytes::new()));
                None
            }
            None => None,
        })
    }

    fn end_unsent(&mut self) -> SocketEnd {
        let noop = std::task::Waker::noop();
        let close_reason = self.sent_reason.or(self.link.state(noop).close_reason);
        close_reason.map_or(SocketEnd::ByPeer, SocketEnd::CloseUnsent)
    }
}

/// Outcome of one read.
enum Read {
    /// A message was read and handled.
    Message,
    /// No message is available, or reading is paused.
    Nothing,
    /// The socket has ended.
    Ended(SocketEnd),
}

#[cfg(test)]
mod tests {
    use exec_server_relay::frame::{RelayBody, RelayData, RelayFrame};
    use exec_server_relay::switchboard::{DEFAULT_BUDGET, SwitchboardLimits, Ticket};

    use super::*;
    use crate::bus::{Bus, LocalBus};
    use crate::metrics::Metrics;

    #[tokio::test]
    async fn a_peer_that_pings_without_reading_pongs_is_closed() {
        let second = Duration::from_secs(1);
        let limits =
            SwitchboardLimits { streams_per_environment: 1, claim: second, slow_timeout: second };
        let bus = LocalBus::new(limits, DEFAULT_BUDGET);
        let link = bus.attach_executor(ticket(), 1).await.expect("no executor is attached");
        let timings = Timings { close: Duration::from_millis(50), ..Timings::default() };
        let (ours, mut theirs) = tokio::io::duplex(64);
        let meter = Metrics::default().relay_meter();
        let socket = run_socket(ours, link, &timings, meter);
        let peer = async {
            let ping = [0x89, 0x80, 0, 0, 0, 0];
            while theirs.write_all(&ping).await.is_ok() {}
        };
        let (ended, ()) = tokio::join!(socket, peer);
        assert_eq!(ended.end, SocketEnd::CloseUnsent(CloseReason::PingFlood));
        assert!(bus.presence("env").is_none());
    }

    #[tokio::test]
    async fn a_harness_that_does_not_read_is_closed_even_while_it_sends() {
        let limits = SwitchboardLimits {
            streams_per_environment: 1,
            claim: Duration::from_secs(10),
            slow_timeout: Duration::from_millis(50),
        };
        let bus = LocalBus::new(limits, DEFAULT_BUDGET);
        let executor = bus.attach_executor(ticket(), 1).await.expect("no executor is attached");
        let link = bus.attach_harness(ticket(), None).await.expect("there is room");
        let timings = Timings { close: Duration::from_millis(50), ..Timings::default() };
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let socket = run_socket(ours, link, &timings, Metrics::default().relay_meter());
        let peer = async {
            theirs.write_all(&message(&frame("own", 10))).await.expect("it is read");
            while executor.poll_frame().is_none() {
                tokio::task::yield_now().await;
            }
            while executor.state(std::task::Waker::noop()).is_reading {
                executor.handle_frame(frame("own", 60_000));
                tokio::task::yield_now().await;
            }
            // Always readable, and addressed to a stream of another harness.
            let flood = message(&frame("foreign", 10)).repeat(5000);
            while theirs.write_all(&flood).await.is_ok() {}
        };
        let both = async { tokio::join!(socket, peer) };
        let ended = tokio::time::timeout(Duration::from_secs(30), both).await;
        let (ended, ()) = ended.expect("the executor does not wait forever");
        assert_eq!(ended.end, SocketEnd::CloseUnsent(CloseReason::Slow));
        assert!(executor.state(std::task::Waker::noop()).is_reading);
    }

    fn ticket() -> Ticket {
        Ticket { environment: "env".into(), registration: "reg".into(), token: "token".into() }
    }

    fn frame(stream: &str, bytes: usize) -> Bytes {
        let payload = vec![7; bytes].into();
        let data = RelayData { seq: 0, segment_index: 0, segment_count: 1, payload };
        RelayFrame::new(stream, RelayBody::Data(data)).encode().into()
    }

    /// A short client message, masked with zeros.
    fn message(payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).expect("a short one");
        [&[0x82, 0x80 | length, 0, 0, 0, 0], payload].concat()
    }
}
