//! Names that only a sudden death of the server would leave behind, kept where the guardian can read them.
//!
//! New content often has a name of its own for a moment before it takes the place of the old. The server notes such
//! a name in memory that it shares with the guardian, which removes what is still noted when the server has died.

use std::cell::UnsafeCell;
use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::cgroup::remains;

/// How the names begin that may be removed; nothing else ever is.
pub const PREFIX: &str = ".exec-server-";

/// A name that is noted until this is dropped.
#[derive(Debug)]
pub struct Note(&'static Slot);

/// Threads that give a file its place at the same time, and placeholders; what finds no slot is not noted.
const SLOTS: usize = 256;

const MAX_PATH_BYTES: usize = 4096;

#[repr(C)]
#[derive(Debug)]
struct Slot {
    state: AtomicU32,
    len: AtomicU32,
    path: UnsafeCell<[u8; MAX_PATH_BYTES]>,
}

// SAFETY: the path is written only by the thread that has moved the state from FREE to CLAIMED, and read only once
// something is noted and that thread has ended with its process.
unsafe impl Sync for Slot {}

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const NOTED: u32 = 2;
const NOTED_DIRECTORY: u32 = 3;
const NOTED_CGROUP: u32 = 4;

static TABLE: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());

/// Makes the memory; must be called before guardian and server part.
pub fn prepare() -> io::Result<()> {
    let bytes = SLOTS * size_of::<Slot>();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: asks for new memory at any address.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    TABLE.store(memory.cast(), Ordering::Release);
    Ok(())
}

/// Notes a name in a directory, if there is a guardian and a free slot.
pub fn note(dir: &OwnedFd, name: &CStr) -> Option<Note> {
    table()?;
    let dir = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).ok()?;
    let mut path = dir.into_os_string().into_vec();
    path.push(b'/');
    path.extend_from_slice(name.to_bytes());
    claim(&path, NOTED)
}

impl Note {
    /// Notes a directory, which is removed only if it is empty.
    pub fn of_directory(path: &Path) -> Option<Self> {
        claim(path.as_os_str().as_bytes(), NOTED_DIRECTORY)
    }

    /// Notes a cgroup, in which the groups of this server's children are removed.
    pub fn of_cgroup(path: &Path) -> Option<Self> {
        claim(path.as_os_str().as_bytes(), NOTED_CGROUP)
    }
}

fn claim(path: &[u8], state: u32) -> Option<Note> {
    let slots = table()?;
    if path.len() > MAX_PATH_BYTES {
        return None;
    }
    let slot = slots.iter().find(|slot| slot.is_claimed_now())?;
    // SAFETY: the slot is claimed by us, so nobody else touches the path; it is long enough.
    unsafe { ptr::copy_nonoverlapping(path.as_ptr(), slot.path.get().cast(), path.len()) };
    slot.len.store(u32::try_from(path.len()).expect("was just checked"), Ordering::Relaxed);
    slot.state.store(state, Ordering::Release);
    Some(Note(slot))
}

impl Drop for Note {
    fn drop(&mut self) {
        self.0.state.store(FREE, Ordering::Release);
    }
}

impl Slot {
    fn is_claimed_now(&self) -> bool {
        self.state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// What is noted.
    fn read(&self) -> Option<Litter> {
        let state = self.state.load(Ordering::Acquire);
        let litter = match state {
            NOTED => Litter::File,
            NOTED_DIRECTORY => Litter::Directory,
            NOTED_CGROUP => Litter::Cgroup,
            _ => return None,
        };
        let len = (self.len.load(Ordering::Relaxed) as usize).min(MAX_PATH_BYTES);
        // SAFETY: whoever wrote it has ended, and `len` bytes of it are initialised.
        let path = unsafe { std::slice::from_raw_parts(self.path.get().cast::<u8>(), len) };
        Some(litter(PathBuf::from(OsString::from_vec(path.to_vec()))))
    }
}

enum Litter {
    File(PathBuf),
    Directory(PathBuf),
    Cgroup(PathBuf),
}

/// The server has died: removes what it had noted.
pub fn sweep() {
    for litter in table().into_iter().flatten().filter_map(Slot::read) {
        // It may have taken its place, or gone, just before.
        let _ = match litter {
            Litter::File(path) if is_ours(&path) => std::fs::remove_file(path),
            Litter::File(_) => Ok(()),
            Litter::Directory(path) => std::fs::remove_dir(path),
            Litter::Cgroup(path) => {
                remains::clear(&path);
                Ok(())
            }
        };
    }
}

fn is_ours(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.as_bytes());
    name.is_some_and(|name| name.starts_with(PREFIX.as_bytes()))
}

fn table() -> Option<&'static [Slot]> {
    let slots = TABLE.load(Ordering::Acquire);
    // SAFETY: the memory was made for this many slots, is never unmapped, and zeros are free slots.
    (!slots.is_null()).then(|| unsafe { std::slice::from_raw_parts(slots, SLOTS) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_swept_and_nothing_else() {
        prepare().unwrap();
        let place = tempfile::tempdir().unwrap();
        let dir: OwnedFd = std::fs::File::open(place.path()).unwrap().into();
        for name in ["a.tmp", "b.tmp"] {
            std::fs::write(place.path().join(format!("{PREFIX}{name}")), "").unwrap();
        }
        std::fs::write(place.path().join("mine"), "").unwrap();
        let noted = note(&dir, c".exec-server-a.tmp").unwrap();
        let not_ours = note(&dir, c"mine").unwrap();
        for name in ["empty", "full"] {
            std::fs::create_dir(place.path().join(name)).unwrap();
        }
        std::fs::write(place.path().join("full/mine"), "").unwrap();
        let directories =
            ["empty", "full"].map(|name| Note::of_directory(&place.path().join(name)));
        drop(note(&dir, c".exec-server-b.tmp").unwrap());
        sweep();
        let left = |name: &str| place.path().join(name).exists();
        assert!(!left(".exec-server-a.tmp") && left(".exec-server-b.tmp") && left("mine"));
        assert!(!left("empty") && left("full/mine"));
        drop((noted, not_ours, directories));
        let all: Vec<Note> = (0..SLOTS).map_while(|_| note(&dir, c"x")).collect();
        assert_eq!((all.len(), note(&dir, c"x").is_none()), (SLOTS, true));
    }
}
