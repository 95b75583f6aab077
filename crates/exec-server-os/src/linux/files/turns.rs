//! Between looking at a file and changing it nobody else of this server does the same, or `ifMatch` would be a guess.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::os::fd::AsFd;
use std::sync::{LazyLock, Mutex, MutexGuard};

use super::metadata::Facts;
use super::resolve::Place;

/// Waits for the turn to change what is at `place`.
pub fn take(place: &Place) -> MutexGuard<'static, ()> {
    /// Two places share a turn by chance only, and then just wait a little.
    static TURNS: [Mutex<()>; 64] = [const { Mutex::new(()) }; 64];
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let mut hasher = KEYS.build_hasher();
    Facts::of_file(place.dir.as_fd()).ok().map(|facts| facts.identity()).hash(&mut hasher);
    place.name.hash(&mut hasher);
    let turn = usize::try_from(hasher.finish() % TURNS.len() as u64).expect("it is small");
    TURNS[turn].lock().expect("no holder panics")
}
