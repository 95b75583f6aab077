//! TLS certificate and key of the listener, loaded again when their files change.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio_rustls::TlsAcceptor;

use crate::tls::{self, TlsError};

/// The certificate and key in use.
pub struct Certificates {
    certificate: PathBuf,
    key: PathBuf,
    state: Mutex<State>,
}

struct State {
    acceptor: TlsAcceptor,
    loaded: Stamps,
    /// The files that could not be loaded, so that the failure is logged once.
    failed: Option<Stamps>,
}

/// Identifies the content of both files without reading them.
type Stamps = [Option<Stamp>; 2];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    #[cfg(unix)]
    inode: u64,
}

/// Outcome of a check for new files.
#[derive(Debug)]
pub enum Reload {
    /// The files are those in use, or those of the last failure.
    Unchanged,
    /// New connections use the new certificate.
    Loaded,
    /// The new files cannot be used; the old certificate stays in use.
    Failed(TlsError),
}

impl Certificates {
    /// Loads both files.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        // Before reading: a change in between is then seen by the next check.
        let loaded = stamps(certificate, key);
        let acceptor = tls::acceptor(certificate, key)?;
        let state = Mutex::new(State { acceptor, loaded, failed: None });
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), state })
    }

    /// The acceptor for a new connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.state.lock().expect("no holder panics").acceptor.clone()
    }

    /// Loads the files if they have changed; blocks on the file system.
    pub fn reload(&self) -> Reload {
        let found = stamps(&self.certificate, &self.key);
        {
            let state = self.state.lock().expect("no holder panics");
            if state.loaded == found || state.failed == Some(found) {
                return Reload::Unchanged;
            }
        }
        let loaded = tls::acceptor(&self.certificate, &self.key);
        let mut state = self.state.lock().expect("no holder panics");
        match loaded {
            Ok(acceptor) => {
                *state = State { acceptor, loaded: found, failed: None };
                Reload::Loaded
            }
            Err(error) => {
                state.failed = Some(found);
                Reload::Failed(error)
            }
        }
    }
}

/// Loads the certificate again when its files change.
pub async fn renew_certificates(certificates: Option<&Arc<Certificates>>, every: Duration) {
    let Some(certificates) = certificates else { return std::future::pending().await };
    loop {
        tokio::time::sleep(every).await;
        let certificates = certificates.clone();
        match tokio::task::spawn_blocking(move || certificates.reload()).await {
            Ok(Reload::Loaded) => tracing::info!("loaded a new TLS certificate"),
            Ok(Reload::Failed(error)) => tracing::warn!(
                %error,
                "the new TLS certificate cannot be used; the old one stays in use"
            ),
            Ok(Reload::Unchanged) | Err(_) => {}
        }
    }
}

fn stamps(certificate: &Path, key: &Path) -> Stamps {
    [certificate, key].map(|path| stamp(path).ok())
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    // Follows links: tools that rotate certificates swap a link to a directory.
    let found = fs::metadata(path)?;
    Ok(Stamp {
        modified: found.modified().ok(),
        length: found.len(),
        #[cfg(unix)]
        inode: std::os::unix::fs::MetadataExt::ino(&found),
    })
}
