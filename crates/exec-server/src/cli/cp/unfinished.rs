//! Registry of staged local files, so that an interrupted command leaves none behind.
//!
//! A thread that is blocked on a disk cannot clean up in time, so the main thread removes its file.

use std::collections::BTreeMap;
use std::sync::Mutex;

use exec_server_fs::destination::Aside;

static UNFINISHED: Mutex<BTreeMap<String, Aside>> = Mutex::new(BTreeMap::new());

/// Keeps a staged file registered until dropped.
#[derive(Debug)]
pub struct Note(String);

/// Registers a staged file before it is created, by the token in its name.
pub fn note(token: String, aside: Aside) -> Note {
    UNFINISHED.lock().expect("no holder panics").insert(token.clone(), aside);
    Note(token)
}

impl Drop for Note {
    fn drop(&mut self) {
        UNFINISHED.lock().expect("no holder panics").remove(&self.0);
    }
}

/// Removes all staged files; called after the last copy.
pub fn remove_unfinished() {
    for aside in UNFINISHED.lock().expect("no holder panics").values() {
        // The file may not exist yet, or may be gone already.
        let _ = aside.remove();
    }
}
