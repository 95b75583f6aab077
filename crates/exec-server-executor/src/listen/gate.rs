//! Admits only processes of this user to a TCP listener of a client command.

use std::net::SocketAddr;
use std::sync::Arc;

use exec_server_os::Peers;

use super::judge;
use super::trust::{Trust, Verdict};

/// Decides which processes may connect: those of this user and of root that are in no sandbox. With a token, which the
/// listener checks itself, processes of other users and machines as well.
#[derive(Debug)]
pub struct LocalGate {
    peers: Arc<Peers>,
    trust: Trust,
}

impl LocalGate {
    /// A gate for a listener with or without a token; requires a running event loop.
    pub fn new(has_token: bool) -> Self {
        let trust = if has_token { Trust::Token } else { Trust::SameUser };
        let peers = Arc::new(Peers::default());
        let ahead = peers.clone();
        tokio::task::spawn_blocking(move || ahead.look_ahead());
        Self { peers, trust }
    }

    /// Whether the process at the other end of an accepted connection may connect. May block.
    pub fn admits(&self, peer: SocketAddr, local: SocketAddr) -> bool {
        let (verdict, _) = judge(self.trust, self.peers.of_tcp(peer, local));
        matches!(verdict, Verdict::Serve)
    }
}
