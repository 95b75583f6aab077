//! Backpressure: peers that send faster than the other side reads.

use super::*;
use crate::switchboard::environment::{HARNESSES_TOGETHER, STREAMS_TOGETHER};

#[test]
fn streams_take_turns_at_the_executor() {
    let mut board = Switchboard::new(LIMITS);
    let now = Instant::now();
    let executor = board.attach_executor(now, ticket("env", "r1", "t"), 1).unwrap();
    let busy = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    let calm = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    for _ in 0..50 {
        board.handle_frame(now, busy, data("busy", 1000));
    }
    board.handle_frame(now, calm, data("calm", 10));
    let first_two: Vec<_> = (0..2).map(|_| describe(board.poll_frame(executor).unwrap())).collect();
    assert!(first_two[1].starts_with("calm "), "{first_two:?}");
}

#[test]
fn a_harness_that_sends_faster_than_its_executor_reads_waits() {
    let mut board = Switchboard::new(LIMITS);
    let now = Instant::now();
    let executor = board.attach_executor(now, ticket("env", "r1", "t"), 1).unwrap();
    let harness = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    let mut sent = 0;
    while board.is_reading(harness) {
        board.handle_frame(now, harness, data("a", 60_000));
        sent += 1;
        assert!(sent < 12, "reading was never paused");
    }
    while board.poll_wake().is_some() {}
    board.poll_frame(executor).unwrap();
    assert!(board.is_reading(harness));
    assert_eq!(board.poll_wake(), Some(harness));
}

#[test]
fn a_slow_harness_pauses_its_executor_until_its_deadline() {
    let mut board = Switchboard::new(LIMITS);
    let now = Instant::now();
    let executor = board.attach_executor(now, ticket("env", "r1", "t"), 1).unwrap();
    let slow = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    let other = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    board.handle_frame(now, slow, data("slow", 1));
    board.handle_frame(now, other, data("other", 1));
    let fill = |board: &mut Switchboard| {
        let mut sent = 0;
        while board.is_reading(executor) {
            board.handle_frame(now, executor, data("slow", 60_000));
            sent += 1;
            assert!(sent < 24, "reading was never paused");
        }
    };
    fill(&mut board);
    assert_eq!(board.poll_timeout(slow), Some(now + LIMITS.slow_timeout));
    assert_eq!(board.poll_timeout(other), None);
    // The harness catches up, so the executor is read again.
    while !board.is_reading(executor) {
        board.poll_frame(slow).unwrap();
    }
    assert_eq!(board.poll_timeout(slow), None);
    // The harness does not catch up, so it is closed.
    fill(&mut board);
    board.handle_timeout(now + LIMITS.slow_timeout - Duration::from_millis(1), slow);
    assert!(!board.is_reading(executor));
    board.handle_timeout(now + LIMITS.slow_timeout, slow);
    assert!(board.is_reading(executor));
    assert_eq!(board.poll_frame(slow), None);
    assert_eq!(board.poll_close_reason(slow), Some(CloseReason::Slow));
    assert_eq!(board.poll_close_reason(other), None);
}

#[test]
fn the_memory_for_many_harnesses_is_bounded() {
    const MANY: usize = 200;
    let mut board = Switchboard::new(SwitchboardLimits { streams_per_environment: MANY, ..LIMITS });
    let now = Instant::now();
    let executor = board.attach_executor(now, ticket("env", "r1", "t"), 1).unwrap();
    let attach = |_| board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    let harnesses: Vec<SocketId> = (0..MANY).map(attach).collect();
    // Every harness sends until it is not read any more, while the executor reads nothing.
    let mut sent = 0;
    for (number, harness) in harnesses.iter().enumerate() {
        while board.is_reading(*harness) {
            board.handle_frame(now, *harness, data(&number.to_string(), 60_000));
            sent += 60_000;
        }
    }
    assert!(sent <= STREAMS_TOGETHER + MANY * 61_000, "{sent}");
    assert!(sent >= MANY * 60_000, "every harness may queue one frame");
    while board.poll_wake().is_some() {}
    let mut woken = BTreeSet::new();
    while board.poll_frame(executor).is_some() {
        woken.extend(std::iter::from_fn(|| board.poll_wake()));
    }
    assert!(harnesses.iter().all(|harness| woken.contains(harness) && board.is_reading(*harness)));

    // The executor sends to each in turn, and none of them reads.
    let mut sent = 0;
    for number in (0..MANY).cycle() {
        if !board.is_reading(executor) {
            break;
        }
        board.handle_frame(now, executor, data(&number.to_string(), 60_000));
        sent += 60_000;
    }
    assert!(sent <= HARNESSES_TOGETHER + MANY * 61_000, "{sent}");
    // One harness has a full queue, and draining it resumes the executor.
    let behind = harnesses.iter().filter(|harness| board.poll_timeout(**harness).is_some());
    let behind: Vec<SocketId> = behind.copied().collect();
    assert_eq!(behind.len(), 1);
    while !board.is_reading(executor) {
        board.poll_frame(behind[0]).unwrap();
    }
}

#[test]
fn a_harness_is_woken_when_it_may_send_again() {
    const MANY: usize = 100;
    let mut board = Switchboard::new(SwitchboardLimits { streams_per_environment: MANY, ..LIMITS });
    let now = Instant::now();
    let executor = board.attach_executor(now, ticket("env", "r1", "t"), 1).unwrap();
    let harnesses: Vec<(SocketId, Bytes)> = (0..MANY)
        .map(|number| {
            let id = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
            (id, data(&number.to_string(), 200_000))
        })
        .collect();
    let mut dice = 1_u64;
    let mut was_crowded = false;
    for step in 0..20_000 {
        let silent: Vec<SocketId> =
            harnesses.iter().map(|it| it.0).filter(|id| !board.is_reading(*id)).collect();
        // More than half are paused only while the limit of all harnesses together is exceeded.
        was_crowded |= silent.len() > MANY / 2;
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The load alternates between filling and draining the queues.
        let is_sending = (dice >> 60) < if step % 2000 < 1000 { 12 } else { 4 };
        let (harness, frame) = &harnesses[(dice >> 33) as usize % MANY];
        if is_sending && board.is_reading(*harness) {
            board.handle_frame(now, *harness, frame.clone());
        } else if !is_sending {
            board.poll_frame(executor);
        }
        let woken: BTreeSet<SocketId> = std::iter::from_fn(|| board.poll_wake()).collect();
        let is_told = |id: &SocketId| !board.is_reading(*id) || woken.contains(id);
        assert!(silent.iter().all(is_told), "step {step}");
    }
    assert!(was_crowded, "the common limit was never reached");
}
