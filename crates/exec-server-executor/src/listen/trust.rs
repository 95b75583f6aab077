//! Decides which local processes a listener serves.
//!
//! | asked for | own user, root | other users | not identified | in a sandbox |
//! |---|---|---|---|---|
//! | nothing | served | 403 | 403 | closed |
//! | nothing, `--allow-other-users` | served | served | served | closed |
//! | a token | served | served | served | closed |
//!
//! A process whose socket is held by no visible process may be in a sandbox. It is refused while a sandbox of its user
//! shares the network, except by a server of an ordinary user for other users, whose descriptors that server cannot see.

use exec_server_os::peer::{Peer, PeerPlace};

use crate::config::ServerConfig;

const ROOT: u32 = 0;

/// How a listener decides which local processes may connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// By the user id of the peer process.
    SameUser,
    /// By the credential of each request, so the user does not matter.
    Token,
    /// Every user is served, as the operator configured.
    Anyone,
}

/// Whether a connection is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Requests are answered.
    Serve,
    /// The connection is closed without reading or writing; the text is for the log.
    Close(&'static str),
    /// Every request gets a 403 with the reason.
    Refuse(Refusal),
}

/// Why every request of a connection is refused; the text is the body of the 403.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A process of another user.
    #[error(
        "user {peer} may not connect: without --ws-auth this server serves only user {own} and root. \
         Start it with --ws-auth, or with --allow-other-users to serve every user of this machine"
    )]
    OtherUser {
        /// The user id of the peer.
        peer: u32,
        /// The user id of the server.
        own: u32,
    },
    /// The user of the peer, or whether it is in a sandbox, cannot be determined.
    #[error(
        "the process at the other end of this connection cannot be identified (it may be in another container, or \
         /proc and sock_diag may be closed here): start the server with --ws-auth, or with --allow-other-users to \
         serve every process of this machine"
    )]
    NotIdentified,
    /// The peer may be in a sandbox that shares the host's network.
    #[error(
        "the process at the other end of this connection hides its descriptors, and cannot be told from a sandboxed \
         one while a sandbox with the network enabled runs: connect to a unix socket (--listen unix:///PATH), or \
         again when that command has ended"
    )]
    Hidden,
}

impl Trust {
    /// The rule for a listener; `is_local` says whether only this machine can reach it.
    pub fn of(config: &ServerConfig, is_local: bool) -> Self {
        match () {
            () if !config.auth.is_open() => Self::Token,
            () if is_local && !config.allow_other_users => Self::SameUser,
            () => Self::Anyone,
        }
    }

    /// Whether a server of user `own` serves this peer.
    pub fn judge(self, peer: Peer, own: u32) -> Verdict {
        let is_trusted = |uid| uid == own || uid == ROOT;
        match (peer.place, self) {
            (PeerPlace::Sandbox, _) => Verdict::Close("the peer is in a sandbox"),
            (PeerPlace::Gone, _) => {
                Verdict::Close("the peer disconnected before it could be identified")
            }
            (PeerPlace::Remote, _) => Verdict::Serve,
            // Only root sees the descriptors of other users, so only for root a missing holder is suspicious.
            (PeerPlace::Hidden, Self::Anyone) if own != ROOT && peer.uid != Some(own) => {
                Verdict::Serve
            }
            (PeerPlace::Hidden, _) => Verdict::Refuse(Refusal::Hidden),
            (PeerPlace::Unknown | PeerPlace::Outside, Self::Token | Self::Anyone) => Verdict::Serve,
            (PeerPlace::Unknown, Self::SameUser) => match peer.uid {
                Some(uid) if !is_trusted(uid) => {
                    Verdict::Refuse(Refusal::OtherUser { peer: uid, own })
                }
                _ => Verdict::Refuse(Refusal::NotIdentified),
            },
            (PeerPlace::Outside, Self::SameUser) => match peer.uid {
                Some(uid) if is_trusted(uid) => Verdict::Serve,
                Some(uid) => Verdict::Refuse(Refusal::OtherUser { peer: uid, own }),
                None => Verdict::Refuse(Refusal::NotIdentified),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u32 = 1000;

    fn judge(trust: Trust, place: PeerPlace, uid: Option<u32>) -> &'static str {
        match trust.judge(Peer { uid, place }, OWN) {
            Verdict::Serve => "serve",
            Verdict::Close(_) => "close",
            Verdict::Refuse(_) => "refuse",
        }
    }

    #[test]
    fn a_sandboxed_or_disconnected_peer_is_never_served() {
        for trust in [Trust::SameUser, Trust::Token, Trust::Anyone] {
            for place in [PeerPlace::Sandbox, PeerPlace::Gone] {
                for uid in [Some(OWN), Some(0), Some(7), None] {
                    assert_eq!(judge(trust, place, uid), "close", "{trust:?} {place:?} {uid:?}");
                }
            }
            assert_eq!(judge(trust, PeerPlace::Hidden, Some(OWN)), "refuse", "{trust:?}");
            let other = Peer { uid: Some(7), place: PeerPlace::Hidden };
            assert_eq!(trust.judge(other, ROOT), Verdict::Refuse(Refusal::Hidden), "{trust:?}");
        }
    }

    #[test]
    fn without_a_token_only_the_own_user_and_root_are_served() {
        for (place, uid, expected) in [
            (PeerPlace::Outside, Some(OWN), "serve"),
            (PeerPlace::Outside, Some(0), "serve"),
            (PeerPlace::Outside, Some(7), "refuse"),
            (PeerPlace::Outside, None, "refuse"),
            (PeerPlace::Unknown, Some(OWN), "refuse"),
            (PeerPlace::Unknown, None, "refuse"),
        ] {
            assert_eq!(judge(Trust::SameUser, place, uid), expected, "{place:?} {uid:?}");
        }
        let other = Trust::SameUser.judge(Peer { uid: Some(7), place: PeerPlace::Outside }, OWN);
        let Verdict::Refuse(refusal) = other else { panic!("{other:?}") };
        assert!(refusal.to_string().contains("--allow-other-users"));
    }

    #[test]
    fn with_a_token_or_allow_other_users_every_user_is_served() {
        for trust in [Trust::Token, Trust::Anyone] {
            for place in [PeerPlace::Outside, PeerPlace::Unknown, PeerPlace::Remote] {
                for uid in [Some(OWN), Some(7), None] {
                    assert_eq!(judge(trust, place, uid), "serve", "{trust:?} {place:?} {uid:?}");
                }
            }
        }
    }
}
