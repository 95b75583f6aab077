//! Resolves a path one component at a time and records every link on the way.
//!
//! Each component is opened with `O_NOFOLLOW` relative to the previous one, so a concurrent rename can make the result
//! stale but never lead elsewhere. The paths of a sandbox mostly lie in the same directories, which stay open from one
//! walk to the next.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, Stat, fstat, fstatfs, openat, readlinkat};
use rustix::io::Errno;

use super::mounts::HERE;

/// The kernel's limit of followed links.
const MAX_LINKS: usize = 40;

/// Device and inode.
pub type Identity = (u64, u64);

/// The result of a walk.
#[derive(Debug)]
pub struct Walk {
    /// Without links; up to the last existing component.
    pub path: PathBuf,
    pub end: End,
    /// In the order of resolution.
    pub links: Vec<Link>,
}

#[derive(Debug)]
pub enum End {
    Found(Found),
    /// The path does not exist, or the links form a loop.
    Missing,
    /// The directory at `path` is not searchable.
    Hidden,
    /// A magic link of procfs, whose target depends on the process.
    Magic,
}

#[derive(Debug)]
pub struct Found {
    pub fd: OwnedFd,
    pub identity: Identity,
    pub is_directory: bool,
}

#[derive(Debug)]
pub struct Link {
    /// Its own path, without links.
    pub at: PathBuf,
    pub text: PathBuf,
    pub owner: u32,
    /// The directories around it, outermost first.
    pub inside: Vec<Identity>,
    /// Whether its directory is sticky and world-writable.
    pub in_shared_directory: bool,
}

/// The components of an absolute, normalised path.
pub fn names(path: &Path) -> io::Result<Vec<&OsStr>> {
    let mut components = path.components();
    if components.next() != Some(Component::RootDir) {
        return Err(Errno::INVAL.into());
    }
    components
        .map(|component| match component {
            Component::Normal(name) => Ok(name),
            _ => Err(Errno::INVAL.into()),
        })
        .collect()
}

/// Resolves one path after another.
pub struct Walker {
    open: OpenPath,
}

impl Walker {
    /// Begins at a root, which no path leaves.
    pub fn new(root: &OwnedFd) -> io::Result<Self> {
        Ok(Self { open: OpenPath::begin(root)? })
    }

    /// Resolves an absolute path.
    pub fn walk(&mut self, path: &Path) -> io::Result<Walk> {
        let names = names(path)?;
        let open = &mut self.open;
        let known = open.keep_common(&names);
        let mut ahead: Vec<OsString> =
            names[known..].iter().rev().map(|name| name.to_os_string()).collect();
        let mut links = Vec::new();
        while let Some(name) = ahead.pop() {
            if name == ".." {
                if !open.last().is_directory() {
                    return Ok(open.stop(End::Missing, links));
                }
                open.leave();
                continue;
            }
            let link = match open.enter(&name)? {
                Entered::Deeper => continue,
                Entered::Link(link) if links.len() < MAX_LINKS => link,
                Entered::Link(_) | Entered::Missing => return Ok(open.stop(End::Missing, links)),
                Entered::Hidden => return Ok(open.stop(End::Hidden, links)),
                Entered::Magic => return Ok(open.stop(End::Magic, links)),
            };
            if link.text.is_absolute() {
                open.return_to_root();
            }
            ahead.extend(link.text.components().rev().filter_map(|component| match component {
                Component::Normal(name) => Some(name.to_os_string()),
                Component::ParentDir => Some("..".into()),
                _ => None,
            }));
            links.push(link);
        }
        let path = open.path();
        Ok(Walk { path, end: End::Found(open.take_last()?), links })
    }

    /// The identity of what is at a path, if anything is.
    pub fn identity_at(&mut self, path: &Path) -> io::Result<Option<Identity>> {
        match self.walk(path)?.end {
            End::Found(found) => Ok(Some(found.identity)),
            _ => Ok(None),
        }
    }
}

/// The open directories from the root to the current component.
struct OpenPath {
    steps: Vec<Step>,
}

struct Step {
    name: OsString,
    fd: OwnedFd,
    stat: Stat,
}

enum Entered {
    Deeper,
    Link(Link),
    Missing,
    Hidden,
    Magic,
}

impl OpenPath {
    fn begin(root: &OwnedFd) -> io::Result<Self> {
        let fd = root.try_clone()?;
        let stat = fstat(&fd)?;
        Ok(Self { steps: vec![Step { name: OsString::new(), fd, stat }] })
    }

    /// Leaves all but the directories that the path to these names begins with; returns their number. The last name is
    /// always entered again.
    fn keep_common(&mut self, names: &[&OsStr]) -> usize {
        let parents = &names[..names.len().saturating_sub(1)];
        let open = &self.steps[1..];
        let same = open.iter().zip(parents).take_while(|(step, name)| step.name == **name);
        let known = same.count();
        self.steps.truncate(1 + known);
        known
    }

    /// Gives the last component away; the directories before it stay open.
    fn take_last(&mut self) -> io::Result<Found> {
        let last = self.last();
        let (is_directory, identity) = (last.is_directory(), last.identity());
        let fd = match self.steps.len() {
            1 => last.fd.try_clone()?,
            _ => self.steps.pop().expect("the root is never left").fd,
        };
        Ok(Found { fd, identity, is_directory })
    }

    fn last(&self) -> &Step {
        self.steps.last().expect("the root is never left")
    }

    fn path(&self) -> PathBuf {
        Path::new("/").join(self.steps[1..].iter().map(|step| &step.name).collect::<PathBuf>())
    }

    fn enter(&mut self, name: &OsStr) -> io::Result<Entered> {
        let dir = self.last();
        let fd = match openat(&dir.fd, name, HERE, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => return Ok(Entered::Missing),
            Err(Errno::ACCESS) => return Ok(Entered::Hidden),
            Err(other) => return Err(other.into()),
        };
        let stat = fstat(&fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            self.steps.push(Step { name: name.to_os_string(), fd, stat });
            return Ok(Entered::Deeper);
        }
        if fstatfs(&fd)?.f_type == libc::PROC_SUPER_MAGIC {
            return Ok(Entered::Magic);
        }
        let text = readlinkat(&fd, c"", Vec::new())?.into_bytes();
        if text.is_empty() {
            return Ok(Entered::Missing);
        }
        const SHARED: u32 = libc::S_ISVTX | libc::S_IWOTH;
        Ok(Entered::Link(Link {
            at: self.path().join(name),
            text: OsString::from_vec(text).into(),
            owner: stat.st_uid,
            inside: self.steps.iter().map(Step::identity).collect(),
            in_shared_directory: self.last().stat.st_mode & SHARED == SHARED,
        }))
    }

    fn leave(&mut self) {
        self.steps.truncate(1.max(self.steps.len() - 1));
    }

    fn return_to_root(&mut self) {
        self.steps.truncate(1);
    }

    fn stop(&self, end: End, links: Vec<Link>) -> Walk {
        Walk { path: self.path(), end, links }
    }
}

impl Step {
    fn identity(&self) -> Identity {
        (self.stat.st_dev, self.stat.st_ino)
    }

    fn is_directory(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::Directory
    }
}

/// The identity of what is at a descriptor.
pub fn identity(fd: impl AsFd) -> rustix::io::Result<Identity> {
    let stat = fstat(fd)?;
    Ok((stat.st_dev, stat.st_ino))
}
