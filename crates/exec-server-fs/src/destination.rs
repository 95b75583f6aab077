//! Local destination of a copy from a server; the same API on every platform.
//!
//! | type | use |
//! |---|---|
//! | [`Beneath`] | changes below a directory, by names that the server supplies |
//! | [`Staged`] | new content for one of these names, published when it is complete |
//! | [`Aside`] | temporary place of that content until it is published |
//! | [`is_stream`], [`open_stream`], [`descriptor_of`] | pipes and devices, which are written to and never replaced |

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

#[cfg(not(all(target_os = "linux", not(exec_server_unsupported))))]
pub use by_path::{Aside, Beneath, Staged, is_stream, open_stream};

#[cfg(all(target_os = "linux", not(exec_server_unsupported)))]
pub use crate::linux::destination::{Aside, Beneath, Staged, is_stream, open_stream};

#[cfg(any(test, not(all(target_os = "linux", not(exec_server_unsupported)))))]
mod by_path;

/// Permission bits and modification time that a copy takes over from its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// `None` leaves the default mode of new files.
    pub mode: Option<u32>,
    /// Modification time of the source.
    pub modified: SystemTime,
}

/// The number of the open descriptor that a path such as `/dev/stdout` stands for, also through links.
pub fn descriptor_of(path: &Path) -> Option<u32> {
    // The kernel's own limit on links in one path.
    const MAX_LINKS: usize = 40;
    let own = format!("/proc/{}/fd", std::process::id());
    let folders = ["/dev/fd", "/proc/self/fd", "/proc/thread-self/fd", &own];
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        // Canonicalizing the parent also covers relative paths that reach the directory through a link or `..`.
        if let Some(parent) = path.parent().and_then(|parent| parent.canonicalize().ok())
            && let Some(name) = path.file_name()
        {
            let is_folder = |folder: &&str| {
                Path::new(folder).canonicalize().is_ok_and(|folder| folder == parent)
            };
            if folders.iter().any(is_folder) {
                return name.to_str()?.parse().ok();
            }
        }
        let target = std::fs::read_link(&path).ok()?;
        path = path.parent().map(PathBuf::from).unwrap_or_default().join(target);
    }
    None
}

/// Checks that a name is one component, as a second check behind the callers.
pub(crate) fn check_name(name: &std::ffi::OsStr) -> io::Result<()> {
    let bytes = name.as_encoded_bytes();
    let is_component =
        !matches!(bytes, b"" | b"." | b"..") && !bytes.iter().any(|byte| matches!(byte, b'/' | 0));
    // A backslash is a separator on some systems only.
    let has_separator = bytes.iter().any(|byte| std::path::is_separator(char::from(*byte)));
    if is_component && !has_separator {
        return Ok(());
    }
    let text = format!("{name:?} is not the name of a file");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// The error for an existing entry that new content must not replace.
pub(crate) fn in_the_way(what: &str) -> io::Error {
    let text = format!("{what} with this name is in the way, and is left as it is");
    io::Error::new(io::ErrorKind::AlreadyExists, text)
}

/// A name beside `name` that no other copy uses.
pub(crate) fn aside_name(name: &std::ffi::OsStr, token: &str) -> std::ffi::OsString {
    let mut aside = std::ffi::OsString::from(".");
    // A name is limited to 255 bytes, and the prefix and suffix make this one longer than the file's.
    aside.push(if name.len() <= 200 { name } else { std::ffi::OsStr::new("long") });
    aside.push(format!(".{token}.part"));
    aside
}

#[cfg(test)]
mod tests;
