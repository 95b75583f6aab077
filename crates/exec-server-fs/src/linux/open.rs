//! Opens regular files and reads from them.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{Errno, ReadWriteFlags, pread, preadv2};

use super::cached;
use super::metadata::Facts;
use super::resolve::{self, system};
use crate::request::{Blocking, FsError, Links, Nature};

/// A regular file that is open for reading.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
    facts: Facts,
}

/// Size of the pieces of a read: small enough for a core's cache, and a multiple of three, so that the base64 of the
/// pieces concatenates to the base64 of the whole.
const PIECE_BYTES: usize = 192 * 1024;

/// Pool of read buffers. It is shared, because few threads read at a time but hundreds may have read once.
static PIECES: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
const KEPT_PIECES: usize = 8;

/// A pooled buffer for one piece; returned to the pool on drop.
struct Piece {
    bytes: Vec<u8>,
}

impl Piece {
    fn with_room_for(len: usize) -> Self {
        let mut bytes = PIECES.lock().expect("no holder panics").pop().unwrap_or_default();
        let needed = len.min(PIECE_BYTES).max(bytes.len());
        bytes.resize(needed, 0);
        Self { bytes }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let mut pieces = PIECES.lock().expect("no holder panics");
        if pieces.len() < KEPT_PIECES {
            pieces.push(std::mem::take(&mut self.bytes));
        }
    }
}

pub const FOR_READING: OFlags =
    OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens a regular file; rejects pipes and devices without blocking on them.
pub fn open(path: &Path, links: Links) -> Result<OpenFile, FsError> {
    let fd = match links {
        Links::Follow => openat(CWD, path, FOR_READING, Mode::empty()).map_err(system)?,
        Links::Refuse => match resolve::parent_without_links(path) {
            Err(FsError::NoName) => {
                return Err(FsError::NotAFile(path.to_owned(), Nature::Directory));
            }
            Err(error) => return Err(error),
            Ok((dir, name)) => {
                openat(dir, name, FOR_READING | OFlags::NOFOLLOW, Mode::empty()).map_err(system)?
            }
        },
    };
    let file = OpenFile::new(fd)?;
    if !file.facts.is_regular() {
        return Err(FsError::NotAFile(path.to_owned(), file.facts.nature()));
    }
    cached::learn(&file.facts, path);
    Ok(file)
}

impl OpenFile {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        let facts = Facts::of_file(fd.as_fd())?;
        Ok(Self { file: fd.into(), facts })
    }

    /// Takes ownership of a descriptor; fails if it is not a regular file.
    pub fn checked(fd: OwnedFd) -> Result<Self, FsError> {
        let file = Self::new(fd)?;
        if file.facts.is_regular() {
            Ok(file)
        } else {
            Err(FsError::NotAFile(PathBuf::new(), file.facts.nature()))
        }
    }

    /// The underlying file.
    pub fn into_file(self) -> File {
        self.file
    }

    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The size when the file was opened.
    pub fn size(&self) -> u64 {
        self.facts.size()
    }

    /// The current version tag of the file.
    pub fn version_tag(&self) -> io::Result<String> {
        Ok(Facts::of_file(self.file.as_fd())?.version_tag())
    }

    /// Passes up to `len` bytes from `offset` on to `take`, in pieces whose lengths are multiples of three except for the
    /// last. Returns the number of bytes; fewer than `len` only at the end of the file.
    pub fn read_pieces(
        &self,
        offset: u64,
        len: u64,
        patience: Blocking,
        mut take: impl FnMut(&[u8]),
    ) -> io::Result<u64> {
        let mut piece = Piece::with_room_for(usize::try_from(len).unwrap_or(PIECE_BYTES));
        let mut done = 0;
        while done < len {
            let wanted = usize::try_from(len - done).unwrap_or(usize::MAX).min(PIECE_BYTES);
            let count = self.fill(&mut piece.bytes[..wanted], offset + done, patience)?;
            take(&piece.bytes[..count]);
            done += count as u64;
            if count < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// Reads until the buffer is full or the file ends.
    fn fill(&self, buffer: &mut [u8], offset: u64, patience: Blocking) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            let rest = &mut buffer[done..];
            // For preadv2, offset -1 means the current position, so offsets above i64::MAX are rejected.
            let at = offset.saturating_add(done as u64);
            if i64::try_from(at).is_err() {
                return Err(Errno::INVAL.into());
            }
            let count = match patience {
                Blocking::Disk => pread(&self.file, rest, at),
                Blocking::None => {
                    let mut rest = [IoSliceMut::new(rest)];
                    preadv2(&self.file, &mut rest, at, ReadWriteFlags::NOWAIT)
                }
            };
            match count {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) if patience == Blocking::None => {
                    return Err(Errno::AGAIN.into());
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(done)
    }
}
