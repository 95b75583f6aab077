//! Checks a path that is to become writable; runs in the server, which sees the real owners of links.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::mounts;
use super::resolved_rules::SandboxWritable;
use super::walk::{End, Walker};

/// Returns the real path of a root that is to become writable.
///
/// Refuses (`ELOOP`) a path through a link that a sandbox may have created, because the link is inside an earlier
/// writable root, or whose owner is neither this user nor root.
pub fn check_writable_root(path: &Path, handed_out: &[PathBuf]) -> io::Result<PathBuf> {
    let host = mounts::open_host_root()?;
    let mut walker = Walker::new(&host)?;
    let soft = SandboxWritable::new(&mut walker, handed_out.to_vec())?;
    let me = rustix::process::geteuid().as_raw();
    let found = walker.walk(path)?;
    let is_foreign = |owner| owner != me && owner != 0;
    if found.links.iter().any(|link| soft.encloses(link) || is_foreign(link.owner)) {
        return Err(Errno::LOOP.into());
    }
    match found.end {
        End::Found(_) => Ok(found.path),
        End::Missing => Err(Errno::NOENT.into()),
        End::Hidden => Err(Errno::ACCESS.into()),
        End::Magic => Err(Errno::LOOP.into()),
    }
}
