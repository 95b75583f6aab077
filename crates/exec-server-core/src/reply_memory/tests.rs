use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { total: 800, most: 50, least: 4 };

fn memory() -> (ReplyMemory<u32>, AccountId, AccountId) {
    let mut memory = ReplyMemory::new(LIMITS);
    let (one, other) = (memory.open_account(), memory.open_account());
    (memory, one, other)
}

fn names(granted: &Granted<u32>) -> Vec<u32> {
    granted.iter().map(|(_, _, name)| *name).collect()
}

#[test]
fn a_connection_gets_its_share_and_then_waits_for_released_memory() {
    let (mut memory, one, other) = memory();
    let first = memory.try_take(one, 30).unwrap();
    let second = memory.try_take(one, 20).unwrap();
    assert_eq!(memory.try_take(one, 1), None);
    assert!(memory.take(one, 30, 1).unwrap().is_empty());
    assert!(memory.try_take(other, 50).is_some(), "another connection has a share of its own");
    assert!(memory.give_back(one, second).is_empty());
    assert_eq!(names(&memory.give_back(one, first)), [1]);
}

#[test]
fn requests_of_a_connection_are_served_in_their_order() {
    let (mut memory, one, _) = memory();
    let first = memory.try_take(one, 45).unwrap();
    assert!(memory.take(one, 40, 1).unwrap().is_empty());
    assert!(memory.take(one, 1, 2).unwrap().is_empty(), "it would fit, but came later");
    assert_eq!(memory.try_take(one, 1), None);
    assert_eq!(memory.try_grow(one, first, 46), None);
    assert_eq!(names(&memory.give_back(one, first)), [1, 2]);
}

#[test]
fn a_single_reply_may_be_larger_than_any_share_and_than_all_there_is() {
    let (mut memory, one, other) = memory();
    let large = memory.try_take(one, 700).unwrap();
    assert_eq!(memory.try_take(one, 5), None);
    let above = memory.try_take(other, 900).expect("one may be above the total");
    let third = memory.open_account();
    assert!(memory.take(third, 900, 3).unwrap().is_empty(), "but not two");
    assert_eq!(names(&memory.give_back(other, above)), [3]);
    memory.give_back(one, large);
}

#[test]
fn peers_that_take_nothing_leave_something_for_the_others() {
    let mut memory = ReplyMemory::<u32>::new(LIMITS);
    for _ in 0..1000 {
        let id = memory.open_account();
        while memory.try_take(id, 4).is_some() {}
    }
    let newcomer = memory.open_account();
    assert!(memory.try_take(newcomer, LIMITS.least).is_some());
}

#[test]
fn connections_that_wait_are_served_in_turn() {
    let mut memory = ReplyMemory::new(LIMITS);
    let hoarder = memory.open_account();
    let all = memory.try_take(hoarder, 800).unwrap();
    let above = memory.open_account();
    let above = (above, memory.try_take(above, 800).unwrap());
    let (one, other) = (memory.open_account(), memory.open_account());
    for name in [10, 11] {
        assert!(memory.take(one, 20, name).unwrap().is_empty());
    }
    for name in [20, 21] {
        assert!(memory.take(other, 20, name).unwrap().is_empty());
    }
    assert!(memory.give_back(above.0, above.1).is_empty(), "they are not large");
    let granted = memory.give_back(hoarder, all);
    assert_eq!(names(&granted), [10, 20, 11, 21], "{granted:?}");
}

#[test]
fn a_closed_account_returns_waiting_requests_and_keeps_grants() {
    let (mut memory, one, _) = memory();
    let grant = memory.try_take(one, 50).unwrap();
    assert!(memory.take(one, 50, 1).unwrap().is_empty());
    assert_eq!(memory.close_account(one), [1]);
    assert_eq!(memory.take(one, 1, 2), Err(2));
    assert_eq!((memory.taken(), memory.taken_by(one)), (50, 50));
    memory.give_back(one, grant);
    assert_eq!((memory.taken(), memory.accounts.len()), (0, 1));
}

#[test]
fn a_grant_can_change_its_size() {
    let (mut memory, one, other) = memory();
    let grant = memory.try_take(one, 10).unwrap();
    let grant = memory.try_grow(one, grant, 50).unwrap();
    assert_eq!(memory.try_grow(one, grant, 51), None);
    let grant = memory.force_grow(one, grant, 800).unwrap();
    assert_eq!(memory.force_grow(one, grant, 801), None);
    let (grant, _) = memory.set(one, grant, 900);
    assert_eq!(memory.taken(), 900);
    assert!(memory.try_take(other, LIMITS.least).is_some());
    assert!(memory.take(one, 40, 1).unwrap().is_empty());
    let (grant, granted) = memory.set(one, grant, 1);
    assert_eq!(names(&granted), [1], "what a grant no longer needs is free at once");
    memory.give_back(one, grant);
    memory.give_back(one, granted[0].1);
    assert_eq!(memory.taken_by(one), 0);
}

proptest! {
    #[test]
    fn everything_asked_for_is_granted_once_and_everything_given_back_is_free(
        steps in proptest::collection::vec((0usize..4, 1usize..1200, any::<bool>()), 1..200),
    ) {
        let mut memory = ReplyMemory::new(LIMITS);
        let accounts: Vec<_> = (0..4).map(|_| memory.open_account()).collect();
        let (mut held, mut asked, mut granted) = (VecDeque::new(), 0, 0);
        for (account, bytes, gives_back) in steps {
            let new = if gives_back && let Some((id, grant)) = held.pop_front() {
                memory.give_back(id, grant)
            } else {
                asked += 1;
                memory.take(accounts[account], bytes, ()).unwrap()
            };
            granted += new.len();
            held.extend(new.into_iter().map(|(id, grant, ())| (id, grant)));
            let large = 1200;
            prop_assert!(memory.taken() <= LIMITS.total + large + accounts.len() * LIMITS.least);
        }
        while let Some((id, grant)) = held.pop_front() {
            let new = memory.give_back(id, grant);
            granted += new.len();
            held.extend(new.into_iter().map(|(id, grant, ())| (id, grant)));
        }
        prop_assert_eq!((asked, memory.taken(), memory.turns.len()), (granted, 0, 0));
    }
}
