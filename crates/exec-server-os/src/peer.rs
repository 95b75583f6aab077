//! Identity of the peer process of a connection, and what its mark says of its network.

use serde::{Deserialize, Serialize};

/// The peer of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The user that created the peer socket, if the kernel reports it.
    pub uid: Option<u32>,
    /// Location of the process that holds the peer socket.
    pub place: PeerPlace,
}

/// Location of the peer process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerPlace {
    /// On another machine.
    Remote,
    /// On this machine, outside of every exec-server sandbox.
    Outside,
    /// In an exec-server sandbox.
    Sandbox,
    /// The peer socket is closed or its process has exited, so the process may have been in a sandbox.
    Gone,
    /// No visible process holds the peer socket, and a sandbox of its user shares the machine's network.
    Hidden,
    /// The location cannot be determined, for example for a process in a pid namespace that is not visible here.
    Unknown,
}

/// The network access of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Loopback only.
    Isolated,
    /// The host's network.
    Host,
}
