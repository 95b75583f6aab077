//! Admits only processes of this user to a TCP listener of a client command.

use std::net::SocketAddr;

use exec_server_os::Peers;

use super::judge;
use super::trust::{Trust, Verdict};

/// Decides which processes may connect: those of this user and of root that are in no sandbox. With a token, which the
/// listener checks itself, processes of other users and machines as well.
#[derive(Debug)]
pub struct LocalGate {
    peers: Peers,
    trust: Trust,
}

impl LocalGate {
    /// A gate for a listener with or without a token.
    pub fn new(has_token: bool) -> Self {
        let trust = if has_token { Trust::Token } else { Trust::SameUser };
        Self { peers: Peers::default(), trust }
    }

    /// Whether the process at the other end of an accepted connection may connect. May block.
    pub fn admits(&self, peer: SocketAddr, local: SocketAddr) -> bool {
        let (verdict, _) = judge(self.trust, self.peers.of_tcp(peer, local));
        matches!(verdict, Verdict::Serve)
    }
}
