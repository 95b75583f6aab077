//! Lists a directory tree breadth-first, within limits on depth, number and bytes.
//!
//! When links are followed, a directory with several names is entered under only one of them: the one nearest to the root,
//! so that the depth limit hides no content that another name would show; on the same level, a real directory before a
//! link, and then the first in order. This also ends every cycle.
//!
//! Directories are opened from the root's descriptor, so at most two are open at a time.

use std::collections::HashSet;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use exec_server_protocol::fs::{FsWalkEntry, FsWalkError, FsWalkOptions, FsWalkResponse, WalkKind};
use exec_server_protocol::limits::{
    MAX_WALK_BYTES, MAX_WALK_DEPTH, MAX_WALK_DIRECTORIES, MAX_WALK_ENTRIES, WALK_ITEM_BYTES,
};
use exec_server_protocol::path_uri::PathUri;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};

use super::entries::{self, EntryReader};
use super::first_names::{FirstNames, Name};
use super::metadata::Identity;
use crate::request::FsError;

/// Lists the tree below `path`; empty if that is no directory.
pub fn walk(path: &Path, options: &FsWalkOptions) -> Result<FsWalkResponse, FsError> {
    check_limits(options)?;
    let Some(mut walk) = Walk::begin(path, *options)? else {
        return Ok(FsWalkResponse::default());
    };
    let outcome = walk.run(PathUri::from_posix(path.as_os_str().as_bytes()));
    walk.response.truncated |= outcome.is_err();
    Ok(walk.response)
}

fn check_limits(options: &FsWalkOptions) -> Result<(), FsError> {
    if options.max_directories == 0 || options.max_entries == 0 {
        return Err(FsError::WalkLimitsZero);
    }
    let is_within = options.max_depth <= MAX_WALK_DEPTH
        && options.max_directories <= MAX_WALK_DIRECTORIES
        && options.max_entries <= MAX_WALK_ENTRIES;
    if is_within { Ok(()) } else { Err(FsError::WalkLimitsExceeded) }
}

struct Walk {
    options: FsWalkOptions,
    root: OwnedFd,
    reader: EntryReader,
    /// The current level; the root's entries are on level 0.
    depth: u64,
    names: u64,
    directories: u64,
    bytes: usize,
    /// The directories that were entered; used only when links are followed.
    entered: HashSet<Identity>,
    response: FsWalkResponse,
}

/// A directory that was found and may be entered.
struct Folder {
    uri: PathUri,
    /// The path from the root.
    path: Vec<u8>,
    is_link: bool,
    /// Known only when links are followed.
    identity: Option<Identity>,
    /// Whether this is the name under which the directory is entered.
    is_chosen: bool,
}

/// The response has reached a limit.
struct Full;

impl Walk {
    /// Opens the root, if it is a directory that may be entered.
    fn begin(path: &Path, options: FsWalkOptions) -> Result<Option<Self>, io::Error> {
        let root = rustix::fs::stat(path)?;
        let own = rustix::fs::lstat(path)?;
        let is_refused_link =
            entries::kind_in(&own) == FileType::Symlink && !options.follow_directory_symlinks;
        if entries::kind_in(&root) != FileType::Directory || is_refused_link {
            return Ok(None);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Some(Self {
            options,
            root: rustix::fs::open(path, flags, Mode::empty())?,
            reader: EntryReader::new(),
            depth: 0,
            names: 0,
            directories: 1,
            bytes: 0,
            entered: HashSet::from([Identity::from(&root)]),
            response: FsWalkResponse::default(),
        }))
    }

    fn run(&mut self, uri: PathUri) -> Result<(), Full> {
        let path = b".".to_vec();
        let mut level = vec![Folder { uri, path, is_link: false, identity: None, is_chosen: true }];
        while !level.is_empty() {
            let mut found = Vec::new();
            for folder in &level {
                self.list(folder, &mut found)?;
            }
            level = self.choose(found);
            self.depth += 1;
        }
        Ok(())
    }

    /// Lists one directory, and adds the directories in it that may be entered to `found`.
    fn list(&mut self, folder: &Folder, found: &mut Vec<Folder>) -> Result<(), Full> {
        let (dir, names) = match self.read(folder) {
            Ok(content) => content,
            Err(error) => return self.add_error(folder.uri.clone(), &error),
        };
        for name in names {
            if self.names == self.options.max_entries {
                return Err(Full);
            }
            self.names += 1;
            self.look_at(folder, &dir, &name, found)?;
        }
        Ok(())
    }

    fn read(&mut self, folder: &Folder) -> io::Result<(OwnedFd, Vec<Name>)> {
        // A link that has replaced a real directory since is not followed.
        let extra = if folder.is_link { OFlags::empty() } else { OFlags::NOFOLLOW };
        let dir = entries::open_at(self.root.as_fd(), &folder.path, extra)?;
        // One name beyond the limit shows that the listing is truncated.
        let wanted = self.options.max_entries - self.names + 1;
        let mut names = FirstNames::new(usize::try_from(wanted).expect("limits were checked"));
        self.reader.read(dir.as_fd(), |name, reported| {
            names.add(name, reported);
            io::Result::Ok(())
        })?;
        Ok((dir, names.into_sorted()))
    }

    fn look_at(
        &mut self,
        folder: &Folder,
        dir: &OwnedFd,
        name: &Name,
        found: &mut Vec<Folder>,
    ) -> Result<(), Full> {
        let uri = || folder.uri.child(name.text.to_bytes());
        match entries::kind(dir.as_fd(), &name.text, name.reported) {
            Ok(FileType::RegularFile) => self.add(uri(), WalkKind::File),
            Ok(FileType::Directory) => {
                let identity = self.identity_of(dir, &name.text);
                self.add_directory(folder, &name.text, false, identity, found)
            }
            Ok(FileType::Symlink) if self.options.follow_directory_symlinks => {
                match directory_behind(dir, &name.text) {
                    Some(target) => {
                        self.add_directory(folder, &name.text, true, Some(target), found)
                    }
                    None => Ok(()),
                }
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => self.add_error(uri(), &error),
        }
    }

    /// The identity of a real directory, needed only if links are followed; otherwise no directory is met twice.
    fn identity_of(&self, dir: &OwnedFd, name: &CStr) -> Option<Identity> {
        if !self.options.follow_directory_symlinks {
            return None;
        }
        let stat = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(Identity::from(&stat))
    }

    fn add_directory(
        &mut self,
        parent: &Folder,
        name: &CStr,
        is_link: bool,
        identity: Option<Identity>,
        found: &mut Vec<Folder>,
    ) -> Result<(), Full> {
        let uri = parent.uri.child(name.to_bytes());
        if self.may_enter(name) {
            let path = [parent.path.as_slice(), b"/", name.to_bytes()].concat();
            found.push(Folder { uri: uri.clone(), path, is_link, identity, is_chosen: false });
        }
        self.add(uri, WalkKind::Directory)
    }

    fn may_enter(&self, name: &CStr) -> bool {
        let is_pruned = self.options.prune_hidden_directories && name.to_bytes().starts_with(b".");
        self.depth < self.options.max_depth && !is_pruned
    }

    /// Selects the directories to enter.
    fn choose(&mut self, mut found: Vec<Folder>) -> Vec<Folder> {
        for link_turn in [false, true] {
            for folder in found.iter_mut().filter(|folder| folder.is_link == link_turn) {
                folder.is_chosen = folder.identity.is_none_or(|it| self.entered.insert(it));
            }
        }
        found.retain(|folder| folder.is_chosen);
        let room = self.options.max_directories - self.directories;
        let room = usize::try_from(room).expect("limits were checked");
        self.response.truncated |= found.len() > room;
        found.truncate(room);
        self.directories += found.len() as u64;
        found
    }

    fn add(&mut self, path: PathUri, kind: WalkKind) -> Result<(), Full> {
        self.charge(path.as_str().len())?;
        self.response.entries.push(FsWalkEntry { path, kind });
        Ok(())
    }

    fn add_error(&mut self, path: PathUri, error: &io::Error) -> Result<(), Full> {
        let message = error.to_string();
        self.charge(path.as_str().len() + message.len())?;
        self.response.errors.push(FsWalkError { path, message });
        Ok(())
    }

    fn charge(&mut self, text_bytes: usize) -> Result<(), Full> {
        let bytes = self.bytes + text_bytes + WALK_ITEM_BYTES;
        if bytes > MAX_WALK_BYTES {
            return Err(Full);
        }
        self.bytes = bytes;
        Ok(())
    }
}

/// The identity of the directory that a link points to, if it is one.
fn directory_behind(dir: &OwnedFd, name: &CStr) -> Option<Identity> {
    let stat = rustix::fs::statat(dir, name, AtFlags::empty()).ok()?;
    (entries::kind_in(&stat) == FileType::Directory).then(|| Identity::from(&stat))
}

#[cfg(test)]
mod tests;
