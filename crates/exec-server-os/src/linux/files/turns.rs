//! Between looking at a file and changing it nobody else of this server does the same, or `ifMatch` would be a guess.
//!
//! Whoever changes a file through one of its names takes the turn of the name. Whoever changes the file itself, which
//! may have other names, then takes the turn of the file as well; in this order, so that nobody waits for ever.

use std::hash::{BuildHasher, Hash, RandomState};
use std::os::fd::AsFd;
use std::sync::{LazyLock, Mutex, MutexGuard};

use super::metadata::Facts;
use super::resolve::Place;

/// The right to change something, until it is dropped.
pub type Turn = MutexGuard<'static, ()>;

/// Two things share a turn by chance only, and then just wait a little.
type Turns = [Mutex<()>; 64];

/// Waits for the turn to change what is at `place`.
pub fn take(place: &Place) -> Turn {
    static NAMES: Turns = [const { Mutex::new(()) }; 64];
    let dir = Facts::of_file(place.dir.as_fd()).ok().map(|facts| facts.identity());
    take_one(&NAMES, (dir, &place.name))
}

/// Waits for the turn to change a file in place.
pub fn take_file(facts: &Facts) -> Turn {
    static FILES: Turns = [const { Mutex::new(()) }; 64];
    take_one(&FILES, facts.identity())
}

fn take_one(turns: &'static Turns, key: impl Hash) -> Turn {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let turn = KEYS.hash_one(key) % turns.len() as u64;
    let turn = usize::try_from(turn).expect("it is small");
    turns[turn].lock().expect("no holder panics")
}
