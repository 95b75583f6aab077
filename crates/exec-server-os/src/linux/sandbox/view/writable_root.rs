//! Judges a path that is to become writable, in the server, where owners can be told apart.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::mounts;
use super::walk::{End, walk};
use super::wishes::SoftGround;

/// The real path of a root that is to become writable.
///
/// Refuses (`ELOOP`) a path that leads through a link which a sandbox may have made, because it lies in one of the
/// roots that were handed out before, or which belongs to somebody who is neither us nor root.
pub fn check_writable_root(path: &Path, handed_out: &[PathBuf]) -> io::Result<PathBuf> {
    let host = mounts::open_host_root()?;
    let soft = SoftGround::new(&host, handed_out.to_vec())?;
    let me = rustix::process::geteuid().as_raw();
    let found = walk(&host, path)?;
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
