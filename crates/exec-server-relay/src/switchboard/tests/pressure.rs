//! Backpressure: peers that send faster than the other side reads.

use super::*;
use crate::switchboard::budget::LARGEST_SHARE;

#[test]
fn streams_take_turns_at_the_executor() {
    let mut board = Switchboard::new(LIMITS, ample());
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
    let mut board = Switchboard::new(LIMITS, ample());
    let now = Instant::now();
    let executor = board.attach_executor(now, ticket("env", "r1", "t"), 1).unwrap();
    let harness = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    let mut sent = 0;
    while board.poll_reading(harness) {
        board.handle_frame(now, harness, data("a", 60_000));
        sent += 1;
        assert!(sent < 12, "reading was never paused");
    }
    while board.poll_wake().is_some() {}
    board.poll_frame(executor).unwrap();
    assert!(board.poll_reading(harness));
    assert_eq!(board.poll_wake(), Some(harness));
}

#[test]
fn a_slow_harness_pauses_its_executor_until_its_deadline() {
    let mut board = Switchboard::new(LIMITS, ample());
    let now = Instant::now();
    let executor = board.attach_executor(now, ticket("env", "r1", "t"), 1).unwrap();
    let slow = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    let other = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    board.handle_frame(now, slow, data("slow", 1));
    board.handle_frame(now, other, data("other", 1));
    let fill = |board: &mut Switchboard| {
        let mut sent = 0;
        while board.poll_reading(executor) {
            board.handle_frame(now, executor, data("slow", 60_000));
            sent += 1;
            assert!(sent < 24, "reading was never paused");
        }
    };
    fill(&mut board);
    assert_eq!(board.poll_timeout(slow), Some(now + LIMITS.slow_timeout));
    assert_eq!(board.poll_timeout(other), None);
    // The harness catches up, so the executor is read again.
    while !board.poll_reading(executor) {
        board.poll_frame(slow).unwrap();
    }
    assert_eq!(board.poll_timeout(slow), None);
    // The harness does not catch up, so it is closed.
    fill(&mut board);
    board.handle_timeout(now + LIMITS.slow_timeout - Duration::from_millis(1), slow);
    assert!(!board.poll_reading(executor));
    board.handle_timeout(now + LIMITS.slow_timeout, slow);
    assert!(board.poll_reading(executor));
    assert_eq!(board.poll_frame(slow), None);
    assert_eq!(board.poll_close_reason(slow), Some(CloseReason::Slow));
    assert_eq!(board.poll_close_reason(other), None);
}

#[test]
fn an_executor_resumes_when_a_slow_harness_has_room_for_one_frame() {
    let mut board = Switchboard::new(LIMITS, ample());
    let now = Instant::now();
    let executor = board.attach_executor(now, ticket("env", "r1", "t"), 1).unwrap();
    let slow = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    board.handle_frame(now, slow, data("slow", 1));
    while board.poll_reading(executor) {
        board.handle_frame(now, executor, data("slow", 60_000));
    }
    let mut read = 0;
    while !board.poll_reading(executor) {
        board.poll_frame(slow).unwrap();
        read += 1;
    }
    assert!(read <= 2, "other harnesses waited for {read} frames of the slow one");
}

#[test]
fn a_harness_with_large_frames_gets_no_more_of_its_executor_than_another() {
    let mut board = Switchboard::new(LIMITS, ample());
    let now = Instant::now();
    let executor = board.attach_executor(now, ticket("env", "r1", "t"), 1).unwrap();
    let large = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    let small = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    let mut bytes = BTreeMap::from([("large".to_owned(), 0), ("small".to_owned(), 0)]);
    for _ in 0..400 {
        while board.poll_reading(large) {
            board.handle_frame(now, large, data("large", 250_000));
        }
        while board.poll_reading(small) {
            board.handle_frame(now, small, data("small", 15_000));
        }
        let frame = board.poll_frame(executor).unwrap();
        let stream = RelayHeader::decode(frame.clone()).unwrap().stream_id;
        *bytes.get_mut(&stream).unwrap() += frame.len();
    }
    let (large, small) = (bytes["large"], bytes["small"]);
    assert!(large.abs_diff(small) < MAX_FRAME_BYTES + large / 10, "{bytes:?}");
}

#[test]
fn an_executor_that_takes_no_frame_is_closed() {
    let mut board = Switchboard::new(LIMITS, ample());
    let now = Instant::now();
    let executor = board.attach_executor(now, ticket("env", "r1", "t"), 1).unwrap();
    let harness = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    board.handle_frame(now, harness, data("a", 10));
    assert_eq!(board.poll_timeout(executor), None, "no harness waits for it");
    while board.poll_reading(harness) {
        board.handle_frame(now, harness, data("a", 60_000));
    }
    // A frame was taken since, so the timeout starts again.
    let late = now + LIMITS.slow_timeout;
    assert_eq!(board.poll_timeout(executor), Some(late));
    board.poll_frame(executor).unwrap();
    while board.poll_reading(harness) {
        board.handle_frame(now, harness, data("a", 60_000));
    }
    board.handle_timeout(late, executor);
    assert_eq!(board.poll_timeout(executor), Some(late + LIMITS.slow_timeout));
    board.handle_timeout(late + LIMITS.slow_timeout, executor);
    assert_eq!(board.poll_close_reason(executor), Some(CloseReason::Slow));
    assert_eq!(board.poll_close_reason(harness), Some(CloseReason::ExecutorGone));
    assert_eq!(board.poll_departure(), Some("env".to_owned()));
}

#[test]
fn an_executor_that_catches_up_has_no_timeout() {
    let mut board = Switchboard::new(LIMITS, ample());
    let now = Instant::now();
    let executor = board.attach_executor(now, ticket("env", "r1", "t"), 1).unwrap();
    let harness = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    while board.poll_reading(harness) {
        board.handle_frame(now, harness, data("a", 60_000));
    }
    while board.poll_frame(executor).is_some() {}
    assert_eq!(board.poll_timeout(executor), None);
}

#[test]
fn the_memory_for_many_harnesses_is_bounded_by_the_budget() {
    const MANY: usize = 200;
    const TOTAL: usize = 32 * LARGEST_SHARE;
    let limits = SwitchboardLimits { streams_per_environment: MANY, ..LIMITS };
    let budget = BufferBudget::new(TOTAL);
    let mut board = Switchboard::new(limits, budget.clone());
    let now = Instant::now();
    let executor = board.attach_executor(now, ticket("env", "r1", "t"), 1).unwrap();
    let attach = |_| board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
    let harnesses: Vec<SocketId> = (0..MANY).map(attach).collect();
    // Every harness sends until it is not read any more, while the executor reads nothing.
    for (number, harness) in harnesses.iter().enumerate() {
        let mut sent = 0;
        while board.poll_reading(*harness) {
            board.handle_frame(now, *harness, data(&number.to_string(), 60_000));
            sent += 1;
        }
        assert!(sent > 0, "every harness may queue one frame");
    }
    assert!(budget.used() <= TOTAL + MANY * 61_000, "{}", budget.used());
    while board.poll_wake().is_some() {}
    let mut woken = BTreeSet::new();
    while board.poll_frame(executor).is_some() {
        woken.extend(std::iter::from_fn(|| board.poll_wake()));
    }
    assert_eq!(budget.used(), 0);
    let is_free = |id: &SocketId| woken.contains(id) && board.poll_reading(*id);
    assert!(harnesses.iter().all(is_free));

    // The executor sends to each in turn, and none of them reads.
    for number in (0..MANY).cycle() {
        if !board.poll_reading(executor) {
            break;
        }
        board.handle_frame(now, executor, data(&number.to_string(), 60_000));
    }
    assert!(budget.used() <= TOTAL + 61_000, "{}", budget.used());
    // One harness has a full queue, and draining it resumes the executor.
    let behind = harnesses.iter().filter(|harness| board.poll_timeout(**harness).is_some());
    let behind: Vec<SocketId> = behind.copied().collect();
    assert_eq!(behind.len(), 1);
    while !board.poll_reading(executor) {
        board.poll_frame(behind[0]).unwrap();
    }
}

#[test]
fn a_spent_budget_deadlocks_no_stream() {
    const MANY: usize = 100;
    let limits = SwitchboardLimits { streams_per_environment: MANY, ..LIMITS };
    let budget = BufferBudget::new(8 * LARGEST_SHARE);
    let mut board = Switchboard::new(limits, budget.clone());
    let now = Instant::now();
    let executor = board.attach_executor(now, ticket("env", "r1", "t"), 1).unwrap();
    let harnesses: Vec<(SocketId, Bytes)> = (0..MANY)
        .map(|number| {
            let id = board.attach_harness(now, ticket("env", "r1", "t"), None).unwrap();
            (id, data(&number.to_string(), 200_000))
        })
        .collect();
    // As the owners of sockets see it: a paused one looks again only when it is woken.
    let mut paused: BTreeSet<SocketId> = BTreeSet::new();
    let mut dice = 1_u64;
    let mut was_spent = false;
    for step in 0..20_000 {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The load alternates between filling and draining the queues.
        let is_sending = (dice >> 60) < if step % 2000 < 1000 { 12 } else { 4 };
        let (harness, frame) = &harnesses[(dice >> 33) as usize % MANY];
        if is_sending && !paused.contains(harness) {
            board.handle_frame(now, *harness, frame.clone());
        } else if !is_sending {
            board.poll_frame(executor);
        }
        was_spent |= budget.used() >= budget.total();
        let woken: Vec<SocketId> = std::iter::from_fn(|| board.poll_wake()).collect();
        for id in woken.into_iter().chain([*harness]) {
            let is_paused = id != executor && !board.poll_reading(id);
            if is_paused {
                paused.insert(id)
            } else {
                paused.remove(&id)
            };
        }
        assert!(budget.used() <= budget.total() + MANY * MAX_FRAME_BYTES, "step {step}");
    }
    assert!(was_spent, "the budget was never spent");
    while board.poll_frame(executor).is_some() {
        while let Some(id) = board.poll_wake() {
            paused.remove(&id);
        }
    }
    assert!(paused.is_empty(), "{paused:?} wait for ever");
}
