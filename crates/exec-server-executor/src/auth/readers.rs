//! Warns about files with secrets that other users can read.

use std::path::Path;

use super::{Auth, ExpectedToken};
use crate::config::ServerConfig;
use crate::remote::Credential;

/// Warns about every file with a secret of this server that other users can read.
pub fn warn_about_readers(config: &ServerConfig) {
    match &config.auth {
        Auth::CapabilityToken(ExpectedToken::File(file)) => warn_about("token", file.path()),
        Auth::SignedBearer(signed) => {
            signed.file().into_iter().for_each(|file| warn_about("shared secret", file));
        }
        Auth::CapabilityToken(ExpectedToken::Digest(_)) | Auth::Open => {}
    }
    if let Some(tls) = &config.tls {
        warn_about("TLS key", &tls.key);
    }
    if let Some(remote) = &config.remote
        && let Credential::File(file) = &remote.credential
    {
        warn_about("registry token", file);
    }
}

/// Warns if the file's mode gives other users any permission.
pub fn warn_about(what: &str, file: &Path) {
    let Some(mode) = mode_for_others(file) else { return };
    tracing::warn!(
        file = %file.display(),
        mode = %format_args!("{mode:04o}"),
        "other users can read the file with the {what}; run `chmod go= FILE`"
    );
}

/// The mode of a file that gives permissions to users other than its owner.
#[cfg(unix)]
fn mode_for_others(file: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    // A pipe or a device keeps no secret.
    let metadata = std::fs::metadata(file).ok().filter(std::fs::Metadata::is_file)?;
    let mode = metadata.mode() & 0o7777;
    // Files of root may have a group on purpose, as the keys in /etc/ssl/private do.
    let counted = if metadata.uid() == 0 { 0o007 } else { 0o077 };
    (mode & counted != 0).then_some(mode)
}

#[cfg(not(unix))]
fn mode_for_others(_file: &Path) -> Option<u32> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_files_that_other_users_can_access_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        std::fs::write(&file, "x").unwrap();
        for (mode, is_warned) in [(0o600, false), (0o400, false), (0o604, true), (0o666, true)] {
            std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(mode_for_others(&file), is_warned.then_some(mode), "{mode:o}");
        }
        assert_eq!(mode_for_others(&dir.path().join("missing")), None);
    }
}
