//! The files of a service: where they are, and writing and removing them.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::Service;
use super::owned_file::{self, State};
use super::units::{Kind, Scope};
use crate::cli::Failure;

/// The directories of a systemd, below another root for images.
#[derive(Debug, Clone)]
pub struct Layout {
    pub scope: Scope,
    root: PathBuf,
    /// For units.
    units: PathBuf,
    /// For addresses, options and tokens: `%E/exec-server` in a unit.
    config: PathBuf,
}

/// A file of a service.
#[derive(Debug, Clone)]
pub struct ServiceFile {
    pub path: PathBuf,
    pub content: Content,
}

/// What a file holds.
#[derive(Clone)]
pub enum Content {
    /// A unit or its variables, with our mark.
    Text(String),
    /// A token, for its owner only; never printed.
    Secret(Vec<u8>),
}

impl std::fmt::Debug for Content {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Text(text) => formatter.debug_tuple("Text").field(text).finish(),
            Self::Secret(_) => formatter.write_str("Secret"),
        }
    }
}

/// Where units of packages are; those of this command replace them.
const PACKAGED: [&str; 3] =
    ["/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

impl Layout {
    /// The directories of this systemd.
    pub fn of(scope: Scope, root: Option<&Path>) -> Result<Self, Failure> {
        let set = |name: &str| {
            std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
        };
        let (units, config) = match scope {
            Scope::System => ("/etc/systemd/system".into(), "/etc".into()),
            Scope::User => {
                let home = set("HOME").map(|home| home.join(".config"));
                let config = set("XDG_CONFIG_HOME").or(home).ok_or_else(|| {
                    Failure::Usage(
                        "HOME is not set, so the units of this user have no place".to_owned(),
                    )
                })?;
                (config.join("systemd/user"), config)
            }
        };
        let root = root.map(Path::to_owned).unwrap_or_default();
        Ok(Self { scope, root, units, config: config.join("exec-server") })
    }

    pub fn is_image(&self) -> bool {
        !self.root.as_os_str().is_empty()
    }

    /// Where a path is on this machine.
    pub fn actual(&self, path: &Path) -> PathBuf {
        match path.strip_prefix("/") {
            Ok(rest) if self.is_image() => self.root.join(rest),
            _ => path.to_owned(),
        }
    }

    /// The file with the service unit.
    pub fn unit(&self, kind: Kind) -> PathBuf {
        self.units.join(kind.unit_file())
    }

    /// The file with the socket unit, if the kind can have one.
    pub fn socket(&self, kind: Kind) -> Option<PathBuf> {
        kind.socket_file().map(|name| self.units.join(name))
    }

    /// The name of the socket unit, if it is installed.
    pub fn socket_of(&self, kind: Kind) -> Option<String> {
        let path = self.socket(kind).filter(|path| self.actual(path).exists())?;
        Some(path.file_name()?.to_str()?.to_owned())
    }

    /// Settings of one service on top of its unit.
    pub fn drop_in(&self, service: &Service) -> PathBuf {
        self.units.join(format!("{}.d", service.unit())).join("exec-server-token.conf")
    }

    /// Address and options.
    pub fn environment(&self, service: &Service) -> PathBuf {
        self.config.join(format!("{}.env", stem(service)))
    }

    /// The token as it is.
    pub fn token(&self, service: &Service) -> PathBuf {
        self.config.join(format!("{}.token", stem(service)))
    }

    /// The token, encrypted by systemd.
    pub fn encrypted_token(&self, service: &Service) -> PathBuf {
        self.config.join(format!("{}.cred", stem(service)))
    }

    /// Every file that a service may have, except a unit that other executors use.
    pub fn all(&self, service: &Service) -> Vec<PathBuf> {
        let mut all = Vec::new();
        if !self.has_other_instances(service) {
            all.push(self.unit(service.kind));
        }
        all.extend(self.socket(service.kind));
        all.extend([self.drop_in(service), self.environment(service)]);
        all.extend([self.token(service), self.encrypted_token(service)]);
        all
    }

    /// The file in which a package has the same unit.
    pub fn packaged(&self, unit: &str) -> Option<PathBuf> {
        let is_there = |path: &PathBuf| self.actual(path).exists();
        let of_system = PACKAGED.iter().map(|dir| Path::new(dir).join(unit));
        of_system.into_iter().find(|path| self.scope == Scope::System && is_there(path))
    }

    /// The text of an existing file.
    pub fn read(&self, path: &Path) -> Result<Option<String>, Failure> {
        let path = self.actual(path);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::local(format!("could not read {}", path.display()), error)),
        }
    }

    /// How a file with our mark differs from the one to write.
    pub fn state(&self, file: &ServiceFile) -> Result<State, Failure> {
        let existing = self.read(&file.path)?;
        Ok(match &file.content {
            Content::Text(text) => owned_file::compare(existing.as_deref(), text),
            Content::Secret(bytes) => match existing {
                None => State::Missing,
                Some(text) if text.as_bytes() == bytes => State::Same,
                Some(_) => State::Outdated,
            },
        })
    }

    /// Writes a file as a whole: a reader sees the old or the new one.
    pub fn write(&self, file: &ServiceFile) -> Result<(), Failure> {
        let path = self.actual(&file.path);
        let failed = |error| Failure::local(format!("could not write {}", path.display()), error);
        let directory = path.parent().unwrap_or(Path::new("/"));
        let (bytes, mode, directory_mode) = match &file.content {
            Content::Text(text) => (text.as_bytes(), 0o644, 0o755),
            Content::Secret(bytes) => (bytes.as_slice(), 0o600, 0o700),
        };
        make_directories(directory, directory_mode).map_err(failed)?;
        let staged = path.with_extension(format!("new-{}", std::process::id()));
        let result = stage(&staged, bytes, mode).and_then(|()| std::fs::rename(&staged, &path));
        if result.is_err() {
            let _ = std::fs::remove_file(&staged);
        }
        result.map_err(failed)
    }

    /// Removes a file, and directories of ours that are empty then; returns whether it existed.
    pub fn remove(&self, path: &Path) -> Result<bool, Failure> {
        let actual = self.actual(path);
        match std::fs::remove_file(&actual) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => {
                let what = format!("could not remove {}", actual.display());
                return Err(Failure::local(what, error));
            }
        }
        let is_ours = |directory: &Path| {
            directory == self.config || directory.extension().is_some_and(|it| it == "d")
        };
        if let Some(directory) = path.parent().filter(|directory| is_ours(directory)) {
            // A directory with other files stays.
            let _ = std::fs::remove_dir(self.actual(directory));
        }
        Ok(true)
    }

    /// Whether other executors use the same unit.
    fn has_other_instances(&self, service: &Service) -> bool {
        if service.kind != Kind::Executor {
            return false;
        }
        let own = self.environment(service);
        let entries = std::fs::read_dir(self.actual(&self.config)).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_executor = name.starts_with("executor-") && name.ends_with(".env");
            is_executor && own.file_name() != Some(entry.file_name().as_os_str())
        })
    }
}

/// The beginning of the names of files in the configuration directory, as the units have it.
fn stem(service: &Service) -> String {
    match service.kind {
        Kind::Executor => format!("executor-{}", service.name),
        kind => kind.word().to_owned(),
    }
}

fn make_directories(directory: &Path, mode: u32) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, mode);
    #[cfg(not(unix))]
    let _ = mode;
    builder.create(directory)
}

fn stage(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
