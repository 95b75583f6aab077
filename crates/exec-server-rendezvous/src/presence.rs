//! Online status of environments, over HTTP or a unix socket in the data directory.
//!
//! The socket serves commands that work on the data directory. It needs no token, because access to the directory already
//! permits reading and changing the data. Each connection receives one JSON document. Attachment is known only to the
//! running process, so the socket also tells a running rendezvous from a stopped one.

use std::io;

use serde::{Deserialize, Serialize};

use crate::admin::{self, EnvironmentStatus};
use crate::data_dir::DataDir;
use crate::server::Rendezvous;
use crate::store::StoreError;

/// The status document.
#[derive(Debug, Serialize, Deserialize)]
pub struct Environments {
    /// All environments.
    pub environments: Vec<EnvironmentStatus>,
}

/// Lists all environments with their online status.
pub(crate) async fn environments(rendezvous: &Rendezvous) -> Result<Environments, StoreError> {
    let mut environments = admin::stored_environments(&*rendezvous.store).await?;
    let ids: Vec<String> = environments.iter().map(|it| it.id.clone()).collect();
    let mut presences = rendezvous.bus.presences(&ids).await?;
    for environment in &mut environments {
        let presence = presences.remove(&environment.id);
        environment.online = Some(presence.is_some());
        if let Some(presence) = presence {
            environment.online_since = Some(presence.since);
            environment.streams = presence.streams;
        }
    }
    Ok(Environments { environments })
}

/// Queries the rendezvous that runs on this data; `NotFound` or `ConnectionRefused` means that none is running.
pub fn ask(data: &DataDir) -> io::Result<Environments> {
    let text = socket::read(data)?;
    serde_json::from_slice(&text).map_err(io::Error::from)
}

pub(crate) use socket::PresenceSocket;

#[cfg(unix)]
mod socket {
    use std::fs;
    use std::io::{self, Read};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixStream;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixListener;

    use super::environments;
    use crate::data_dir::DataDir;
    use crate::server::Rendezvous;

    /// Timeout of an interactive command.
    const SOCKET_TIMEOUT: Duration = Duration::from_secs(5);

    /// Shortest limit of a unix socket address among the supported systems.
    const LONGEST_ADDRESS: usize = 100;

    /// The unix socket in the data directory; dropping it removes the file.
    pub struct PresenceSocket {
        listener: UnixListener,
        path: PathBuf,
    }

    impl PresenceSocket {
        /// Binds the socket and replaces a stale file; the caller holds the directory lock.
        pub fn bind(data: &DataDir) -> io::Result<Self> {
            let path = data.presence_socket();
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = at(&path, |address| UnixListener::bind(address))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            Ok(Self { listener, path })
        }

        /// Serves clients one after the other.
        pub async fn serve(&self, rendezvous: &Rendezvous) {
            loop {
                let Ok((mut stream, _)) = self.listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                match environments(rendezvous).await {
                    Ok(known) => {
                        let text = serde_json::to_vec(&known).expect("plain data can be written");
                        // A client that does not read must not block the next one.
                        let _ = tokio::time::timeout(SOCKET_TIMEOUT, stream.write_all(&text)).await;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "could not read the environments for the presence socket")
                    }
                }
            }
        }
    }

    impl Drop for PresenceSocket {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.path);
        }
    }

    pub fn read(data: &DataDir) -> io::Result<Vec<u8>> {
        let mut stream = at(&data.presence_socket(), |address| UnixStream::connect(address))?;
        stream.set_read_timeout(Some(SOCKET_TIMEOUT))?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        Ok(text)
    }

    /// Calls `act` with the path, or with a short alias through `/proc` if the path exceeds the address limit.
    fn at<T>(path: &Path, act: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
        if path.as_os_str().len() <= LONGEST_ADDRESS || !cfg!(target_os = "linux") {
            return act(path);
        }
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return act(path);
        };
        let parent = fs::File::open(parent)?;
        act(&Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(name))
    }
}

/// Without unix sockets the online status cannot be queried.
#[cfg(not(unix))]
mod socket {
    use std::io;

    use crate::data_dir::DataDir;
    use crate::server::Rendezvous;

    pub enum PresenceSocket {}

    impl PresenceSocket {
        pub fn bind(_data: &DataDir) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub async fn serve(&self, _rendezvous: &Rendezvous) {
            match *self {}
        }
    }

    pub fn read(_data: &DataDir) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
