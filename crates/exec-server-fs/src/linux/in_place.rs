//! Overwrites a file in place, where its inode must be kept.

use std::fs::File;
use std::io::{self, Write};

use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use rustix::io::Errno;

use super::copy_bytes;
use super::resolve::system;
use crate::request::FsError;

/// Copies the content of `new` into `old`; allocates the space first, so that a full disk leaves `old` unchanged.
pub fn copy(new: &File, old: &File) -> Result<(), FsError> {
    let size = new.metadata()?.len();
    if size > 0 {
        match fallocate(old, FallocateFlags::KEEP_SIZE, 0, size) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) => {}
            Err(errno) => return Err(system(errno)),
        }
    }
    copy_bytes::copy(new, old)?;
    ftruncate(old, size).map_err(system)
}

/// Writes at the current position of the descriptor.
pub fn write_all(mut file: &File, data: &[u8]) -> Result<(), FsError> {
    let mut done = 0;
    while done < data.len() {
        match file.write(&data[done..]) {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) if done > 0 => {
                let (done, wanted) = (done as u64, data.len() as u64);
                return Err(FsError::ShortWrite { done, wanted, cause: source });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
