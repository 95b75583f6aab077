//! Temp-file registry in shared memory; the guardian removes its entries if the server is killed.
//!
//! New content often has a temporary name before it is renamed over the old file. The server registers that name in
//! memory that it shares with the guardian, which removes the entries that remain when the server has exited.

use std::cell::UnsafeCell;
use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use super::cgroup::remains;
use super::directory::Directory;

/// Prefix of all temp files; the guardian removes no file without it.
pub const PREFIX: &str = ".exec-server-";

/// A registered path; dropping it removes it from the registry.
#[derive(Debug)]
pub struct TempEntry(&'static Slot);

/// Enough for the threads that publish files at the same time, and for placeholders. A path without a slot is not
/// registered.
const SLOTS: usize = 256;

const MAX_PATH_BYTES: usize = 4096;

#[repr(C)]
#[derive(Debug)]
struct Slot {
    state: AtomicU32,
    len: AtomicU32,
    path: UnsafeCell<[u8; MAX_PATH_BYTES]>,
}

// SAFETY: the path is written only by the thread that has moved the state from FREE to CLAIMED, and read only by the
// guardian after the server process has exited.
unsafe impl Sync for Slot {}

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const NOTED: u32 = 2;
const NOTED_DIRECTORY: u32 = 3;
const NOTED_CGROUP: u32 = 4;

static TABLE: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());

/// Maps the shared memory; must be called before the fork into guardian and server.
pub fn prepare() -> io::Result<()> {
    let bytes = SLOTS * size_of::<Slot>();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: maps new memory at an address that the kernel chooses.
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    TABLE.store(memory.cast(), Ordering::Release);
    Ok(())
}

/// Registers a file name in a directory, if there is a guardian and a free slot.
pub fn note(dir: &OwnedFd, name: &CStr) -> Option<TempEntry> {
    table()?;
    let dir = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd())).ok()?;
    let mut path = dir.into_os_string().into_vec();
    path.push(b'/');
    path.extend_from_slice(name.to_bytes());
    claim(&path, NOTED)
}

impl TempEntry {
    /// Registers a directory, which is removed only if it is empty.
    pub fn of_directory(path: &Path) -> Option<Self> {
        claim(path.as_os_str().as_bytes(), NOTED_DIRECTORY)
    }

    /// Registers a parent cgroup, below which the cgroups of this server's children are removed.
    pub fn of_cgroup(path: &Path) -> Option<Self> {
        claim(path.as_os_str().as_bytes(), NOTED_CGROUP)
    }
}

fn claim(path: &[u8], state: u32) -> Option<TempEntry> {
    let slots = table()?;
    if path.len() > MAX_PATH_BYTES {
        return None;
    }
    let slot = slots.iter().find(|slot| slot.is_claimed_now())?;
    // SAFETY: this thread has claimed the slot, so no other thread touches the path; the length was checked.
    unsafe { ptr::copy_nonoverlapping(path.as_ptr(), slot.path.get().cast(), path.len()) };
    slot.len.store(u32::try_from(path.len()).expect("was just checked"), Ordering::Relaxed);
    slot.state.store(state, Ordering::Release);
    Some(TempEntry(slot))
}

impl Drop for TempEntry {
    fn drop(&mut self) {
        self.0.state.store(FREE, Ordering::Release);
    }
}

impl Slot {
    fn is_claimed_now(&self) -> bool {
        self.state.compare_exchange(FREE, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn read(&self) -> Option<StaleEntry> {
        let state = self.state.load(Ordering::Acquire);
        let entry = match state {
            NOTED => StaleEntry::File,
            NOTED_DIRECTORY => StaleEntry::Directory,
            NOTED_CGROUP => StaleEntry::Cgroup,
            _ => return None,
        };
        let len = (self.len.load(Ordering::Relaxed) as usize).min(MAX_PATH_BYTES);
        // SAFETY: the writing process has exited, and `len` bytes are initialised.
        let path = unsafe { std::slice::from_raw_parts(self.path.get().cast::<u8>(), len) };
        Some(entry(PathBuf::from(OsString::from_vec(path.to_vec()))))
    }
}

enum StaleEntry {
    File(PathBuf),
    Directory(PathBuf),
    Cgroup(PathBuf),
}

/// Removes the registered files, directories and cgroups; called after the server has exited.
pub fn sweep() {
    for entry in table().into_iter().flatten().filter_map(Slot::read) {
        // Ignore the error: the file may have been renamed or removed just before the server exited.
        let _ = match entry {
            StaleEntry::File(path) if is_ours(&path) => std::fs::remove_file(path),
            StaleEntry::File(_) => Ok(()),
            StaleEntry::Directory(path) => remove_directory(&path),
            StaleEntry::Cgroup(path) => {
                remains::clear(&path);
                Ok(())
            }
        };
    }
}

/// Follows no symbolic link, because the parent directory may have been replaced by one.
fn remove_directory(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    Directory::open(parent)?.map_or(Ok(()), |parent| parent.remove_directory(name))
}

fn is_ours(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.as_bytes());
    name.is_some_and(|name| name.starts_with(PREFIX.as_bytes()))
}

fn table() -> Option<&'static [Slot]> {
    let slots = TABLE.load(Ordering::Acquire);
    // SAFETY: the mapping has this many slots and is never unmapped, and zeroed memory is a free slot.
    (!slots.is_null()).then(|| unsafe { std::slice::from_raw_parts(slots, SLOTS) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_removes_registered_entries_only() {
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
            ["empty", "full"].map(|name| TempEntry::of_directory(&place.path().join(name)));
        drop(note(&dir, c".exec-server-b.tmp").unwrap());
        sweep();
        let left = |name: &str| place.path().join(name).exists();
        assert!(!left(".exec-server-a.tmp") && left(".exec-server-b.tmp") && left("mine"));
        assert!(!left("empty") && left("full/mine"));
        drop((noted, not_ours, directories));
        let all: Vec<TempEntry> = (0..SLOTS).map_while(|_| note(&dir, c"x")).collect();
        assert_eq!((all.len(), note(&dir, c"x").is_none()), (SLOTS, true));
    }
}
