//! Copies file content with the cheapest method of the file system.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

use rustix::fs::{copy_file_range, ioctl_ficlone};
use rustix::io::Errno;

/// Bytes per `copy_file_range` call: large, but each call stays interruptible.
const STEP_BYTES: usize = 1 << 30;
/// Bytes per step of a copy through user memory.
const BUFFER_BYTES: usize = 256 * 1024;

/// Copies the whole content of `source` to the start of `target`.
pub fn copy(source: &File, target: &File) -> io::Result<()> {
    if ioctl_ficlone(target, source).is_ok() {
        return Ok(());
    }
    let mut done = 0;
    loop {
        let (mut from, mut to) = (done, done);
        match copy_file_range(source, Some(&mut from), target, Some(&mut to), STEP_BYTES) {
            // Virtual files such as those in /proc report a size of zero.
            Ok(0) if done == 0 => return copy_through_memory(source, target, done),
            Ok(0) => return Ok(()),
            Ok(count) => done += count as u64,
            Err(Errno::INTR) => {}
            Err(
                Errno::XDEV
                | Errno::NOSYS
                | Errno::OPNOTSUPP
                | Errno::INVAL
                | Errno::PERM
                | Errno::IO,
            ) => {
                return copy_through_memory(source, target, done);
            }
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn copy_through_memory(source: &File, target: &File, mut offset: u64) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match source.read_at(&mut buffer, offset) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                match target.write_all_at(&buffer[..count], offset) {
                    // Some virtual files can be written at the current position only.
                    Err(error) if error.raw_os_error() == Some(libc::ESPIPE) => {
                        (&*target).write_all(&buffer[..count])?;
                    }
                    other => other?,
                }
                offset += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
