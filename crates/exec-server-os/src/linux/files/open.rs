//! Files open for reading.

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use super::cached;
use super::metadata::Facts;
use super::resolve::{self, system};
use crate::files::{FsError, Links};

/// A regular file that is open for reading.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    facts: Facts,
}

/// What a read may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// Whatever it takes.
    Disk,
    /// Nothing: only what is in memory.
    None,
}

/// Reads are handed on in pieces of this size: small enough to stay in the cache of a core, and a multiple of three, so
/// that the base64 of the pieces is the base64 of the whole.
const PIECE_BYTES: usize = 192 * 1024;

pub const FOR_READING: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens a regular file; a pipe or a device is refused without waiting for it.
pub fn open(path: &Path, links: Links) -> Result<OpenFile, FsError> {
    let fd = match links {
        Links::Follow => openat(CWD, path, FOR_READING, Mode::empty()).map_err(system)?,
        Links::Refuse => match resolve::parent_without_links(path) {
            Err(FsError::NoName) => return Err(FsError::NotAFile(path.to_owned())),
            Err(error) => return Err(error),
            Ok((dir, name)) => {
                openat(dir, name, FOR_READING | OFlags::NOFOLLOW, Mode::empty()).map_err(system)?
            }
        },
    };
    let file = OpenFile::new(fd)?;
    if !file.facts.is_regular() {
        return Err(FsError::NotAFile(path.to_owned()));
    }
    cached::learn(&file.facts, path);
    Ok(file)
}

impl OpenFile {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        let facts = Facts::of_file(fd.as_fd())?;
        Ok(Self { file: fd.into(), facts })
    }

    /// Takes over a descriptor of a regular file.
    pub(crate) fn checked(fd: OwnedFd) -> Result<Self, FsError> {
        let file = Self::new(fd)?;
        if file.facts.is_regular() { Ok(file) } else { Err(FsError::NotAFile(PathBuf::new())) }
    }

    /// The file itself.
    pub(crate) fn into_file(self) -> File {
        self.file
    }

    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Its size when it was opened.
    pub fn size(&self) -> u64 {
        self.facts.size()
    }

    /// The version of the file as it is now.
    pub fn version_tag(&self) -> io::Result<String> {
        Ok(Facts::of_file(self.file.as_fd())?.version_tag())
    }

    /// Hands up to `len` bytes from `offset` on to `take`, in pieces whose lengths are multiples of three except for the
    /// last, and returns how many there were; fewer than `len` only at the end of the file.
    pub fn read_pieces(
        &self,
        offset: u64,
        len: u64,
        patience: Patience,
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<u64> {
        thread_local! {
            static PIECE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
        }
        PIECE.with_borrow_mut(|piece| {
            piece.resize(PIECE_BYTES, 0);
            let mut done = 0;
            while done < len {
                let wanted = usize::try_from(len - done).unwrap_or(usize::MAX).min(PIECE_BYTES);
                let count = self.fill(&mut piece[..wanted], offset + done, patience)?;
                take(&piece[..count]);
                done += count as u64;
                if count < wanted {
                    break;
                }
            }
            Ok(done)
        })
    }

    /// Reads until the buffer is full or the file ends.
    fn fill(&self, buffer: &mut [u8], offset: u64, patience: Patience) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            // The largest offset of all would mean the place where the descriptor stands.
            let at = offset.saturating_add(done as u64);
            if i64::try_from(at).is_err() {
                return Err(Errno::INVAL.into());
            }
            let count = match patience {
                Patience::Disk => pread(&self.file, rest, at),
                Patience::None => {
                    let mut rest = [IoSliceMut::new(rest)];
                    preadv2(&self.file, &mut rest, at, ReadWriteFlags::NOWAIT)
                }
            };
            match count {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) if patience == Patience::None => {
                    return Err(Errno::AGAIN.into());
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(done)
    }
}
