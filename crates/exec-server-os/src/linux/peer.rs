//! Identifies the peer process of a local connection: its user, and whether it runs in a sandbox.
//!
//! | module | purpose |
//! |---|---|
//! | this file | combines the findings into a [`Peer`] |
//! | `endpoint` | looks up the peer socket of a TCP connection: its user, its inode, whether it is open |
//! | `holders` | finds the processes that have a socket open |
//!
//! A missing holder proves nothing: a sandboxed process can keep its socket in flight between two unix sockets of its
//! own, where no process holds it.

mod endpoint;
mod holders;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::endpoint::{Endpoint, find_endpoint};
use self::holders::{Holders, Process, Search};
use super::{check, procfs};
use crate::peer::{Peer, PeerPlace};

/// Identifies peers, and caches in which processes they were found.
#[derive(Debug, Default)]
pub struct Peers {
    holders: Holders,
}

impl Peers {
    /// The user of this process.
    pub fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    /// Lists the processes of this machine, so that the first peer is found sooner; may block.
    pub fn look_ahead(&self) {
        self.holders.list();
    }

    /// The peer of a TCP connection that this process has accepted; may block.
    pub fn of_tcp(&self, peer: SocketAddr, local: SocketAddr) -> Peer {
        match find_endpoint(peer, local) {
            Ok(Some(Endpoint::Open { uid, inode })) => {
                let found = self.holders.search(inode, uid);
                // If no holder was found, it may have exited during the search, together with its sandbox.
                let is_open = || {
                    let now = find_endpoint(peer, local);
                    matches!(now, Ok(Some(Endpoint::Open { inode: now, .. })) if now == inode)
                };
                let is_seen = matches!(found, Search::Outside | Search::Inside);
                let place = if is_seen || is_open() { place_of(found) } else { PeerPlace::Gone };
                Peer { uid: known(uid), place }
            }
            Ok(Some(Endpoint::Closed)) => Peer { uid: None, place: PeerPlace::Gone },
            Ok(None) if is_of_this_machine(peer) => Peer { uid: None, place: PeerPlace::Gone },
            Err(_) if is_of_this_machine(peer) => Peer { uid: None, place: PeerPlace::Unknown },
            Ok(None) | Err(_) => Peer { uid: None, place: PeerPlace::Remote },
        }
    }

    /// The peer of a unix socket: the process that called `connect`.
    pub fn of_unix(&self, socket: BorrowedFd) -> Peer {
        let Ok(credentials) = peer_credentials(socket) else {
            return Peer { uid: None, place: PeerPlace::Unknown };
        };
        let place = match peer_process(socket) {
            Ok(process) => match pid_of(&process) {
                // The pid is valid only while the process has not exited, so that is checked after the lookup.
                Some(pid) if pid > 0 => match place_of_process(pid.unsigned_abs()) {
                    _ if has_ended(&process) => PeerPlace::Gone,
                    place => place,
                },
                Some(0) => PeerPlace::Unknown,
                _ => PeerPlace::Gone,
            },
            // Before Linux 6.5 there is no peer pidfd, only the pid.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                match u32::try_from(credentials.pid) {
                    Ok(0) | Err(_) => PeerPlace::Unknown,
                    Ok(pid) => place_of_process(pid),
                }
            }
            Err(_) => PeerPlace::Gone,
        };
        Peer { uid: known(credentials.uid), place }
    }
}

fn place_of(found: Search) -> PeerPlace {
    match found {
        Search::Outside | Search::Concealed { near_sandbox: false } => PeerPlace::Outside,
        Search::Inside => PeerPlace::Sandbox,
        Search::Concealed { near_sandbox: true } | Search::Nowhere { near_sandbox: true } => {
            PeerPlace::Hidden
        }
        Search::Nowhere { near_sandbox: false } => PeerPlace::Unknown,
    }
}

fn place_of_process(pid: u32) -> PeerPlace {
    let Some(process) = Process::open(pid) else { return PeerPlace::Gone };
    match process.is_sandboxed() {
        Some(true) => PeerPlace::Sandbox,
        Some(false) => PeerPlace::Outside,
        None => PeerPlace::Gone,
    }
}

/// `None` for the overflow id: a user namespace shows it for every user that it does not map.
fn known(uid: u32) -> Option<u32> {
    let number = |path: &str| procfs::text(path).ok()?.trim().parse::<u32>().ok();
    let is_overflow = || number("/proc/sys/kernel/overflowuid").unwrap_or(65534) == uid;
    let maps_everything = || {
        procfs::text("/proc/self/uid_map")
            .is_ok_and(|map| map.split_ascii_whitespace().eq(["0", "0", "4294967295"]))
    };
    (!is_overflow() || maps_everything()).then_some(uid)
}

fn peer_process(socket: BorrowedFd) -> io::Result<OwnedFd> {
    const PEER_PIDFD: libc::c_int = 77;
    let mut process: libc::c_int = -1;
    ask(socket, PEER_PIDFD, &mut process)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(process) })
}

fn peer_credentials(socket: BorrowedFd) -> io::Result<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    ask(socket, libc::SO_PEERCRED, &mut peer)?;
    Ok(peer)
}

fn ask<T: Copy>(socket: BorrowedFd, option: libc::c_int, answer: &mut T) -> io::Result<()> {
    let mut size = size_of::<T>() as libc::socklen_t;
    let (fd, answer) = (socket.as_raw_fd(), (&raw mut *answer).cast());
    // SAFETY: fills a live local, which may hold any bytes, and no more than its size.
    check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, answer, &raw mut size) })
        .map(drop)
}

/// The pid behind a pidfd: 0 for a process in a pid namespace that is not visible here, -1 for one that has exited.
fn pid_of(process: &OwnedFd) -> Option<i32> {
    let info = procfs::text(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?;
    info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut events = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
    !matches!(rustix::io::retry_on_intr(|| poll(&mut events, Some(&now))), Ok(0))
}

/// Whether the address belongs to this machine: only such an address can be bound.
fn is_of_this_machine(peer: SocketAddr) -> bool {
    let mut here = peer;
    here.set_ip(peer.ip().to_canonical());
    here.set_port(0);
    here.ip().is_loopback() || UdpSocket::bind(here).is_ok()
}

#[cfg(test)]
mod tests;
