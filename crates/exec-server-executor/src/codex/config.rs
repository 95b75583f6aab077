//! Answers `environmentConfig/read` with the selected keys of the Codex configuration files of this machine.
//!
//! Layers, weakest first: system, user, trusted project (from its root down to the working directory), and the legacy
//! managed file, which also restricts. Requirements have their own file.

use std::path::{Path, PathBuf};

use exec_server_fs::regular_file::{ReadError, read_text};
use exec_server_protocol::environment::{
    ConfigLayer, ConfigLayers, EnvironmentConfigReadParams, EnvironmentConfigReadResponse,
};
use toml::{Table, Value};

use crate::environment::path_uri;

mod projects;

/// The locations of the configuration.
#[derive(Debug, Clone)]
pub struct ConfigPaths {
    pub home: Option<PathBuf>,
    /// The value of `CODEX_HOME`; without it, `.codex` in the home is used.
    pub codex_home: Option<PathBuf>,
    /// The system-wide directory, usually `/etc/codex`.
    pub system: PathBuf,
    pub hostname: Option<String>,
}

/// The reason why the configuration cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentConfigError {
    /// The request selects no key.
    #[error("at least one config or requirements path is required")]
    NoPaths,
    /// A selected path has no key.
    #[error("TOML paths must contain at least one key segment")]
    EmptyPath,
    #[error("failed to find Codex home: CODEX_HOME points to {path:?}, but that path {problem}")]
    CodexHome { path: PathBuf, problem: &'static str },
    /// Neither `CODEX_HOME` nor a home directory is known.
    #[error("failed to find Codex home: the user has no home directory")]
    NoHome,
    #[error("failed to load executor-local config: Failed to read config file {path}: {cause}")]
    Read { path: String, cause: ReadError },
    #[error("failed to load executor-local config: {path}:{line}:{column}: {message}")]
    Parse {
        path: String,
        /// Counted from 1.
        line: usize,
        /// Counted from 1, in characters.
        column: usize,
        message: String,
    },
}

impl ConfigPaths {
    /// The default locations, with `CODEX_HOME` from the environment.
    pub fn from_env(home: Option<PathBuf>, hostname: Option<String>) -> Self {
        let codex_home = std::env::var_os("CODEX_HOME").filter(|value| !value.is_empty());
        let system = PathBuf::from("/etc/codex");
        Self { home, codex_home: codex_home.map(PathBuf::from), system, hostname }
    }

    /// The directory of the user's configuration; it must exist only if `CODEX_HOME` names it.
    pub fn codex_home(&self) -> Result<PathBuf, EnvironmentConfigError> {
        let Some(path) = &self.codex_home else {
            let home = self.home.as_ref().ok_or(EnvironmentConfigError::NoHome)?;
            return Ok(home.join(".codex"));
        };
        let wrong = |problem| EnvironmentConfigError::CodexHome { path: path.clone(), problem };
        let resolved = path.canonicalize().map_err(|_| wrong("does not exist"))?;
        if resolved.is_dir() { Ok(resolved) } else { Err(wrong("is not a directory")) }
    }
}

/// Reads the selected keys of every layer that applies to `cwd`, which need not exist.
pub fn read(
    params: &EnvironmentConfigReadParams,
    cwd: &Path,
    paths: &ConfigPaths,
) -> Result<EnvironmentConfigReadResponse, EnvironmentConfigError> {
    let (config_paths, requirements_paths) = (&params.config_paths, &params.requirements_paths);
    if config_paths.is_empty() && requirements_paths.is_empty() {
        return Err(EnvironmentConfigError::NoPaths);
    }
    if config_paths.iter().chain(requirements_paths).any(Vec::is_empty) {
        return Err(EnvironmentConfigError::EmptyPath);
    }
    let codex_home = paths.codex_home()?;
    let managed = ConfigFile::read(paths.system.join("managed_config.toml"))?;
    let requirements = requirements_layers(paths, managed.as_ref())?;
    let config = config_layers(cwd, paths, &codex_home, managed)?;
    Ok(EnvironmentConfigReadResponse {
        user_home_dir: paths.home.as_deref().map(path_uri),
        codex_home_dir: path_uri(&codex_home),
        hostname: paths.hostname.clone(),
        config: selected(&config, config_paths),
        requirements: selected(&requirements, requirements_paths),
    })
}

/// A parsed configuration file.
struct ConfigFile {
    path: PathBuf,
    settings: Table,
}

/// Far above the size of a hand-written configuration.
const MAX_CONFIG_BYTES: u64 = 16 * 1024 * 1024;

impl ConfigFile {
    /// A missing file is an empty layer. An invalid file is an error, because it may hold restrictions.
    fn read(path: PathBuf) -> Result<Option<Self>, EnvironmentConfigError> {
        let shown = || path.display().to_string();
        let text = match read_text(&path, MAX_CONFIG_BYTES) {
            Ok(text) => text,
            Err(ReadError::Io(error)) if is_absence(&error) => return Ok(None),
            Err(cause) => return Err(EnvironmentConfigError::Read { path: shown(), cause }),
        };
        match text.parse::<Table>() {
            Ok(settings) => Ok(Some(Self { path, settings })),
            Err(error) => {
                let (line, column) = position(&text, error.span().map_or(0, |span| span.start));
                let message = error.message().to_owned();
                Err(EnvironmentConfigError::Parse { path: shown(), line, column, message })
            }
        }
    }
}

fn is_absence(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// A layer with all its keys.
struct Layer {
    source: String,
    file: ConfigFile,
    /// Whether the client's cloud layers come after this one.
    is_below_cloud: bool,
}

fn config_layers(
    cwd: &Path,
    paths: &ConfigPaths,
    codex_home: &Path,
    managed: Option<ConfigFile>,
) -> Result<Vec<Layer>, EnvironmentConfigError> {
    let layer = |kind: &str, file: ConfigFile| {
        let source = format!("{kind} ({})", file.path.display());
        Layer { source, file, is_below_cloud: kind == "system" }
    };
    let system = ConfigFile::read(paths.system.join("config.toml"))?;
    let user = ConfigFile::read(codex_home.join("config.toml"))?;
    let trust =
        projects::Trust::new([&system, &user].into_iter().flatten().map(|file| &file.settings));
    let mut layers: Vec<Layer> = Vec::new();
    layers.extend(system.map(|file| layer("system", file)));
    layers.extend(user.map(|file| layer("user", file)));
    for folder in trust.trusted_folders(cwd) {
        let folder = folder.join(".codex");
        if folder == codex_home {
            continue;
        }
        if let Some(mut file) = ConfigFile::read(folder.join("config.toml"))? {
            projects::drop_user_only_keys(&mut file.settings);
            layers.push(layer("project", file));
        }
    }
    layers.extend(managed.map(|file| layer("legacy managed_config.toml", file)));
    Ok(layers)
}

fn requirements_layers(
    paths: &ConfigPaths,
    managed: Option<&ConfigFile>,
) -> Result<Vec<Layer>, EnvironmentConfigError> {
    let own = ConfigFile::read(paths.system.join("requirements.toml"))?;
    let managed = managed.map(|file| ConfigFile {
        path: file.path.clone(),
        settings: managed_requirements(&file.settings),
    });
    let layer = |file: ConfigFile, is_below_cloud| Layer {
        source: file.path.display().to_string(),
        file,
        is_below_cloud,
    };
    let own = own.map(|file| layer(file, true));
    Ok(own.into_iter().chain(managed.map(|file| layer(file, false))).collect())
}

/// A value of the managed file is also the only allowed value, except that `read-only` is always allowed.
fn managed_requirements(settings: &Table) -> Table {
    let mut requirements = Table::new();
    for (setting, requirement) in [
        ("approval_policy", "allowed_approval_policies"),
        ("approvals_reviewer", "allowed_approvals_reviewers"),
    ] {
        if let Some(value) = settings.get(setting) {
            requirements.insert(requirement.to_owned(), Value::Array(vec![value.clone()]));
        }
    }
    if let Some(mode) = settings.get("sandbox_mode") {
        let mut modes = vec![Value::from("read-only"), mode.clone()];
        modes.dedup();
        requirements.insert("allowed_sandbox_modes".to_owned(), Value::Array(modes));
    }
    requirements
}

/// Reduces the layers to the selected keys and drops layers without any of them.
fn selected(layers: &[Layer], paths: &[Vec<String>]) -> ConfigLayers {
    let paths: Vec<&[String]> = paths.iter().map(Vec::as_slice).collect();
    let mut selected = ConfigLayers::default();
    for layer in layers {
        let settings = project(&layer.file.settings, &paths);
        if settings.is_empty() {
            continue;
        }
        let base_dir = path_uri(layer.file.path.parent().unwrap_or(Path::new("/")));
        let toml = toml::to_string(&settings).expect("a parsed table can be serialised");
        selected.layers.push(ConfigLayer { source: layer.source.clone(), base_dir, toml });
        if layer.is_below_cloud {
            selected.cloud_insertion_index = selected.layers.len();
        }
    }
    selected
}

/// Keeps the keys on the paths. A plain value in the middle of a path stays, because it overrides weaker layers.
fn project(settings: &Table, paths: &[&[String]]) -> Table {
    let mut kept = Table::new();
    for (key, value) in settings {
        let mut rests =
            paths.iter().filter(|path| path[0] == *key).map(|path| &path[1..]).peekable();
        if rests.peek().is_none() {
            continue;
        }
        let rests: Vec<&[String]> = rests.collect();
        let kept_value = match value {
            Value::Table(table) if rests.iter().all(|rest| !rest.is_empty()) => {
                Value::Table(project(table, &rests))
            }
            value => value.clone(),
        };
        kept.insert(key.clone(), kept_value);
    }
    kept
}

#[cfg(test)]
mod tests;
