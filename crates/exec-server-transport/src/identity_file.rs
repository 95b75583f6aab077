//! Where an executor or a harness keeps its key, so that those who know it can recognise it.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use exec_server_machines::noise::SystemRandom;
use exec_server_machines::noise::identity::{Identity, IdentityError};
use exec_server_protocol::base64;
use exec_server_protocol::registry::KEY_SUITE;
use serde::{Deserialize, Serialize};

/// Why a key cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum IdentityFileError {
    /// The file cannot be read or made.
    #[error("could not use the identity file {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is no identity file of this version", path.display())]
    Form {
        /// The file.
        path: PathBuf,
    },
    /// The key in it is broken.
    #[error("the key in {} cannot be used", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: IdentityError,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    suite: String,
    x25519_secret_key: String,
    mlkem768_secret_key: String,
}

/// The key in a file, which is made if there is none; without a file, a new key.
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
            match keep(path, &identity) {
                Ok(()) => Ok(identity),
                // Another program was faster; there is one key for both.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    read(path, &std::fs::read(path).map_err(failed)?)
                }
                Err(error) => Err(failed(error)),
            }
        }
        Err(error) => Err(failed(error)),
    }
}

/// Whoever reads the key can be this machine; it may be mounted in a way that leaves no choice, so it is used anyway.
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
    let wrong = || IdentityFileError::Form { path: path.to_owned() };
    let kept: Kept = serde_json::from_slice(text).map_err(|_| wrong())?;
    if kept.suite != KEY_SUITE {
        return Err(wrong());
    }
    let decode = |text: &str| base64::decode(text).map_err(|_| wrong());
    let (dh, kem) = (decode(&kept.x25519_secret_key)?, decode(&kept.mlkem768_secret_key)?);
    Identity::from_secret_keys(&dh, &kem, &mut SystemRandom)
        .map_err(|source| IdentityFileError::Key { path: path.to_owned(), source })
}

/// Written beside and linked into place, so that nobody ever reads half a key and nobody's key is replaced.
fn keep(path: &Path, identity: &Identity) -> io::Result<()> {
    let kept = Kept {
        suite: KEY_SUITE.into(),
        x25519_secret_key: base64::encode(identity.x25519_secret_key()),
        mlkem768_secret_key: base64::encode(identity.mlkem768_secret_key()),
    };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    // Only its owner can read a file that is made this way.
    let mut file = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")))?;
    serde_json::to_writer_pretty(&mut file, &kept)?;
    file.write_all(b"\n")?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path).map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_only_its_owner_can_read_it() {
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
        assert!(error.to_string().contains("no identity file"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"{}");
        let missing = directory.path().join("no/identity.json");
        assert!(open(Some(&missing)).unwrap_err().to_string().contains("could not use"));
    }
}
