//! Striped path locks that make check-then-write atomic within this process.
//!
//! A change through a name takes the lock of the name. A change of the inode itself, which may have other names, then
//! takes the lock of the inode as well. The fixed order prevents deadlock.

use std::hash::{BuildHasher, Hash, RandomState};
use std::os::fd::AsFd;
use std::sync::{LazyLock, Mutex, MutexGuard};

use super::metadata::Facts;
use super::resolve::Place;

/// A held lock; released on drop.
pub type PathLock = MutexGuard<'static, ()>;

/// Two keys share a stripe only by a hash collision, which costs a short wait.
type Stripes = [Mutex<()>; 64];

/// Locks the name of `place`.
pub fn take(place: &Place) -> PathLock {
    static NAMES: Stripes = [const { Mutex::new(()) }; 64];
    let dir = Facts::of_file(place.dir.as_fd()).ok().map(|facts| facts.identity());
    take_one(&NAMES, (dir, &place.name))
}

/// Locks the inode of a file, for changes in place.
pub fn take_file(facts: &Facts) -> PathLock {
    static FILES: Stripes = [const { Mutex::new(()) }; 64];
    take_one(&FILES, facts.identity())
}

fn take_one(stripes: &'static Stripes, key: impl Hash) -> PathLock {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let stripe = KEYS.hash_one(key) % stripes.len() as u64;
    let stripe = usize::try_from(stripe).expect("it is below the number of stripes");
    stripes[stripe].lock().expect("no holder panics")
}
