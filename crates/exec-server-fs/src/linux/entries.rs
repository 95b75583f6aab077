//! Reads directory entries in batches, with their types and without a stat of each.

use std::ffi::CStr;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

/// Reads directories one after another with the same buffer.
pub struct EntryReader {
    buffer: Vec<u8>,
    /// Names that were read ahead, each with a zero.
    ahead: Vec<u8>,
    /// The types of these names, and their bytes with the zero.
    kinds: Vec<(FileType, usize)>,
}

/// About 1600 entries of usual length per system call; small enough for the allocator to keep the block.
const BUFFER_BYTES: usize = 64 * 1024;
/// Names that are read ahead; larger directories are rare.
const MAX_AHEAD: usize = 2000;

impl EntryReader {
    /// Allocates the buffer.
    pub fn new() -> Self {
        Self { buffer: Vec::with_capacity(BUFFER_BYTES), ahead: Vec::new(), kinds: Vec::new() }
    }

    /// Calls `visit` for every name except `.` and `..`, from the current position of `dir`, in file system order.
    ///
    /// The type is the one in the directory entry and may be [`FileType::Unknown`]: see [`kind`].
    pub fn read<E: From<io::Error>>(
        &mut self,
        dir: BorrowedFd,
        mut visit: impl FnMut(&CStr, FileType) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut entries = RawDir::new(dir, self.buffer.spare_capacity_mut());
        read_on(&mut entries, |name, kind| visit(name, kind).map(|()| true)).map(drop)
    }

    /// Reads names ahead of their visit, so that the caller can look for some of them first.
    pub fn read_ahead<'a>(&'a mut self, dir: BorrowedFd<'a>) -> NamesAhead<'a> {
        let Self { buffer, ahead, kinds } = self;
        ahead.clear();
        kinds.clear();
        let mut entries = RawDir::new(dir, buffer.spare_capacity_mut());
        let read = read_on(&mut entries, |name, kind| {
            let name = name.to_bytes_with_nul();
            ahead.extend_from_slice(name);
            kinds.push((kind, name.len()));
            Ok(kinds.len() < MAX_AHEAD)
        });
        let rest = match read {
            Ok(true) => Rest::More,
            Ok(false) => Rest::Nothing,
            Err(error) => Rest::Failed(error),
        };
        NamesAhead { entries, ahead, kinds, rest }
    }
}

/// A directory whose first names were read.
pub struct NamesAhead<'a> {
    entries: RawDir<'a, BorrowedFd<'a>>,
    ahead: &'a [u8],
    kinds: &'a [(FileType, usize)],
    rest: Rest,
}

/// What follows the names that were read ahead.
enum Rest {
    Nothing,
    More,
    Failed(io::Error),
}

impl NamesAhead<'_> {
    /// Whether the directory can have a name of this kind; certain only where it is small.
    pub fn may_have(&self, is_wanted: impl Fn(&[u8]) -> bool) -> bool {
        if !matches!(self.rest, Rest::Nothing) {
            return true;
        }
        let mut ahead = self.ahead;
        self.kinds.iter().any(|(_, len)| {
            let (name, rest) = ahead.split_at(*len);
            ahead = rest;
            is_wanted(&name[..len - 1])
        })
    }

    /// Visits every name, as [`EntryReader::read`] does.
    pub fn visit<E: From<io::Error>>(
        mut self,
        mut visit: impl FnMut(&CStr, FileType) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut ahead = self.ahead;
        for (kind, len) in self.kinds {
            let (name, rest) = ahead.split_at(*len);
            ahead = rest;
            visit(CStr::from_bytes_with_nul(name).expect("a name ends with its zero"), *kind)?;
        }
        match self.rest {
            Rest::Nothing => Ok(()),
            Rest::Failed(error) => Err(error.into()),
            Rest::More => {
                read_on(&mut self.entries, |name, kind| visit(name, kind).map(|()| true)).map(drop)
            }
        }
    }
}

/// Reads entries except `.` and `..` until `visit` returns false; whether that was before the end.
fn read_on<E: From<io::Error>>(
    entries: &mut RawDir<BorrowedFd>,
    mut visit: impl FnMut(&CStr, FileType) -> Result<bool, E>,
) -> Result<bool, E> {
    while let Some(entry) = entries.next() {
        match entry {
            Ok(entry) if is_itself_or_parent(entry.file_name()) => {}
            Ok(entry) => {
                if !visit(entry.file_name(), entry.file_type())? {
                    return Ok(true);
                }
            }
            Err(Errno::INTR) => {}
            // The directory was removed after it was opened, so it has no more names.
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
    Ok(false)
}

/// Opens a directory for reading its names; links are followed.
pub fn open(path: &Path) -> io::Result<OwnedFd> {
    open_at(CWD, path, OFlags::empty())
}

/// Opens a directory for reading its names, relative to `dir`.
pub fn open_at(
    dir: BorrowedFd,
    path: impl rustix::path::Arg,
    extra: OFlags,
) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(dir, path, flags | extra, Mode::empty())?)
}

/// The type of a name: `reported`, or by a stat if that is unknown; links are not followed.
pub fn kind(dir: BorrowedFd, name: &CStr, reported: FileType) -> io::Result<FileType> {
    match reported {
        FileType::Unknown => {
            Ok(kind_in(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?))
        }
        known => Ok(known),
    }
}

/// The file type in a stat.
pub fn kind_in(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn is_itself_or_parent(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::CString;
    use std::fs;
    use std::os::fd::AsFd;

    use super::super::testing::in_each_place;
    use super::*;

    #[test]
    fn every_name_comes_once_with_its_kind_and_without_the_dots() {
        in_each_place(|place| {
            fs::write(place.join("file"), "").unwrap();
            fs::create_dir(place.join("directory")).unwrap();
            std::os::unix::fs::symlink("nowhere", place.join("link")).unwrap();
            let dir = open(place).unwrap();
            let names = names_of(&dir);
            let kinds: Vec<_> = names
                .iter()
                .map(|(name, reported)| {
                    (name.to_str().unwrap(), kind(dir.as_fd(), name, *reported).unwrap())
                })
                .collect();
            assert_eq!(
                kinds,
                [
                    ("directory", FileType::Directory),
                    ("file", FileType::RegularFile),
                    ("link", FileType::Symlink)
                ]
            );
        });
    }

    #[test]
    fn more_names_than_the_buffer_holds_are_all_read() {
        in_each_place(|place| {
            let wanted: Vec<String> = (0..1500).map(|i| format!("{i:0>60}")).collect();
            for name in &wanted {
                fs::write(place.join(name), "").unwrap();
            }
            let names = names_of(&open(place).unwrap());
            assert!(names.keys().map(|name| name.to_str().unwrap()).eq(wanted));
        });
    }

    #[test]
    fn names_that_are_read_ahead_are_visited_once_in_small_and_large_directories() {
        in_each_place(|place| {
            for (count, is_small) in [(10, true), (MAX_AHEAD + 100, false)] {
                let directory = place.join(count.to_string());
                fs::create_dir(&directory).unwrap();
                for number in 0..count {
                    fs::write(directory.join(number.to_string()), "").unwrap();
                }
                let dir = open(&directory).unwrap();
                let mut reader = EntryReader::new();
                let ahead = reader.read_ahead(dir.as_fd());
                assert!(ahead.may_have(|name| name == b"7"));
                // A name that is not among the first ones of a large directory may still follow.
                assert_eq!(ahead.may_have(|name| name == b"missing"), !is_small);
                let mut names = Vec::new();
                let outcome: io::Result<()> = ahead.visit(|name, _| {
                    names.push(name.to_str().unwrap().parse::<usize>().unwrap());
                    Ok(())
                });
                outcome.unwrap();
                names.sort_unstable();
                assert!(names.into_iter().eq(0..count));
            }
        });
    }

    #[test]
    fn an_unknown_kind_is_looked_up() {
        in_each_place(|place| {
            std::os::unix::fs::symlink("nowhere", place.join("link")).unwrap();
            let dir = open(place).unwrap();
            let found = kind(dir.as_fd(), c"link", FileType::Unknown).unwrap();
            assert_eq!(found, FileType::Symlink);
            let missing = kind(dir.as_fd(), c"missing", FileType::Unknown).unwrap_err();
            assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        });
    }

    #[test]
    fn a_directory_that_is_gone_has_no_names() {
        in_each_place(|place| {
            let gone = place.join("gone");
            fs::create_dir(&gone).unwrap();
            let dir = open(&gone).unwrap();
            fs::remove_dir(&gone).unwrap();
            assert!(names_of(&dir).is_empty());
        });
    }

    #[test]
    fn a_visitor_that_fails_ends_the_reading() {
        in_each_place(|place| {
            fs::write(place.join("a"), "").unwrap();
            fs::write(place.join("b"), "").unwrap();
            let mut seen = 0;
            let outcome = EntryReader::new().read(open(place).unwrap().as_fd(), |_, _| {
                seen += 1;
                Err(io::Error::other("enough"))
            });
            assert_eq!(outcome.unwrap_err().to_string(), "enough");
            assert_eq!(seen, 1);
        });
    }

    fn names_of(dir: &OwnedFd) -> BTreeMap<CString, FileType> {
        let mut names = BTreeMap::new();
        let outcome: io::Result<()> = EntryReader::new().read(dir.as_fd(), |name, kind| {
            assert!(names.insert(name.to_owned(), kind).is_none(), "{name:?} came twice");
            Ok(())
        });
        outcome.unwrap();
        names
    }
}
