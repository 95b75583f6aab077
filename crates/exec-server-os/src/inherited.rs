//! A listening socket that a service manager opened for this program (socket activation).

use std::fmt;
use std::io;
use std::net::TcpListener;

/// A listening socket that a service manager opened for this program.
#[derive(Debug)]
pub enum InheritedListener {
    /// A TCP socket.
    Tcp(TcpListener),
    /// A unix socket with a path.
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixListener),
}

impl InheritedListener {
    /// The address or path that the socket is bound to.
    pub fn place(&self) -> io::Result<InheritedPlace> {
        match self {
            Self::Tcp(listener) => Ok(InheritedPlace::Tcp(listener.local_addr()?)),
            #[cfg(unix)]
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().ok_or_else(|| {
                    io::Error::other(
                        "the unix socket has no path: ListenStream= needs one that begins with /",
                    )
                })?;
                Ok(InheritedPlace::Unix(path.to_owned()))
            }
        }
    }
}

/// Where an inherited socket is bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InheritedPlace {
    /// An IP address and port.
    Tcp(std::net::SocketAddr),
    /// The path of a unix socket.
    Unix(std::path::PathBuf),
}

impl fmt::Display for InheritedPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "{address}"),
            Self::Unix(path) => write!(formatter, "{}", path.display()),
        }
    }
}

/// Why the socket of a service manager cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritedListenerError {
    /// `LISTEN_FDS` is not 1.
    #[error(
        "the service manager passes LISTEN_FDS={0}, and exec-server takes one socket: leave one ListenStream= in the \
         .socket unit"
    )]
    Count(String),
    /// The descriptor is no socket that accepts connections.
    #[error(
        "descriptor 3 of the service manager is no listening stream socket: the .socket unit needs ListenStream= with an \
         IP address or a path, and Accept=no"
    )]
    NotListening,
    /// The descriptor is missing or cannot be examined.
    #[error("could not take over the socket of the service manager (descriptor 3)")]
    Descriptor(#[source] io::Error),
}
