use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::framing::WINDOW_BYTES;
use crate::noise::identity::Identity;
use crate::registry_types::{ConnectResponse, SECURITY_PROFILE};

use super::*;
use crate::harness_wire::HarnessWire;
use exec_server_transport::connection::{Connection, Event};

#[tokio::test]
async fn messages_of_every_size_are_echoed() {
    let mut link = Link::open(Serve::Echo).await.unwrap();
    for size in [1, 100, 70_000, 5 << 20] {
        let message = Bytes::from((0..size).map(|at| at as u8).collect::<Vec<_>>());
        link.harness.outbox().push_reply(message.clone());
        assert!(link.next().await.unwrap() == message, "{size} bytes");
    }
}

#[tokio::test]
async fn a_refused_harness_gets_an_error() {
    let refused = Link::open(Serve::Refuse).await.err().unwrap();
    assert!(refused.to_string().contains("the link broke"), "{refused}");
}

#[tokio::test]
async fn a_stream_is_reset_only_after_its_last_message() {
    let mut link = Link::open(Serve::OneAnswer).await.unwrap();
    link.harness.outbox().push_reply(Bytes::from_static(b"question"));
    assert_eq!(link.next().await.unwrap(), Bytes::from(vec![b'x'; 3 << 20]));
    assert!(matches!(link.next().await, Err(Ended::Broken(WireError::Io(_)))));
}

#[tokio::test]
async fn frames_for_a_harness_that_reads_nothing_are_held_back() {
    let mut link = Link::open(Serve::Flood).await.unwrap();
    link.harness.outbox().push_reply(Bytes::from_static(b"go"));
    // From the first message on, the executor knows that this harness acknowledges.
    link.next().await.unwrap();
    link.next().await.unwrap();
    let mut before = usize::MAX;
    loop {
        // Long enough for an executor with an open window to send another frame.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = link.carried.load(Ordering::Relaxed);
        if now == before {
            break;
        }
        before = now;
    }
    assert!(before < 3 * WINDOW_BYTES, "{before} bytes were sent to a harness that reads nothing");
    for _ in 0..100 {
        link.next().await.unwrap();
    }
}

#[derive(Clone, Copy)]
enum Serve {
    Refuse,
    Echo,
    OneAnswer,
    Flood,
}

impl RelayHost for Serve {
    fn validate(
        &self,
        _stream_id: String,
        _harness: PublicKey,
        authorization: String,
    ) -> impl Future<Output = Verdict> + Send + 'static {
        assert_eq!(authorization, "authorization");
        std::future::ready(match self {
            Self::Refuse => Verdict::Refused,
            _ => Verdict::Allowed,
        })
    }

    fn refused(&self, stream_id: &str, why: Refusal) {
        assert_eq!((stream_id, why), ("s", Refusal::Refused));
    }

    fn serve(&self, wire: StreamWire, _harness: PublicKey) {
        tokio::spawn(run(*self, Connection::new(Box::new(wire), PINGS)));
    }
}

async fn run(serve: Serve, mut connection: Connection) {
    while let Event::Message(message) = connection.next().await {
        let InMessage::Bytes(message) = message else { panic!("frames carry bytes") };
        match serve {
            Serve::Echo => connection.outbox().push_reply(message),
            Serve::OneAnswer => {
                connection.outbox().push_reply(Bytes::from(vec![b'x'; 3 << 20]));
                connection.outbox().close_in_order(1000, "done");
            }
            Serve::Flood => {
                let outbox = connection.outbox().clone();
                tokio::spawn(async move {
                    while let Ok(slot) = outbox.reserve(64 << 10).await {
                        outbox.push_bulk(slot, Bytes::from(vec![b'x'; 64 << 10]));
                    }
                });
            }
            Serve::Refuse => unreachable!("every harness is refused"),
        }
    }
}

const PINGS: KeepaliveConfig =
    KeepaliveConfig { interval: Duration::from_secs(30), deadline: Duration::from_secs(60) };

/// A harness and an executor, connected by in-memory channels instead of a relay.
struct Link {
    harness: Connection,
    /// Bytes of frames sent to the harness.
    carried: Arc<AtomicUsize>,
    _executor: tokio::task::JoinHandle<Ended>,
}

impl Link {
    async fn open(serve: Serve) -> Result<Self, WireError> {
        let [executor, harness] = [(); 2].map(|()| Identity::generate(&mut SystemRandom));
        let way = ConnectResponse {
            environment_id: "env".into(),
            url: "ws://relay".into(),
            security_profile: SECURITY_PROFILE.into(),
            executor_registration_id: "registration".into(),
            executor_public_key: executor.public_key(),
            harness_key_authorization: "authorization".into(),
        };
        let (to_executor, from_harness) = mpsc::channel(8);
        let (to_harness, from_executor) = mpsc::channel(8);
        let carried = Arc::new(AtomicUsize::new(0));
        let near = MemoryWire::new(to_executor, from_executor, Arc::default());
        let far = MemoryWire::new(to_harness, from_harness, carried.clone());
        let mux = Mux::new(executor, "env".into(), "registration".into());
        let (_, stay) = watch::channel(false);
        let running =
            tokio::spawn(async move { run_relay(Box::new(far), mux, PINGS, &serve, stay).await });
        let key = &way.executor_public_key;
        let wire = HarnessWire::open(Box::new(near), "s".into(), &harness, &way, key).await?;
        let harness = Connection::new(Box::new(wire), PINGS);
        Ok(Self { harness, carried, _executor: running })
    }

    async fn next(&mut self) -> Result<Bytes, Ended> {
        loop {
            match self.harness.next().await {
                Event::Message(InMessage::Bytes(message)) => return Ok(message),
                Event::Closed(ended) => return Err(ended),
                Event::Finished(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// An in-memory wire with a bounded channel in each direction.
struct MemoryWire {
    sender: tokio_util::sync::PollSender<Bytes>,
    receiver: mpsc::Receiver<Bytes>,
    waiting: VecDeque<Bytes>,
    carried: Arc<AtomicUsize>,
}

impl MemoryWire {
    fn new(
        sender: mpsc::Sender<Bytes>,
        receiver: mpsc::Receiver<Bytes>,
        carried: Arc<AtomicUsize>,
    ) -> Self {
        let sender = tokio_util::sync::PollSender::new(sender);
        Self { sender, receiver, waiting: VecDeque::new(), carried }
    }
}

impl Wire for MemoryWire {
    fn poll_next(&mut self, cx: &mut Context) -> Poll<Option<Result<Received, WireError>>> {
        let frame = ready!(self.receiver.poll_recv(cx));
        Poll::Ready(frame.map(|frame| Ok(Received::Message(InMessage::Bytes(frame)))))
    }

    fn start_send(&mut self, frame: Bytes) -> Result<(), WireError> {
        self.waiting.push_back(frame);
        Ok(())
    }

    fn poll_flush(&mut self, cx: &mut Context) -> Poll<Result<(), WireError>> {
        while let Some(frame) = self.waiting.front() {
            let gone = |_| WireError::Io(std::io::ErrorKind::BrokenPipe.into());
            ready!(self.sender.poll_reserve(cx)).map_err(gone)?;
            self.carried.fetch_add(frame.len(), Ordering::Relaxed);
            let frame = self.waiting.pop_front().expect("front is some");
            self.sender.send_item(frame).map_err(gone)?;
        }
        Poll::Ready(Ok(()))
    }

    fn bytes_sent(&self) -> u64 {
        self.carried.load(Ordering::Relaxed) as u64
    }

    fn describe(&self) -> String {
        String::new()
    }
}
