//! The pinned keys of executors: a file with one line per registry and environment.
//!
//! Several clients may use the file at once: each change is made under a lock and replaces the file atomically.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

use exec_server_relay::fingerprint::KeyFingerprint;

/// Characters that would end a word or begin a comment.
const WORD: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'#');

/// The file with the pinned keys of executors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownHosts {
    path: PathBuf,
}

/// The pinned key of one executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownHost {
    /// The registry where the executor is registered.
    pub registry: String,
    /// The id under which the executor is registered.
    pub environment_id: String,
    /// The fingerprint of the pinned key.
    pub fingerprint: KeyFingerprint,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KnownHostsError {
    /// The file cannot be read or written.
    #[error("could not use {}", path.display())]
    Io {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A line cannot be parsed.
    #[error("line {line} of {} is not `REGISTRY ENVIRONMENT SHA256:…`", path.display())]
    Line {
        /// The path of the file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
    },
}

/// The entry of an executor before `remember`.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// No key was pinned.
    Unknown,
    /// The same key was pinned.
    Same,
    /// Another key was pinned.
    Other(KeyFingerprint),
}

impl KnownHosts {
    /// Uses the file at `path`, which need not exist yet.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All pinned keys.
    pub fn all(&self) -> Result<Vec<KnownHost>, KnownHostsError> {
        let lines = self.read()?;
        Ok(lines.into_iter().filter_map(|(_, host)| host).collect())
    }

    /// The pinned key of an environment's executor.
    pub fn get(
        &self,
        registry: &str,
        environment_id: &str,
    ) -> Result<Option<KeyFingerprint>, KnownHostsError> {
        let all = self.all()?.into_iter();
        let mut those = all.filter(|host| host.is_for(Some(registry), environment_id));
        Ok(those.next().map(|host| host.fingerprint))
    }

    /// Pins the key of an executor, unless one is pinned already.
    pub(super) fn remember(&self, host: &KnownHost) -> Result<Before, KnownHostsError> {
        let _lock = self.lock()?;
        if let Some(known) = self.get(&host.registry, &host.environment_id)? {
            let is_same = known == host.fingerprint;
            return Ok(if is_same { Before::Same } else { Before::Other(known) });
        }
        let lines = self.read()?.into_iter().map(|(text, _)| text);
        self.replace(lines.chain([host.to_line()]))?;
        Ok(Before::Unknown)
    }

    /// Removes and returns the pinned keys of an environment, at one registry or at all.
    pub fn forget(
        &self,
        registry: Option<&str>,
        environment_id: &str,
    ) -> Result<Vec<KnownHost>, KnownHostsError> {
        let _lock = self.lock()?;
        let is_meant = |host: &KnownHost| host.is_for(registry, environment_id);
        let (forgotten, kept): (Vec<_>, Vec<_>) =
            self.read()?.into_iter().partition(|(_, host)| host.as_ref().is_some_and(is_meant));
        if !forgotten.is_empty() {
            self.replace(kept.into_iter().map(|(text, _)| text))?;
        }
        Ok(forgotten.into_iter().filter_map(|(_, host)| host).collect())
    }

    /// Every line with its parsed entry; comments and empty lines have none, and are kept.
    fn read(&self) -> Result<Vec<(String, Option<KnownHost>)>, KnownHostsError> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(self.failed(source)),
        };
        let wrong = |line| KnownHostsError::Line { path: self.path.clone(), line };
        let read = |(index, line): (usize, &str)| {
            let says_nothing = line.trim().is_empty() || line.trim_start().starts_with('#');
            let host = match KnownHost::parse(line) {
                _ if says_nothing => None,
                Some(host) => Some(host),
                // Skipping a broken line would drop its pinned key, and another key would be accepted.
                None => return Err(wrong(index + 1)),
            };
            Ok((line.to_owned(), host))
        };
        text.lines().enumerate().map(read).collect()
    }

    /// Writes a temporary file and renames it, so that readers see either the old list or the new one.
    fn replace(&self, lines: impl Iterator<Item = String>) -> Result<(), KnownHostsError> {
        let write = || {
            let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
            // A `NamedTempFile` is writable only by its owner.
            let mut file = tempfile::NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
            for line in lines {
                writeln!(file, "{line}")?;
            }
            file.as_file().sync_all()?;
            file.persist(&self.path).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(|source| self.failed(source))
    }

    /// Locks a separate file, because the list itself is replaced.
    fn lock(&self) -> Result<File, KnownHostsError> {
        let mut name = self.path.clone().into_os_string();
        name.push(".lock");
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true);
        // Another user that can open the file could hold the lock and block every client.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let lock = || {
            let file = options.open(&name)?;
            file.lock()?;
            Ok(file)
        };
        lock().map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> KnownHostsError {
        KnownHostsError::Io { path: self.path.clone(), source }
    }
}

impl KnownHost {
    fn is_for(&self, registry: Option<&str>, environment_id: &str) -> bool {
        self.environment_id == environment_id
            && registry.is_none_or(|registry| self.registry == registry)
    }

    fn parse(line: &str) -> Option<Self> {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let [registry, environment_id, fingerprint] = words[..] else { return None };
        let plain = |word| percent_decode_str(word).decode_utf8().ok().map(Into::into);
        Some(Self {
            registry: registry.to_owned(),
            environment_id: plain(environment_id)?,
            fingerprint: fingerprint.parse().ok()?,
        })
    }

    fn to_line(&self) -> String {
        let environment_id = utf8_percent_encode(&self.environment_id, WORD);
        format!("{} {environment_id} {}", self.registry, self.fingerprint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU";
    const OTHER: &str = "SHA256:LCa0a2j/xo/5m0U8HTBBNBNCLXBkg7+g+YpeiGJm564";

    fn host(environment_id: &str, fingerprint: &str) -> KnownHost {
        KnownHost {
            registry: "https://relay.example.org".to_owned(),
            environment_id: environment_id.to_owned(),
            fingerprint: fingerprint.parse().unwrap(),
        }
    }

    #[test]
    fn the_first_key_is_remembered_until_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let hosts = KnownHosts::at(folder.path().join("known_hosts"));
        for name in ["env", "an odd #name%20 ü"] {
            assert_eq!(hosts.remember(&host(name, KEY)).unwrap(), Before::Unknown);
            assert_eq!(hosts.remember(&host(name, KEY)).unwrap(), Before::Same);
            let other = hosts.remember(&host(name, OTHER)).unwrap();
            assert_eq!(other, Before::Other(KEY.parse().unwrap()));
        }
        assert_eq!(hosts.get("https://elsewhere", "env").unwrap(), None);
        assert_eq!(hosts.forget(Some("https://elsewhere"), "env").unwrap(), []);
        assert_eq!(hosts.forget(None, "env").unwrap(), [host("env", KEY)]);
        assert_eq!(hosts.remember(&host("env", OTHER)).unwrap(), Before::Unknown);
        assert_eq!(hosts.all().unwrap().len(), 2);
    }

    #[test]
    fn comments_stay_and_a_broken_line_is_never_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("known_hosts");
        let hosts = KnownHosts::at(&path);
        std::fs::write(&path, format!("# mine\n\nhttps://h env {KEY}\n")).unwrap();
        hosts.remember(&host("env", OTHER)).unwrap();
        hosts.forget(Some("https://h"), "env").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("# mine\n\nhttps://relay.example.org env {OTHER}\n"));
        let broken = format!("# mine\nhttps://h env {}\n", &KEY[..20]);
        std::fs::write(&path, &broken).unwrap();
        let error = hosts.remember(&host("env", KEY)).unwrap_err().to_string();
        assert!(error.starts_with("line 2 of "), "{error}");
        assert!(hosts.forget(None, "env").is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), broken);
    }

    #[test]
    fn many_at_once_lose_nothing_and_agree_on_who_was_first() {
        let folder = tempfile::tempdir().unwrap();
        let hosts = KnownHosts::at(folder.path().join("known_hosts"));
        let befores: Vec<Before> = std::thread::scope(|scope| {
            let remember = |number: usize| {
                let hosts = hosts.clone();
                scope.spawn(move || {
                    hosts.remember(&host(&format!("env-{number}"), KEY)).unwrap();
                    let key = if number.is_multiple_of(2) { KEY } else { OTHER };
                    hosts.remember(&host("shared", key)).unwrap()
                })
            };
            let threads: Vec<_> = (0..16).map(remember).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(hosts.all().unwrap().len(), 17);
        assert_eq!(befores.iter().filter(|before| **before == Before::Unknown).count(), 1);
        assert_eq!(befores.iter().filter(|before| **before == Before::Same).count(), 7);
    }
}
