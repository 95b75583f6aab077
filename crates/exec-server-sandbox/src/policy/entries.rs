//! Turns each entry of a policy into absolute paths and patterns of this host.

use std::collections::btree_map::Entry;
use std::num::NonZeroUsize;
use std::path::{Component, Path, PathBuf};

use exec_server_protocol::path_uri::{ForeignPath, PathUri, ToPathError};
use exec_server_protocol::sandbox::{
    EntryAccess, EntryPath, FileEntry, SandboxParams, SpecialPath,
};

use super::compile::GlobProblem;
use super::globs::{self, Pattern};
use super::rules::Places;
use super::{Access, DenyGlob, HostFacts, PolicyError, normalised};

/// Prefix of a pattern that is relative to each project directory.
const PROJECT_ROOTS_SCHEME: &str = "codex-project-roots://";

/// The entries of a policy, with one access for each path.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    pub(super) root: Option<Access>,
    pub(super) minimal: Option<Access>,
    pub(super) places: Places,
    pub(super) globs: Vec<DenyGlob>,
}

/// Directories that the entries of one policy refer to.
pub(super) struct Context<'a> {
    host: &'a HostFacts,
    home: Option<PathBuf>,
    cwd: Option<PathBuf>,
    roots: Vec<PathBuf>,
    glob_depth: Option<NonZeroUsize>,
}

impl<'a> Context<'a> {
    /// A directory of another operating system is rejected even if no entry needs it: the request is for another host.
    pub(super) fn new(sandbox: &SandboxParams, host: &'a HostFacts) -> Result<Self, PolicyError> {
        let cwd = sandbox.policy_cwd();
        let cwd = cwd.map(|uri| host_path(uri, host, PolicyError::ForeignCwd)).transpose()?;
        let roots = sandbox.policy_roots().iter();
        let roots = roots.map(|uri| host_path(uri, host, PolicyError::ForeignWorkspaceRoot));
        let roots = roots.collect::<Result<_, _>>()?;
        let home = host.home.as_deref().and_then(normalised);
        Ok(Self { host, home, cwd, roots, glob_depth: None })
    }

    pub(super) fn cwd(&self) -> Option<&Path> {
        self.cwd.as_deref()
    }

    pub(super) fn with_glob_depth(self, glob_depth: Option<NonZeroUsize>) -> Self {
        Self { glob_depth, ..self }
    }

    /// Before workspace roots existed, the working directory of a policy was the project.
    pub(super) fn with_the_cwd_as_project(mut self) -> Self {
        if self.roots.is_empty() {
            self.roots.extend(self.cwd.clone());
        }
        self
    }

    pub(super) fn resolve(
        &self,
        entry: &FileEntry,
        into: &mut Resolved,
    ) -> Result<(), PolicyError> {
        let access = Access::from(entry.access);
        match &entry.path {
            EntryPath::Path { path } => {
                let path = host_path(path, self.host, PolicyError::ForeignEntry)?;
                into.add(path, access);
            }
            EntryPath::GlobPattern { pattern } => {
                let patterns = self.patterns(pattern)?;
                // A pattern can only deny: it matches names that exist, so it cannot grant access.
                if access == Access::None {
                    patterns.into_iter().for_each(|pattern| into.deny(pattern));
                }
            }
            EntryPath::Special { value } => self.resolve_special(value, access, into),
        }
        Ok(())
    }

    fn resolve_special(&self, place: &SpecialPath, access: Access, into: &mut Resolved) {
        match place {
            SpecialPath::Root => into.root = Some(stronger(into.root, access)),
            SpecialPath::Minimal => into.minimal = Some(stronger(into.minimal, access)),
            SpecialPath::ProjectRoots { subpath } => {
                let subpath = Path::new(subpath.as_deref().unwrap_or_default());
                for root in &self.roots {
                    if stays_below(subpath) {
                        into.add(root.components().chain(subpath.components()).collect(), access);
                    } else if access == Access::None {
                        // The intended path is unknown but lies in this project, so the whole project is denied.
                        into.add(root.clone(), access);
                    }
                }
            }
            SpecialPath::Tmpdir => {
                if let Some(tmpdir) = self.host.tmpdir.as_deref().and_then(normalised) {
                    into.add(tmpdir, access);
                }
            }
            SpecialPath::SlashTmp => {
                if self.host.has_slash_tmp {
                    into.add(PathBuf::from("/tmp"), access);
                }
            }
            SpecialPath::Unknown { .. } => {}
        }
    }

    fn patterns(&self, text: &str) -> Result<Vec<Pattern>, PolicyError> {
        let fail = |problem| PolicyError::Glob { pattern: text.to_owned(), problem };
        if let Some(below) = text.strip_prefix(PROJECT_ROOTS_SCHEME) {
            let patterns = self.roots.iter().map(|root| {
                if stays_below(Path::new(below)) {
                    globs::parse(root, below, self.glob_depth).map_err(fail)
                } else {
                    Ok(vec![Pattern::Literal(root.clone())])
                }
            });
            return Ok(patterns.collect::<Result<Vec<_>, _>>()?.concat());
        }
        let (start, below) = if let Some(below) = text.strip_prefix('/') {
            (Path::new("/"), below)
        } else if let Some(below) = below_home(text) {
            (self.home.as_deref().ok_or_else(|| fail(GlobProblem::NoHome))?, below)
        } else {
            (self.cwd().ok_or(PolicyError::MissingCwd)?, text)
        };
        globs::parse(start, below, self.glob_depth).map_err(fail)
    }
}

impl Resolved {
    /// Number of paths and patterns.
    pub(super) fn len(&self) -> usize {
        self.places.len() + self.globs.len()
    }

    fn add(&mut self, path: PathBuf, access: Access) {
        match self.places.entry(path.into()) {
            Entry::Vacant(place) => drop(place.insert(access)),
            Entry::Occupied(mut place) => *place.get_mut() = stronger(Some(*place.get()), access),
        }
    }

    fn deny(&mut self, pattern: Pattern) {
        match pattern {
            Pattern::Literal(path) => self.add(path, Access::None),
            Pattern::Glob(glob) => self.globs.push(glob),
        }
    }
}

/// For the same path, a denial overrides a write entry, which overrides a read entry.
pub(super) fn stronger(earlier: Option<Access>, access: Access) -> Access {
    match (earlier, access) {
        (None, access) => access,
        (Some(Access::None), _) | (_, Access::None) => Access::None,
        (Some(earlier), access) => earlier.max(access),
    }
}

impl From<EntryAccess> for Access {
    fn from(word: EntryAccess) -> Self {
        match word {
            EntryAccess::Read => Self::Read,
            EntryAccess::Write => Self::Write,
            EntryAccess::Deny => Self::None,
        }
    }
}

fn host_path(
    uri: &PathUri,
    host: &HostFacts,
    foreign: impl Fn(ForeignPath) -> PolicyError,
) -> Result<PathBuf, PolicyError> {
    let bytes = match uri.to_posix(host.native_paths) {
        Ok(bytes) => bytes,
        Err(ToPathError::Uri(error)) => return Err(error.into()),
        Err(ToPathError::Foreign(error)) => return Err(foreign(error)),
    };
    // An opaque URI can hold bytes that no path of this host has.
    let path = if bytes.contains(&0) { None } else { normalised(&path_of(bytes)) };
    path.ok_or_else(|| {
        foreign(ForeignPath { uri: uri.as_str().to_owned(), os: std::env::consts::OS })
    })
}

#[cfg(unix)]
fn path_of(bytes: Vec<u8>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(not(unix))]
fn path_of(bytes: Vec<u8>) -> PathBuf {
    String::from_utf8_lossy(&bytes).into_owned().into()
}

fn stays_below(path: &Path) -> bool {
    let has_nul = path.as_os_str().as_encoded_bytes().contains(&0);
    !has_nul && path.components().all(|component| matches!(component, Component::Normal(_)))
}

fn below_home(pattern: &str) -> Option<&str> {
    match pattern.strip_prefix('~')? {
        "" => Some(""),
        rest => rest.strip_prefix('/'),
    }
}
