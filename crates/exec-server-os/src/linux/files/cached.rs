//! Answers that the kernel has in memory, for callers that must not wait for a disk or a network.
//!
//! A path is looked up with `RESOLVE_CACHED`, which gives up where the kernel would have to ask a file system. Opening
//! can block all the same on file systems that ask somebody, so only those that are known to be local are used; they
//! become known when a request on a thread that may block has seen them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::RwLock;

use rustix::fs::{CWD, FsWord, Mode, OFlags, ResolveFlags, openat2, readlinkat, statfs};
use rustix::io::Errno;

use super::metadata::{self, Facts, Identity, Times};
use super::open::{FOR_READING, OpenFile};
use super::resolve::system;
use crate::files::{Detail, FsError, FsReply, FsRequest, Links};

/// Carries out a request if that needs nothing but memory; nothing is done if there is no answer.
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

/// Which file a path names, and which one it leads to if it is a link; for telling whether that has changed.
pub type PathIdentity = (Identity, Option<Identity>);

/// Which file a path names, if anything; may block.
pub fn identity_of(path: &Path) -> Option<PathIdentity> {
    let own = Facts::of_link(path).ok()?;
    if !own.is_link() {
        learn(&own, path);
        return Some((own.identity(), None));
    }
    let target = Facts::of_path(path).ok();
    Some((own.identity(), target.map(|target| target.identity())))
}

/// The same without waiting; nothing if that is not possible.
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

/// Opens what is in memory; that a path is missing is known there, too.
fn look(path: &Path, flags: OFlags) -> Option<Result<OwnedFd, FsError>> {
    match openat2(CWD, path, flags | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::CACHED) {
        Ok(fd) => Some(Ok(fd)),
        Err(Errno::NOENT) => Some(Err(system(Errno::NOENT))),
        Err(_) => None,
    }
}

/// What is known about a file on a local file system.
fn local_facts(fd: BorrowedFd) -> Option<Facts> {
    let facts = Facts::of_file_from_cache(fd).ok()?;
    is_known_local(facts.identity().device).then_some(facts)
}

/// Devices of local file systems. A number may be used again for another file system after an unmount; the worst that
/// comes of it is a wait.
static LOCAL: RwLock<Vec<u64>> = RwLock::new(Vec::new());

/// Enough for the mounts that one server works on; the rest is served by threads.
const MAX_KNOWN: usize = 64;

fn is_known_local(device: u64) -> bool {
    LOCAL.read().expect("no holder panics").contains(&device)
}

/// Remembers the file system that a file was found on if it is a local one; may block.
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

/// File systems that answer from this machine's own memory and disks.
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
