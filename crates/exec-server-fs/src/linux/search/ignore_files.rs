//! Rules of `.ignore`, `.gitignore` and `.git/info/exclude`, as ripgrep applies them.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{CWD, FileType, Mode, fstat, openat};
use rustix::io::Errno;

use super::super::entries::kind_in;
use super::open::FOR_READING;

/// Ignore files of this size are made by mistake; the rules of a larger one are not used.
const MAX_BYTES: u64 = 4 << 20;

/// The rules that hold in a directory; none if no directory around it has an ignore file.
pub type Rules = Option<Arc<IgnoreFiles>>;

/// The ignore files of one directory.
#[derive(Debug)]
pub struct IgnoreFiles {
    plain: Gitignore,
    git: Gitignore,
    excluded: Gitignore,
    /// The rules of the next directory upwards that has some.
    around: Rules,
}

/// The first rule of each kind that matches, from the innermost directory outwards.
struct Found {
    plain: Match<()>,
    git: Match<()>,
    excluded: Match<()>,
}

/// Rules from outside of the searched tree.
#[derive(Debug)]
pub struct OuterRules {
    /// Those of the directories around the tree.
    above: Rules,
    /// The searched directory without links, which rules from above apply to.
    real_root: PathBuf,
    /// Those of the user.
    global: Gitignore,
}

impl OuterRules {
    /// Reads the ignore files above a directory; `note` gets what could not be read.
    pub fn above(root: &Path, mut note: impl FnMut(&Path, io::Error)) -> Self {
        let mut above = None;
        let real_root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
        let around: Vec<_> = real_root.ancestors().skip(1).collect();
        for directory in around.into_iter().rev() {
            // A directory that cannot be listed may still hold readable ignore files.
            let opened = openat(CWD, directory, super::open::ONLY_PATH, Mode::empty());
            let Ok(opened) = opened else { continue };
            above = enter(opened.as_fd(), directory, &above, &mut note);
        }
        let (global, _) = Gitignore::global();
        Self { above, real_root, global }
    }

    /// What the ignore files say about an entry of a directory with these rules.
    pub fn matched(&self, rules: &Rules, root: &Path, path: &Path, is_dir: bool) -> Match<()> {
        if rules.is_none() && self.above.is_none() && self.global.is_empty() {
            return Match::None;
        }
        let mut found = Found { plain: Match::None, git: Match::None, excluded: Match::None };
        found.look_in(rules, path, is_dir);
        if self.above.is_some() {
            found.look_in(&self.above, &self.real_root.join(super::below(path, root)), is_dir);
        }
        let global = || self.global.matched(path, is_dir).map(|_| ());
        let found = found.plain.or(found.git).or(found.excluded);
        if found.is_none() { global() } else { found }
    }
}

impl Found {
    fn look_in(&mut self, rules: &Rules, path: &Path, is_dir: bool) {
        let mut next = rules;
        while let Some(files) = next {
            for (found, set) in [
                (&mut self.plain, &files.plain),
                (&mut self.git, &files.git),
                (&mut self.excluded, &files.excluded),
            ] {
                if found.is_none() {
                    *found = set.matched(path, is_dir).map(|_| ());
                }
            }
            next = &files.around;
        }
    }
}

/// Whether [`enter`] would read this name. Some file systems ignore case.
pub fn is_read(name: &[u8]) -> bool {
    let names = [&b".ignore"[..], b".gitignore", b".git"];
    name.first() == Some(&b'.') && names.iter().any(|read| name.eq_ignore_ascii_case(read))
}

/// The rules in a directory: those around it, and those of its own ignore files.
pub fn enter(
    directory: BorrowedFd,
    path: &Path,
    around: &Rules,
    mut note: impl FnMut(&Path, io::Error),
) -> Rules {
    let mut read = |name: &CStr| match read(directory, name) {
        Ok(lines) => lines,
        Err(error) => {
            note(&path.join(OsStr::from_bytes(name.to_bytes())), error);
            None
        }
    };
    let (plain, git) = (read(c".ignore"), read(c".gitignore"));
    let excluded = read(c".git/info/exclude").or_else(|| read_of_worktree(directory, path));
    if plain.is_none() && git.is_none() && excluded.is_none() {
        return around.clone();
    }
    let [plain, git, excluded] = [plain, git, excluded].map(|lines| compile(path, lines));
    Some(Arc::new(IgnoreFiles { plain, git, excluded, around: around.clone() }))
}

/// A pattern that cannot be compiled is left out, as git does.
fn compile(directory: &Path, lines: Option<Vec<u8>>) -> Gitignore {
    let Some(lines) = lines else { return Gitignore::empty() };
    let lines = lines.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&lines);
    let mut builder = GitignoreBuilder::new(directory);
    for line in lines.split(|byte| *byte == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else { break };
        let _ = builder.add_line(None, line.strip_suffix('\r').unwrap_or(line));
    }
    builder.build().unwrap_or_else(|_| Gitignore::empty())
}

/// The content of an ignore file; `None` without one. A pipe of that name is none.
fn read(directory: BorrowedFd, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let file = match openat(directory, name, FOR_READING, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::NXIO | Errno::LOOP) => return Ok(None),
        // Most often a policy denies the directory of a repository.
        Err(Errno::ACCESS | Errno::PERM) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let stat = fstat(&file)?;
    if kind_in(&stat) != FileType::RegularFile {
        return Ok(None);
    }
    let mut content = Vec::new();
    File::from(file).take(MAX_BYTES + 1).read_to_end(&mut content)?;
    if content.len() as u64 > MAX_BYTES {
        let text =
            format!("the ignore file is larger than {} MiB and is not used", MAX_BYTES >> 20);
        return Err(io::Error::other(text));
    }
    Ok(Some(content))
}

/// The exclude file of a worktree, whose `.git` is a file that names a directory.
fn read_of_worktree(directory: BorrowedFd, path: &Path) -> Option<Vec<u8>> {
    let named = |text: Vec<u8>| {
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default().to_vec();
        PathBuf::from(OsStr::from_bytes(&line))
    };
    let git = read(directory, c".git").ok()??;
    let own = path.join(named(git.strip_prefix(b"gitdir: ")?.to_vec()));
    let common = own.join(named(std::fs::read(own.join("commondir")).ok()?));
    let file =
        std::ffi::CString::new(common.join("info/exclude").into_os_string().into_encoded_bytes());
    read(CWD, &file.ok()?).ok()?
}
