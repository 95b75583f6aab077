//! Answers requests from the kernel's caches, for callers that must not block on a disk or a network.
//!
//! A path is looked up with `RESOLVE_CACHED`, which fails where the kernel would have to call the file system. Opening can
//! still block on network and FUSE file systems, so only file systems that are known to be local are used. A request on a
//! blocking thread records them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::RwLock;

use rustix::fs::{CWD, FsWord, Mode, OFlags, ResolveFlags, openat2, readlinkat, statfs};
use rustix::io::Errno;

use super::metadata::{self, Facts, Identity, Times};
use super::open::{FOR_READING, OpenFile};
use super::resolve::system;
use crate::request::{Detail, FsError, FsReply, FsRequest, Links};

/// Executes a request if that cannot block; `None` if it must be executed by [`crate::perform`].
pub fn answer_from_cache(request: &FsRequest) -> Option<Result<FsReply, FsError>> {
    match request {
        FsRequest::Metadata { path, links: Links::Follow, detail } => metadata(path, *detail),
        FsRequest::Read { path, links: Links::Follow } => read(path),
        _ => None,
    }
}

fn metadata(path: &Path, detail: Detail) -> Option<Result<FsReply, FsError>> {
    let itself = match look(path, OFlags::PATH | OFlags::NOFOLLOW)? {
        Ok(itself) => itself,
        Err(error) => return Some(Err(error)),
    };
    let mut facts = local_facts(itself.as_fd())?;
    let is_link = facts.is_link();
    let mut link = None;
    if is_link {
        let target = match look(path, OFlags::PATH)? {
            Ok(target) => target,
            Err(error) => return Some(Err(error)),
        };
        facts = local_facts(target.as_fd())?;
        if detail == Detail::Full {
            link = Some(metadata::link_text(readlinkat(&itself, c"", Vec::new()).ok()?));
        }
    }
    let answer = metadata::answer(&facts, is_link, link, detail, Times::Since1970);
    Some(Ok(FsReply::Metadata(answer)))
}

fn read(path: &Path) -> Option<Result<FsReply, FsError>> {
    let looked_at = match look(path, OFlags::PATH)? {
        Ok(looked_at) => looked_at,
        Err(error) => return Some(Err(error)),
    };
    let facts = local_facts(looked_at.as_fd())?;
    if !facts.is_regular() {
        return None;
    }
    let file = OpenFile::new(look(path, FOR_READING)?.ok()?).ok()?;
    (file.facts().identity() == facts.identity()).then_some(Ok(FsReply::Opened(file)))
}

/// Identity of the file at a path, and of its target if it is a link; for detecting replacements.
pub type PathIdentity = (Identity, Option<Identity>);

/// The identity of the file at a path, if it exists; may block.
pub fn identity_of(path: &Path) -> Option<PathIdentity> {
    let own = Facts::of_link(path).ok()?;
    if !own.is_link() {
        learn(&own, path);
        return Some((own.identity(), None));
    }
    let target = Facts::of_path(path).ok();
    Some((own.identity(), target.map(|target| target.identity())))
}

/// Like [`identity_of`] without blocking; the outer `None` means that the answer is not cached.
pub fn identity_from_cache(path: &Path) -> Option<Option<PathIdentity>> {
    let Ok(own) = look(path, OFlags::PATH | OFlags::NOFOLLOW)? else { return Some(None) };
    let own = local_facts(own.as_fd())?;
    if !own.is_link() {
        return Some(Some((own.identity(), None)));
    }
    let target = match look(path, OFlags::PATH)? {
        Ok(target) => Some(local_facts(target.as_fd())?.identity()),
        Err(_) => None,
    };
    Some(Some((own.identity(), target)))
}

/// Opens a cached path; `None` if it is not cached. A missing path can be cached as well.
fn look(path: &Path, flags: OFlags) -> Option<Result<OwnedFd, FsError>> {
    match openat2(CWD, path, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::CACHED) {
        Ok(fd) => Some(Ok(fd)),
        Err(Errno::NOENT) => Some(Err(system(Errno::NOENT))),
        Err(_) => None,
    }
}

/// The cached metadata of a file, if it is on a known local file system.
fn local_facts(fd: BorrowedFd) -> Option<Facts> {
    let facts = Facts::of_file_from_cache(fd).ok()?;
    is_known_local(facts.identity().device).then_some(facts)
}

/// Devices of local file systems. After an unmount a device number may be reused for a remote file system, which at worst
/// makes a request block.
static LOCAL: RwLock<Vec<u64>> = RwLock::new(Vec::new());

/// Enough for the mounts that one server uses; requests on others run on blocking threads.
const MAX_KNOWN: usize = 64;

fn is_known_local(device: u64) -> bool {
    LOCAL.read().expect("no holder panics").contains(&device)
}

/// Records the file system of a file if it is local; may block.
pub fn learn(facts: &Facts, path: &Path) {
    let device = facts.identity().device;
    if is_known_local(device) || !statfs(path).is_ok_and(|found| is_local(found.f_type)) {
        return;
    }
    let mut local = LOCAL.write().expect("no holder panics");
    if local.len() < MAX_KNOWN && !local.contains(&device) {
        local.push(device);
    }
}

/// Whether the file system type is backed by this machine's own memory and disks.
fn is_local(kind: FsWord) -> bool {
    const EXT: FsWord = 0xef53;
    const XFS: FsWord = 0x5846_5342;
    const BTRFS: FsWord = 0x9123_683e;
    const TMPFS: FsWord = 0x0102_1994;
    const OVERLAY: FsWord = 0x794c_7630;
    const F2FS: FsWord = 0xf2f5_2010;
    const ZFS: FsWord = 0x2fc1_2fc1;
    matches!(kind, EXT | XFS | BTRFS | TMPFS | OVERLAY | F2FS | ZFS)
}
