//! Attributes that a new file inherits from the file it replaces: owner, xattrs, ACLs, mode.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{
    Gid, Mode, Uid, XattrFlags, fchmod, fchown, fgetxattr, flistxattr, fremovexattr, fsetxattr,
};
use rustix::io::Errno;

use super::metadata::Facts;

/// Copies the attributes of `old` to `new`; on an error the old file must be written in place instead.
pub fn take_over(new: BorrowedFd, old: BorrowedFd, facts: &Facts) -> io::Result<()> {
    let mine = Facts::of_file(new)?;
    let (uid, gid) = facts.owner();
    if mine.owner() != (uid, gid) {
        fchown(new, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    take_over_extended(new, old)?;
    set_mode(new, facts.mode())
}

/// Sets permission bits; like a write, it clears setuid and setgid unless the caller is root.
pub fn set_mode(new: BorrowedFd, mode: u32) -> io::Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    let mode = if is_root { mode } else { mode & !0o6000 };
    Ok(fchmod(new, Mode::from_raw_mode(mode))?)
}

fn take_over_extended(new: BorrowedFd, old: BorrowedFd) -> io::Result<()> {
    let (theirs, mine) = (extended(old)?, extended(new)?);
    for (name, value) in &theirs {
        if mine.get(name) != Some(value) {
            fsetxattr(new, name.as_c_str(), value, XattrFlags::empty())?;
        }
    }
    // Attributes that the new file inherited from the directory, such as default ACLs, and the old one lacks.
    for name in mine.keys().filter(|name| !theirs.contains_key(*name)) {
        if !name.to_bytes().starts_with(b"security.") {
            fremovexattr(new, name.as_c_str())?;
        }
    }
    Ok(())
}

fn extended(file: BorrowedFd) -> io::Result<BTreeMap<CString, Vec<u8>>> {
    let mut names = Vec::new();
    match grow(&mut names, |buffer| flistxattr(file, buffer)) {
        Err(Errno::OPNOTSUPP) => return Ok(BTreeMap::new()),
        other => other?,
    }
    let mut all = BTreeMap::new();
    for name in names.split_inclusive(|byte| *byte == 0) {
        let name = CStr::from_bytes_with_nul(name).expect("the kernel ends every name with NUL");
        // Not copied: the kernel also drops file capabilities on every write, even by root.
        if name == c"security.capability" {
            continue;
        }
        let mut value = Vec::new();
        match grow(&mut value, |buffer| fgetxattr(file, name, buffer)) {
            // The attribute was removed concurrently.
            Err(Errno::NODATA) => {}
            other => {
                other?;
                all.insert(name.to_owned(), value);
            }
        }
    }
    Ok(all)
}

/// Calls `read` with growing buffers until the result fits; the kernel limits its size.
fn grow(
    buffer: &mut Vec<u8>,
    mut read: impl FnMut(&mut [u8]) -> rustix::io::Result<usize>,
) -> rustix::io::Result<()> {
    buffer.resize(256, 0);
    loop {
        match read(buffer) {
            Err(Errno::RANGE) => buffer.resize(buffer.len() * 2, 0),
            other => {
                buffer.truncate(other?);
                return Ok(());
            }
        }
    }
}
