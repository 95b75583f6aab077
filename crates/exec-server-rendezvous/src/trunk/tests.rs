//! Two trunks and a channel that loses, doubles and swaps messages.

use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn times() -> TrunkTimes {
    TrunkTimes { mark: SECOND / 2, idle: 5 * SECOND, stall: 5 * SECOND }
}

/// A node with one trunk.
struct Node {
    trunk: Trunk,
    pool: Arc<CreditPool>,
    budget: Arc<BufferBudget>,
}

impl Node {
    fn new() -> Self {
        let budget = BufferBudget::new(256 << 20);
        let pool = Arc::new(CreditPool::new(256 << 20));
        Self { trunk: Trunk::new(times(), pool.clone(), budget.clone()), pool, budget }
    }
}

/// A harness's node, a home node, and what is between them.
struct Pair {
    now: Instant,
    nodes: [Node; 2],
    /// Messages from one node to the other, which are published and not delivered.
    between: [[VecDeque<Item>; LANES]; 2],
}

/// The link's name at each of the two nodes.
fn at(side: usize, number: u64) -> LinkId {
    LinkId { is_ours: side == 0, number }
}

impl Pair {
    fn new(links: u64) -> Self {
        let mut pair = Self {
            now: Instant::now(),
            nodes: [Node::new(), Node::new()],
            between: Default::default(),
        };
        for number in 0..links {
            let credit = pair.nodes[0].trunk.open(pair.now, at(0, number), 0);
            let granted = pair.nodes[1].trunk.open(pair.now, at(1, number), credit);
            pair.nodes[0].trunk.handle_opened(at(0, number), granted);
        }
        pair
    }

    /// Sends if there is credit.
    fn send(&mut self, side: usize, number: u64, frame: &[u8]) -> bool {
        let (now, id) = (self.now, at(side, number));
        let can = self.nodes[side].trunk.can_send(id);
        if can {
            self.nodes[side].trunk.send(now, id, Bytes::copy_from_slice(frame));
        }
        can
    }

    fn pop(&mut self, side: usize, number: u64) -> Option<Bytes> {
        self.nodes[side].trunk.pop(at(side, number))
    }

    fn reason(&self, side: usize, number: u64) -> Option<CloseReason> {
        self.nodes[side].trunk.end_reason(at(side, number))
    }

    fn publish(&mut self) {
        for side in 0..2 {
            for lane in 0..LANES {
                let items = self.nodes[side].trunk.poll_output(lane);
                self.between[side][lane].extend(items);
            }
        }
    }

    /// Delivers the next message of one side and lane.
    fn deliver(&mut self, side: usize, lane: usize) -> bool {
        let Some(item) = self.between[side][lane].pop_front() else { return false };
        self.nodes[1 - side].trunk.handle_item(item).expect("the peer keeps to its credits");
        true
    }

    /// Delivers until nothing is left.
    fn settle(&mut self) {
        loop {
            self.publish();
            let lanes = (0..2).flat_map(|side| (0..LANES).map(move |lane| (side, lane)));
            let delivered: Vec<bool> = lanes.map(|(side, lane)| self.deliver(side, lane)).collect();
            if !delivered.contains(&true) && !(0..2).any(|it| self.has_output(it)) {
                return;
            }
        }
    }

    fn has_output(&self, side: usize) -> bool {
        (0..LANES).any(|lane| self.nodes[side].trunk.has_output(lane))
    }

    /// Lets time pass with a working channel.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += SECOND / 10;
            let now = self.now;
            self.nodes.iter_mut().for_each(|node| node.trunk.handle_tick(now));
            self.settle();
        }
    }
}

#[test]
fn frames_arrive_in_order_and_a_close_comes_after_them() {
    let mut pair = Pair::new(2);
    assert!(pair.send(0, 0, b"one") && pair.send(0, 0, b"two") && pair.send(1, 1, b"other"));
    pair.nodes[0].trunk.close(at(0, 0), CloseReason::Gone);
    pair.settle();
    assert_eq!(pair.reason(1, 0), Some(CloseReason::Gone));
    assert_eq!(pair.pop(1, 0).as_deref(), Some(&b"one"[..]));
    assert_eq!(pair.pop(1, 0).as_deref(), Some(&b"two"[..]));
    assert_eq!(pair.pop(1, 0), None);
    assert_eq!(pair.pop(0, 1).as_deref(), Some(&b"other"[..]));
    assert_eq!(pair.reason(0, 1), None);
}

#[test]
fn an_end_that_does_not_pop_stops_the_other_and_popping_resumes_it() {
    let mut pair = Pair::new(1);
    let frame = [7; 1000];
    let mut sent = 0;
    while pair.send(0, 0, &frame) {
        sent += 1;
        assert!(sent < 1000, "credits end");
    }
    pair.settle();
    // Waiting costs no more than the window, however long it lasts.
    pair.pass(60 * SECOND);
    assert_eq!(pair.reason(0, 0), None);
    assert!(!pair.send(0, 0, &frame) && pair.nodes[1].budget.used() < 100 * 1024);
    let mut popped = 0;
    for _ in 0..5000 {
        pair.settle();
        while pair.pop(1, 0).is_some() {
            popped += 1;
        }
        pair.settle();
        while pair.send(0, 0, &frame) {
            sent += 1;
        }
    }
    pair.settle();
    while pair.pop(1, 0).is_some() {
        popped += 1;
    }
    assert_eq!(sent, popped);
    assert_eq!(pair.nodes[1].pool.granted(), 512 * 1024, "the window of a busy link grows");
}

#[test]
fn one_frame_may_exceed_the_credit() {
    let mut pair = Pair::new(1);
    let frame = vec![1; 256 * 1024];
    assert!(pair.send(0, 0, &frame) && !pair.send(0, 0, &frame));
    pair.settle();
    assert_eq!(pair.pop(1, 0).map(|it| it.len()), Some(frame.len()));
    pair.settle();
    assert!(pair.send(0, 0, &frame));
}

#[test]
fn the_loss_of_the_last_message_is_found_by_a_mark() {
    for lost in ["data", "close", "mark"] {
        let mut pair = Pair::new(1);
        match lost {
            "data" => assert!(pair.send(0, 0, b"x")),
            "close" => pair.nodes[0].trunk.close(at(0, 0), CloseReason::Gone),
            _ => {}
        }
        pair.publish();
        pair.between[0][0].clear();
        pair.pass(6 * SECOND);
        let ended = lost != "mark";
        assert_eq!(pair.reason(1, 0).is_some(), ended, "{lost}");
        assert_eq!(pair.reason(0, 0).is_some(), ended, "{lost}");
        assert_eq!(pair.pop(1, 0), None);
    }
}

#[test]
fn a_lost_credit_is_repeated() {
    let mut pair = Pair::new(1);
    while pair.send(0, 0, &[0; 1000]) {}
    pair.settle();
    while pair.pop(1, 0).is_some() {}
    pair.publish();
    pair.between[1][0].clear();
    pair.settle();
    assert!(!pair.send(0, 0, b"x"));
    pair.pass(SECOND);
    assert!(pair.send(0, 0, b"x"));
}

#[test]
fn a_node_that_answers_nothing_loses_its_links() {
    let mut pair = Pair::new(1);
    assert!(pair.send(0, 0, b"x"));
    for _ in 0..70 {
        pair.now += SECOND / 10;
        pair.nodes[0].trunk.handle_tick(pair.now);
        pair.publish();
        pair.between = Default::default();
    }
    assert_eq!(pair.reason(0, 0), Some(CloseReason::TrunkLost));
}

#[test]
fn a_lane_that_is_lost_ends_its_links_only() {
    let mut pair = Pair::new(8);
    pair.nodes[0].trunk.handle_lane_lost(1);
    pair.settle();
    for number in 0..8 {
        let is_lost = number % 4 == 1;
        assert_eq!(pair.reason(0, number).is_some(), is_lost, "{number}");
        assert_eq!(pair.reason(1, number).is_some(), is_lost, "{number}");
    }
}

#[test]
fn a_node_that_ignores_its_credits_is_noticed() {
    let mut node = Node::new();
    let id = LinkId { is_ours: false, number: 3 };
    node.trunk.open(Instant::now(), id, 1);
    let frame = Bytes::from(vec![0; 60 * 1024]);
    let data = |sequence| Item {
        kind: ItemKind::Data.into(),
        link: 3,
        is_opener: true,
        sequence,
        frame: frame.clone(),
        ..Item::default()
    };
    assert_eq!(node.trunk.handle_item(data(0)), Ok(()));
    assert_eq!(node.trunk.handle_item(data(1)), Ok(()));
    assert_eq!(node.trunk.handle_item(data(2)), Err(Overdrawn));
}

#[test]
fn what_a_trunk_has_taken_is_given_back() {
    let mut pair = Pair::new(5);
    for number in 0..5 {
        while pair.send(0, number, &[0; 5000]) {}
    }
    pair.settle();
    assert!(pair.nodes[1].budget.used() > 0);
    pair.nodes[0].trunk.handle_peer_gone();
    for number in 0..5 {
        pair.nodes[0].trunk.close(at(0, number), CloseReason::Gone);
        pair.nodes[1].trunk.close(at(1, number), CloseReason::Gone);
    }
    pair.publish();
    for node in &pair.nodes {
        assert_eq!((node.budget.used(), node.pool.granted()), (0, 0));
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send(usize, u64, usize),
    Pop(usize, u64),
    Deliver(usize, usize),
    Pass(u64),
    Lose(usize, usize),
    Double(usize, usize),
    Swap(usize, usize),
    Close(usize, u64),
    LoseLane(usize, usize),
}

const LINKS: u64 = 6;

fn step() -> impl Strategy<Value = Step> {
    let (side, link, lane) = (0..2_usize, 0..LINKS, 0..LANES);
    prop_oneof![
        8 => (side.clone(), link.clone(), 0..3000_usize).prop_map(|(a, b, c)| Step::Send(a, b, c)),
        6 => (side.clone(), link.clone()).prop_map(|(a, b)| Step::Pop(a, b)),
        12 => (side.clone(), lane.clone()).prop_map(|(a, b)| Step::Deliver(a, b)),
        1 => (1..20_u64).prop_map(Step::Pass),
        1 => (side.clone(), lane.clone()).prop_map(|(a, b)| Step::Lose(a, b)),
        1 => (side.clone(), lane.clone()).prop_map(|(a, b)| Step::Double(a, b)),
        1 => (side.clone(), lane.clone()).prop_map(|(a, b)| Step::Swap(a, b)),
        1 => (side.clone(), link).prop_map(|(a, b)| Step::Close(a, b)),
        1 => (side, lane).prop_map(|(a, b)| Step::LoseLane(a, b)),
    ]
}

proptest! {
    /// Whole or ended: every link delivers a prefix, and once the channel works, all of it or an end at both ends.
    #[test]
    fn a_link_is_whole_or_it_ends(steps in prop::collection::vec(step(), 1..400)) {
        let mut pair = Pair::new(LINKS);
        let mut sent: BTreeMap<(usize, u64), Vec<Vec<u8>>> = BTreeMap::new();
        let mut got: BTreeMap<(usize, u64), Vec<Vec<u8>>> = BTreeMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Send(side, link, length) => {
                    let mut frame = number.to_be_bytes().to_vec();
                    frame.resize(8 + length, number as u8);
                    if pair.send(side, link, &frame) {
                        sent.entry((side, link)).or_default().push(frame);
                    }
                }
                Step::Pop(side, link) => {
                    let frame = pair.pop(side, link);
                    got.entry((1 - side, link)).or_default().extend(frame.map(|it| it.to_vec()));
                }
                Step::Deliver(side, lane) => {
                    pair.publish();
                    pair.deliver(side, lane);
                }
                Step::Pass(tenths) => {
                    pair.now += SECOND / 10 * u32::try_from(tenths).unwrap();
                    let now = pair.now;
                    pair.nodes.iter_mut().for_each(|node| node.trunk.handle_tick(now));
                }
                Step::Lose(side, lane) => {
                    pair.between[side][lane].pop_front();
                }
                Step::Double(side, lane) => {
                    let first = pair.between[side][lane].front().cloned();
                    pair.between[side][lane].extend(first);
                }
                Step::Swap(side, lane) => {
                    let items = &mut pair.between[side][lane];
                    if items.len() > 1 {
                        items.swap(0, 1);
                    }
                }
                Step::Close(side, link) => {
                    pair.nodes[side].trunk.close(at(side, link), CloseReason::Gone);
                }
                Step::LoseLane(side, lane) => pair.nodes[side].trunk.handle_lane_lost(lane),
            }
        }
        pair.pass(20 * SECOND);
        for link in 0..LINKS {
            for side in 0..2 {
                while let Some(frame) = pair.pop(1 - side, link) {
                    got.entry((side, link)).or_default().push(frame.to_vec());
                }
                let all = sent.remove(&(side, link)).unwrap_or_default();
                let arrived = got.remove(&(side, link)).unwrap_or_default();
                prop_assert!(all.starts_with(&arrived), "not a prefix at {side} {link}");
                let has_ended = pair.reason(0, link).is_some() && pair.reason(1, link).is_some();
                let both = pair.reason(0, link).is_some() == pair.reason(1, link).is_some();
                prop_assert!(both, "one end goes on alone");
                prop_assert!(has_ended || all == arrived, "frames are missing without an end");
            }
        }
    }
}
