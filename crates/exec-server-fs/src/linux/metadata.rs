//! File metadata by `statx`.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use exec_server_os::users;
use exec_server_protocol::fs::{
    FileKind, FsGetMetadataResponse, FsReadLinkResponse, MetadataDetails,
};
use rustix::fs::{
    AtFlags, CWD, FileType, Stat, Statx, StatxAttributes, StatxFlags, StatxTimestamp, makedev,
    readlinkat, statx,
};

use super::cached;
use super::resolve::{self, system};
use crate::request::{Detail, FsError, Links, Nature};

/// The `statx` result of a file.
#[derive(Debug, Clone, Copy)]
pub struct Facts(Statx);

/// Identifies a file or directory independently of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    pub device: u64,
    pub inode: u64,
}

impl From<&Stat> for Identity {
    fn from(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

impl Facts {
    /// Of an open file.
    pub fn of_file(fd: BorrowedFd) -> io::Result<Self> {
        Ok(Self(statx(fd, c"", AtFlags::EMPTY_PATH, WANTED)?))
    }

    /// Of an open file, from cached attributes on a network file system.
    pub fn of_file_from_cache(fd: BorrowedFd) -> io::Result<Self> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        Ok(Self(statx(fd, c"", flags, WANTED)?))
    }

    /// Of a name; links are not followed.
    pub fn of_name(dir: BorrowedFd, name: &CStr) -> io::Result<Self> {
        Ok(Self(statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, WANTED)?))
    }

    /// Of a name; links are followed.
    pub fn of_target(dir: BorrowedFd, name: &CStr) -> io::Result<Self> {
        Ok(Self(statx(dir, name, AtFlags::empty(), WANTED)?))
    }

    /// Of a path; a link as the last component is not followed.
    pub fn of_link(path: &Path) -> io::Result<Self> {
        Ok(Self(statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, WANTED)?))
    }

    /// Of a path; links are followed.
    pub fn of_path(path: &Path) -> io::Result<Self> {
        Ok(Self(statx(CWD, path, AtFlags::empty(), WANTED)?))
    }

    pub fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.0.stx_mode.into())
    }

    pub fn is_regular(&self) -> bool {
        self.file_type() == FileType::RegularFile
    }

    /// The kind of a file that is not regular.
    pub fn nature(&self) -> Nature {
        if self.is_directory() { Nature::Directory } else { Nature::Special }
    }

    pub fn is_directory(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    pub fn is_link(&self) -> bool {
        self.file_type() == FileType::Symlink
    }

    pub fn identity(&self) -> Identity {
        let device = makedev(self.0.stx_dev_major, self.0.stx_dev_minor);
        Identity { device, inode: self.0.stx_ino }
    }

    pub fn size(&self) -> u64 {
        self.0.stx_size
    }

    pub fn links(&self) -> u32 {
        self.0.stx_nlink
    }

    /// The permission bits.
    pub fn mode(&self) -> u32 {
        u32::from(self.0.stx_mode) & 0o7777
    }

    /// Whether the append-only attribute is set.
    pub fn only_grows(&self) -> bool {
        self.0.stx_attributes.contains(StatxAttributes::APPEND)
    }

    pub fn owner(&self) -> (u32, u32) {
        (self.0.stx_uid, self.0.stx_gid)
    }

    /// Changes with the content or the attributes, within the clock resolution of the file system.
    pub fn version_tag(&self) -> String {
        let Statx { stx_ino, stx_size, stx_mtime, stx_ctime, .. } = self.0;
        let (modified, changed) = (nanoseconds(stx_mtime), nanoseconds(stx_ctime));
        format!("{stx_ino:x}-{stx_size:x}-{modified:x}-{changed:x}")
    }

    fn describe(&self, is_symlink: bool, times: Times) -> FsGetMetadataResponse {
        let has_birth = self.0.stx_mask & StatxFlags::BTIME.bits() != 0;
        FsGetMetadataResponse {
            is_directory: self.is_directory(),
            is_file: self.is_regular(),
            is_symlink,
            size: self.size(),
            created_at_ms: if has_birth { times.show(self.0.stx_btime) } else { 0 },
            modified_at_ms: times.show(self.0.stx_mtime),
            details: None,
        }
    }

    fn details(&self, link: Option<FsReadLinkResponse>) -> MetadataDetails {
        let (uid, gid) = self.owner();
        let (link_target, link_target_base64) =
            link.map_or((None, None), |link| (Some(link.target), link.target_base64));
        MetadataDetails {
            kind: kind(self.file_type()),
            mode: self.mode(),
            uid,
            gid,
            owner_name: users::user_name(uid),
            group_name: users::group_name(gid),
            nlink: self.links().into(),
            inode: self.0.stx_ino,
            version_tag: self.version_tag(),
            link_target,
            link_target_base64,
        }
    }
}

/// Answers `fs/getMetadata`.
pub fn metadata(
    path: &Path,
    links: Links,
    detail: Detail,
) -> Result<FsGetMetadataResponse, FsError> {
    match links {
        Links::Follow => {
            let itself = Facts::of_link(path)?;
            let (target, link) = if itself.is_link() {
                let target = Facts::of_path(path)?;
                let link = (detail == Detail::Full).then(|| read_link(path)).transpose()?;
                (target, link)
            } else {
                (itself, None)
            };
            cached::learn(&target, path);
            Ok(answer(&target, itself.is_link(), link, detail, Times::Since1970))
        }
        Links::Refuse => without_links(path, detail),
    }
}

/// Builds the response from known facts.
pub fn answer(
    facts: &Facts,
    is_symlink: bool,
    link: Option<FsReadLinkResponse>,
    detail: Detail,
    times: Times,
) -> FsGetMetadataResponse {
    let mut response = facts.describe(is_symlink, times);
    if detail == Detail::Full {
        response.details = Some(facts.details(link));
    }
    response
}

fn without_links(path: &Path, detail: Detail) -> Result<FsGetMetadataResponse, FsError> {
    let (dir, name) = match resolve::parent_without_links(path) {
        Err(FsError::NoName) => (resolve::root()?, c".".to_owned()),
        other => other?,
    };
    let facts = Facts::of_name(dir.as_fd(), &name)?;
    match (facts.is_link(), detail) {
        (true, Detail::Basic) => Err(FsError::IsLink),
        (true, Detail::Full) => {
            let link = link_text(readlinkat(&dir, name.as_c_str(), Vec::new()).map_err(system)?);
            Ok(answer(&facts, true, Some(link), detail, Times::Any))
        }
        (false, _) => Ok(answer(&facts, false, None, detail, Times::Any)),
    }
}

/// Full metadata of a directory entry: of the target of a link, or of the link itself if it is dangling.
pub fn of_entry(dir: BorrowedFd, name: &CStr) -> io::Result<FsGetMetadataResponse> {
    let itself = Facts::of_name(dir, name)?;
    if !itself.is_link() {
        return Ok(answer(&itself, false, None, Detail::Full, Times::Since1970));
    }
    let link = link_text(readlinkat(dir, name, Vec::new())?);
    let facts = Facts::of_target(dir, name).unwrap_or(itself);
    Ok(answer(&facts, true, Some(link), Detail::Full, Times::Since1970))
}

/// Answers `fs/readLink`.
pub fn read_link(path: &Path) -> Result<FsReadLinkResponse, FsError> {
    Ok(link_text(readlinkat(CWD, path, Vec::new()).map_err(system)?))
}

/// The target of a link as text, plus its exact bytes if it is not UTF-8.
pub fn link_text(text: std::ffi::CString) -> FsReadLinkResponse {
    match text.into_string() {
        Ok(target) => FsReadLinkResponse { target, target_base64: None },
        Err(error) => {
            let bytes = error.into_cstring().into_bytes();
            let target = String::from_utf8_lossy(&bytes).into_owned();
            FsReadLinkResponse { target, target_base64: Some(bytes.into()) }
        }
    }
}

/// Representation of times before 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// Clamped to 0, as the base protocol does when links are followed.
    Since1970,
    /// As negative numbers.
    Any,
}

impl Times {
    fn show(self, time: StatxTimestamp) -> i64 {
        let ms = time.tv_sec.saturating_mul(1000).saturating_add((time.tv_nsec / 1_000_000).into());
        if self == Self::Since1970 { ms.max(0) } else { ms }
    }
}

fn nanoseconds(time: StatxTimestamp) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

fn kind(file_type: FileType) -> FileKind {
    match file_type {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharacterDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => FileKind::Unknown,
    }
}
