//! Who is there, as an administrator hears it: by HTTP, or at a socket in the data directory.
//!
//! The socket is for commands that work on the data itself. Whoever reaches it may read and change that data anyway, so it
//! asks for no token: each connection gets one JSON document, and then its end. Who is attached is known to the running
//! process alone, and a socket ends with it, so that nobody is ever called present by a file that was left behind.

use std::io;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::admin::{self, EnvironmentStatus};
use crate::clock::Seconds;
use crate::data_dir::DataDir;
use crate::server::Rendezvous;
use crate::store::StoreError;

/// What is said about everybody.
#[derive(Debug, Serialize, Deserialize)]
pub struct Environments {
    /// All environments.
    pub environments: Vec<EnvironmentStatus>,
}

/// All environments, and whether their executors are attached.
pub(crate) async fn environments(rendezvous: &Rendezvous) -> Result<Environments, StoreError> {
    let mut environments = rendezvous.storage.ask(admin::stored_environments).await?;
    for environment in &mut environments {
        let presence = rendezvous.bus.presence(&environment.id).await;
        environment.online = Some(presence.is_some());
        if let Some(presence) = presence {
            let ago = Instant::now().saturating_duration_since(presence.since).as_secs();
            let since = rendezvous.config.clock.now() - Seconds::try_from(ago).unwrap_or(0);
            environment.online_since = Some(since);
            environment.streams = Some(presence.streams);
        }
    }
    Ok(Environments { environments })
}

/// Asks the rendezvous that runs with this data; an error of the kinds `NotFound` and `ConnectionRefused` means that none does.
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

    /// A person waits for it.
    const PATIENCE: Duration = Duration::from_secs(5);

    /// An address of a socket has room for about so many bytes; the least of all systems.
    const LONGEST_ADDRESS: usize = 100;

    /// The socket in the data directory; its name goes with it.
    pub struct PresenceSocket {
        listener: UnixListener,
        path: PathBuf,
    }

    impl PresenceSocket {
        /// Takes the place of one that was left behind; the caller has the directory to itself.
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

        /// Says who is there to everybody who comes, one after the other.
        pub async fn serve(&self, rendezvous: &Rendezvous) {
            loop {
                let Ok((mut stream, _)) = self.listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                match environments(rendezvous).await {
                    Ok(known) => {
                        let text = serde_json::to_vec(&known).expect("plain data can be written");
                        // Whoever does not read it must not keep others from it.
                        let _ = tokio::time::timeout(PATIENCE, stream.write_all(&text)).await;
                    }
                    Err(error) => tracing::warn!(%error, "could not say who is there"),
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
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text)?;
        Ok(text)
    }

    /// Uses a socket's path as an address, however long it is.
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

/// Where there are no such sockets, nobody can be asked.
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
