//! Stores the key pair of an executor or a harness in a file, so that its identity survives a restart.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::noise::SystemRandom;
use crate::noise::identity::{Identity, IdentityError};
use crate::registry_types::KEY_SUITE;
use exec_server_protocol::base64;
use serde::{Deserialize, Serialize};

/// Why an identity file could not be loaded or created.
#[derive(Debug, thiserror::Error)]
pub enum IdentityFileError {
    /// Reading or creating the file failed.
    #[error("cannot read or create the identity file {}", path.display())]
    Io {
        /// As configured.
        path: PathBuf,
        /// The failed file operation.
        #[source]
        source: io::Error,
    },
    /// The content is not the JSON of an identity with the current suite.
    #[error("{} is not an identity file of this version", path.display())]
    Form {
        /// As configured.
        path: PathBuf,
    },
    /// The secret keys have a malformed length or are damaged.
    #[error("the key in {} cannot be used", path.display())]
    Key {
        /// As configured.
        path: PathBuf,
        /// What is malformed with the key.
        #[source]
        source: IdentityError,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredIdentity {
    suite: String,
    x25519_secret_key: String,
    mlkem768_secret_key: String,
}

/// Loads the identity from a file and creates the file if it is missing; without a path, generates a new identity.
pub fn open(path: Option<&Path>) -> Result<Identity, IdentityFileError> {
    let Some(path) = path else { return Ok(Identity::generate(&mut SystemRandom)) };
    let failed = |source| IdentityFileError::Io { path: path.to_owned(), source };
    match std::fs::read(path) {
        Ok(text) => {
            warn_if_exposed(path);
            read(path, &text)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let identity = Identity::generate(&mut SystemRandom);
            match write_new(path, &identity) {
                Ok(()) => Ok(identity),
                // Another process created the file first; both must use the same key.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    read(path, &std::fs::read(path).map_err(failed)?)
                }
                Err(error) => Err(failed(error)),
            }
        }
        Err(error) => Err(failed(error)),
    }
}

/// A reader of the key can impersonate this machine. Some mounts fix the mode, so an exposed key is not an error.
fn warn_if_exposed(path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        if path.metadata().is_ok_and(|about| about.mode() & 0o077 != 0) {
            let path = path.display().to_string();
            tracing::warn!(path, "the identity file can be read or changed by others");
        }
    }
    #[cfg(not(unix))]
    let _ = path;
}

fn read(path: &Path, text: &[u8]) -> Result<Identity, IdentityFileError> {
    let malformed = || IdentityFileError::Form { path: path.to_owned() };
    let stored: StoredIdentity = serde_json::from_slice(text).map_err(|_| malformed())?;
    if stored.suite != KEY_SUITE {
        return Err(malformed());
    }
    let decode = |text: &str| base64::decode(text).map_err(|_| malformed());
    let (dh, kem) = (decode(&stored.x25519_secret_key)?, decode(&stored.mlkem768_secret_key)?);
    Identity::from_secret_keys(&dh, &kem, &mut SystemRandom)
        .map_err(|source| IdentityFileError::Key { path: path.to_owned(), source })
}

/// Writes a temporary file and links it into place: readers never see half a key, and an existing key is never replaced.
fn write_new(path: &Path, identity: &Identity) -> io::Result<()> {
    let stored = StoredIdentity {
        suite: KEY_SUITE.into(),
        x25519_secret_key: base64::encode(identity.x25519_secret_key()),
        mlkem768_secret_key: base64::encode(identity.mlkem768_secret_key()),
    };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    // Temporary files are created with mode 0600.
    let mut file = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))?;
    serde_json::to_writer_pretty(&mut file, &stored)?;
    file.write_all(b"\n")?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_created_once_with_mode_0600() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("identity.json");
        let first = open(Some(&path)).unwrap();
        assert_eq!(open(Some(&path)).unwrap().public_key(), first.public_key());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
        assert_ne!(open(None).unwrap().public_key(), open(None).unwrap().public_key());
    }

    #[test]
    fn a_broken_file_is_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("identity.json");
        std::fs::write(&path, "{}").unwrap();
        let error = open(Some(&path)).unwrap_err();
        assert!(error.to_string().contains("not an identity file"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"{}");
        let missing = directory.path().join("no/identity.json");
        assert!(open(Some(&missing)).unwrap_err().to_string().contains("cannot read or create"));
    }
}
