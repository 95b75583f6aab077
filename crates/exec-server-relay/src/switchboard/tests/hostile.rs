//! Property test with peers that send arbitrary frames on any stream and read at arbitrary times.

use proptest::prelude::*;

use super::*;
use crate::switchboard::budget::LARGEST_SHARE;
use crate::switchboard::environment::STREAM_QUEUE;

#[derive(Debug, Clone)]
enum Move {
    Executor { env: usize, generation: u64 },
    Harness { env: usize },
    Frame { socket: usize, stream: usize, kind: usize, size: usize },
    Read { socket: usize, count: usize },
    Gone { socket: usize },
    Late { socket: usize },
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let socket = 0..12_usize;
    let one = prop_oneof![
        1 => (0..2_usize, 1..4_u64).prop_map(|(env, generation)| Move::Executor { env, generation }),
        3 => (0..2_usize).prop_map(|env| Move::Harness { env }),
        12 => (socket.clone(), 0..4_usize, 0..5_usize, 1..200_000_usize)
            .prop_map(|(socket, stream, kind, size)| Move::Frame { socket, stream, kind, size }),
        4 => (socket.clone(), 1..8_usize).prop_map(|(socket, count)| Move::Read { socket, count }),
        1 => socket.clone().prop_map(|socket| Move::Gone { socket }),
        1 => socket.prop_map(|socket| Move::Late { socket }),
    ];
    prop::collection::vec(one, 1..200)
}

/// An attached socket.
struct Peer {
    id: SocketId,
    env: usize,
    is_executor: bool,
}

proptest! {
    /// Each valid frame is marked with its sender and environment.
    #[test]
    fn hostile_peers_never_cross_streams_or_environments_and_fill_no_memory(moves in moves()) {
        let budget = ample();
        let mut board = Switchboard::new(LIMITS, budget.clone());
        let now = Instant::now();
        let names = ["one", "two"];
        let mut peers: Vec<Peer> = Vec::new();
        // The stream of each harness's first valid frame, which is the one that it may use.
        let mut claims: BTreeMap<SocketId, String> = BTreeMap::new();
        for one in moves {
            let silent: Vec<SocketId> =
                peers.iter().map(|peer| peer.id).filter(|id| !board.poll_reading(*id)).collect();
            match one {
                Move::Executor { env, generation } => {
                    let ticket = ticket(names[env], &format!("r{generation}"), "t");
                    if let Ok(id) = board.attach_executor(now, ticket, generation) {
                        peers.push(Peer { id, env, is_executor: true });
                    }
                }
                Move::Harness { env } => {
                    for generation in 1..4 {
                        let ticket = ticket(names[env], &format!("r{generation}"), "t");
                        if let Ok(id) = board.attach_harness(now, ticket, None) {
                            peers.push(Peer { id, env, is_executor: false });
                        }
                    }
                }
                Move::Frame { socket, stream, kind, size } if !peers.is_empty() => {
                    let peer = &peers[socket % peers.len()];
                    if !board.poll_reading(peer.id) { continue }
                    let stream = format!("s{stream}");
                    let mark = format!("{}:{}", peer.id.0, peer.env);
                    let frame = match kind {
                        0 => frame(&stream, RelayBody::Handshake(mark.into())),
                        1 => frame(&stream, RelayBody::Reset { reason: mark }),
                        2 => Bytes::from(vec![0xff; size % 100]),
                        _ => {
                            let mut payload = mark.into_bytes();
                            payload.push(b' ');
                            payload.resize(size.max(payload.len()), b'.');
                            frame(&stream, RelayBody::Data(RelayData {
                                seq: 0, segment_index: 0, segment_count: 1, payload: payload.into(),
                            }))
                        }
                    };
                    let is_valid = RelayFrame::decode(frame.clone()).is_ok();
                    if !peer.is_executor && is_valid && board.poll_close_reason(peer.id).is_none() {
                        claims.entry(peer.id).or_insert(stream);
                    }
                    board.handle_frame(now, peer.id, frame);
                }
                Move::Read { socket, count } if !peers.is_empty() => {
                    let peer = &peers[socket % peers.len()];
                    for _ in 0..count {
                        let Some(bytes) = board.poll_frame(peer.id) else { break };
                        let frame = RelayFrame::decode(bytes).unwrap();
                        let Some((sender, env)) = mark_of(&frame) else { continue };
                        prop_assert_eq!(env, peer.env, "a frame left its environment");
                        if peer.is_executor {
                            let claimed = claims.get(&SocketId(sender));
                            prop_assert_eq!(Some(&frame.stream_id), claimed, "a foreign stream");
                        } else {
                            prop_assert_eq!(Some(&frame.stream_id), claims.get(&peer.id));
                        }
                    }
                }
                Move::Gone { socket } if !peers.is_empty() => {
                    let peer = peers.swap_remove(socket % peers.len());
                    board.handle_gone(peer.id);
                }
                Move::Late { socket } if !peers.is_empty() => {
                    let peer = &peers[socket % peers.len()];
                    board.handle_timeout(now + LIMITS.slow_timeout + LIMITS.claim, peer.id);
                }
                _ => {}
            }
            let mut woken = BTreeSet::new();
            woken.extend(std::iter::from_fn(|| board.poll_wake()));
            for id in silent {
                let is_read_again = board.sockets.contains_key(&id) && board.poll_reading(id);
                prop_assert!(!is_read_again || woken.contains(&id), "the owner was not woken");
            }
            assert_bounded(&board)?;
        }
        for peer in peers {
            board.handle_gone(peer.id);
        }
        prop_assert!(board.sockets.is_empty() && board.environments.is_empty());
        prop_assert!(board.by_token.is_empty() && board.wakes.is_empty());
        prop_assert_eq!(budget.used(), 0);
    }
}

/// A frame with what is charged for its place in a queue.
const LARGEST_FRAME: usize = MAX_FRAME_BYTES + 128;

fn assert_bounded(board: &Switchboard) -> Result<(), TestCaseError> {
    for env in board.environments.values() {
        prop_assert!(env.harnesses.len() <= LIMITS.streams_per_environment);
        prop_assert!(env.streams.len() <= LIMITS.streams_per_environment);
        for stream in env.streams.values() {
            prop_assert!(
                stream.queue.bytes() <= LARGEST_SHARE / STREAM_QUEUE.divisor + LARGEST_FRAME
            );
            prop_assert!(stream.queue.len() <= STREAM_QUEUE.frames + 1);
        }
    }
    for socket in board.sockets.values() {
        if let Side::Harness(harness) = &socket.side {
            prop_assert!(harness.outgoing.bytes() <= LARGEST_SHARE + LARGEST_FRAME);
        }
    }
    Ok(())
}

/// The sender and environment in a frame's mark; none if the switchboard made the frame.
fn mark_of(frame: &RelayFrame) -> Option<(u64, usize)> {
    let text = match &frame.body {
        RelayBody::Data(data) => String::from_utf8_lossy(&data.payload).into_owned(),
        RelayBody::Handshake(payload) => String::from_utf8_lossy(payload).into_owned(),
        RelayBody::Reset { reason } => reason.clone(),
        _ => return None,
    };
    let (sender, env) = text.split(' ').next()?.split_once(':')?;
    Some((sender.parse().ok()?, env.parse().ok()?))
}
