//! Who dialled: a sandboxed process that shares the machine's network must not get at the server itself.
//!
//! The owner of the other end is looked for in the descriptors of every process of our user. One that lives in another
//! pid namespace is inside a sandbox. Whoever cannot be found counts as one of a sandbox, too: an end that nobody has open
//! may be on its way between two processes, and one that was closed already has no owner any more, but what it said waits
//! to be read.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::linux::check;

/// Whether a connection may come from inside a sandbox of this server; may block.
pub fn is_from_sandbox(peer: SocketAddr, local: SocketAddr) -> bool {
    match find_end(peer, local) {
        // The kernel says that it was root's, whoever had it.
        Some(end) if end.is_closed() => true,
        Some(end) => end.uid == rustix::process::geteuid().as_raw() && is_held_inside(&end.inode),
        // It is gone without a trace, unless it belongs to another machine.
        None => is_of_this_machine(peer),
    }
}

/// Whether the other end of a unix socket was connected inside of a sandbox; also if that cannot be told any more.
pub fn is_peer_inside(socket: BorrowedFd) -> bool {
    let Some(peer) = peer_at_that_time(socket) else { return true };
    if peer.uid != rustix::process::geteuid().as_raw() {
        return false;
    }
    match peer_process(socket) {
        Ok(process) => {
            let Some(pid) = pid_of(&process) else { return true };
            // As long as it has not ended, the number is its own.
            is_inside(pid) || has_ended(&process)
        }
        // Before Linux 6.5 there is only its number.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            u32::try_from(peer.pid).map_or(true, is_inside)
        }
        Err(_) => true,
    }
}

fn peer_process(socket: BorrowedFd) -> io::Result<OwnedFd> {
    const PEER_PIDFD: libc::c_int = 77;
    let mut process: libc::c_int = -1;
    ask(socket, PEER_PIDFD, &mut process)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(process) })
}

/// Who connected; a pid of zero is somebody whom this process cannot see.
fn peer_at_that_time(socket: BorrowedFd) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    ask(socket, libc::SO_PEERCRED, &mut peer).ok()?;
    Some(peer)
}

fn ask<T: Copy>(socket: BorrowedFd, option: libc::c_int, answer: &mut T) -> io::Result<()> {
    let mut size = size_of::<T>() as libc::socklen_t;
    let (fd, answer) = (socket.as_raw_fd(), (&raw mut *answer).cast());
    // SAFETY: fills a live local, which may hold any bytes, and no more than its size.
    check(unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, answer, &raw mut size) })
        .map(drop)
}

fn pid_of(process: &OwnedFd) -> Option<u32> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd())).ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    // Zero is somebody whom this process cannot see, and less than that somebody who has ended.
    line.trim().parse().ok().filter(|pid| *pid > 0)
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut events = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
    !matches!(rustix::io::retry_on_intr(|| poll(&mut events, Some(&now))), Ok(0))
}

/// Whether a process is in another pid namespace than this one, which for a process of ours means a sandbox.
fn is_inside(pid: u32) -> bool {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    namespace(&pid.to_string()) != namespace("self")
}

/// Only an address of this machine can be had here.
fn is_of_this_machine(peer: SocketAddr) -> bool {
    let mut here = peer;
    here.set_ip(peer.ip().to_canonical());
    here.set_port(0);
    here.ip().is_loopback() || UdpSocket::bind(here).is_ok()
}

struct End {
    inode: String,
    uid: u32,
}

impl End {
    fn is_closed(&self) -> bool {
        self.inode == "0"
    }
}

fn find_end(peer: SocketAddr, local: SocketAddr) -> Option<End> {
    let tables = [("/proc/net/tcp", false), ("/proc/net/tcp6", true)];
    tables.into_iter().find_map(|(table, is_v6)| {
        let (from, to) = (written(peer, is_v6)?, written(local, is_v6)?);
        let table = fs::read_to_string(table).ok()?;
        table.lines().skip(1).find_map(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            if fields.next()? != from || fields.next()? != to {
                return None;
            }
            let uid = fields.nth(4)?.parse().ok()?;
            Some(End { uid, inode: fields.nth(1)?.to_owned() })
        })
    })
}

/// An address as the kernel's tables have it: words in the order of this machine, in hexadecimal digits.
fn written(address: SocketAddr, is_v6: bool) -> Option<String> {
    let ip = match (address.ip(), is_v6) {
        (IpAddr::V4(ip), false) => format!("{:08X}", u32::from_ne_bytes(ip.octets())),
        (IpAddr::V4(ip), true) => words(ip.to_ipv6_mapped()),
        (IpAddr::V6(ip), true) => words(ip),
        (IpAddr::V6(ip), false) => {
            format!("{:08X}", u32::from_ne_bytes(ip.to_ipv4_mapped()?.octets()))
        }
    };
    Some(format!("{ip}:{:04X}", address.port()))
}

fn words(ip: Ipv6Addr) -> String {
    let octets = ip.octets();
    let words = octets.chunks_exact(4).map(|word| {
        let word = word.try_into().expect("chunks are of four");
        format!("{:08X}", u32::from_ne_bytes(word))
    });
    words.collect()
}

fn is_held_inside(inode: &str) -> bool {
    let wanted = PathBuf::from(format!("socket:[{inode}]"));
    let holders: Vec<u32> = numbers(Path::new("/proc"))
        .into_iter()
        .filter(|pid| holds(&PathBuf::from(format!("/proc/{pid}/task")), &wanted))
        .collect();
    holders.is_empty() || holders.into_iter().any(is_inside)
}

/// Every thread may have descriptors of its own.
fn holds(tasks: &Path, wanted: &Path) -> bool {
    numbers(tasks).into_iter().any(|task| {
        let descriptors = fs::read_dir(tasks.join(format!("{task}/fd")));
        descriptors
            .into_iter()
            .flatten()
            .flatten()
            .any(|descriptor| fs::read_link(descriptor.path()).is_ok_and(|target| target == wanted))
    })
}

fn numbers(dir: &Path) -> Vec<u32> {
    let number = |name: &OsStr| std::str::from_utf8(name.as_bytes()).ok()?.parse().ok();
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| number(&entry.file_name())).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use crate::linux::sandbox::testing::{Ended, User, in_child};

    #[test]
    fn an_end_that_this_process_holds_is_found_and_is_not_inside() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (stream, peer) = listener.accept().unwrap();
            let local = stream.local_addr().unwrap();
            let end = find_end(peer, local).expect("it is in the table");
            assert_eq!(end.uid, rustix::process::geteuid().as_raw());
            assert!(!is_from_sandbox(peer, local));
            drop(client);
        }
    }

    #[test]
    fn an_end_that_nobody_holds_may_be_on_its_way() {
        assert!(is_held_inside("999999999999"));
    }

    #[test]
    fn an_end_that_was_closed_may_have_been_inside() {
        for user in [User::Caller, User::Ordinary] {
            let ended = in_child(user, || {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                io::Write::write_all(&mut client, b"everything").unwrap();
                drop(client);
                let (stream, peer) = listener.accept().unwrap();
                let local = stream.local_addr().unwrap();
                assert!(is_from_sandbox(peer, local));
                // When this end is closed, too, the kernel soon forgets both.
                drop(stream);
                assert!(is_from_sandbox(peer, local));
                0
            });
            assert_eq!(ended, Ended::Exit(0), "{user:?}");
        }
    }

    #[test]
    fn an_end_of_another_machine_is_nobody_of_ours() {
        let local = "127.0.0.1:1".parse().unwrap();
        for (address, is_ours) in [
            ("192.0.2.1:1", false),
            ("[2001:db8::1]:1", false),
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("[::ffff:192.0.2.1]:1", false),
        ] {
            let peer = address.parse().unwrap();
            assert_eq!(is_from_sandbox(peer, local), is_ours, "{address}");
        }
    }

    #[test]
    fn the_peer_of_a_unix_socket_is_known_by_its_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert!(!is_peer_inside(ours.as_fd()));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        // They say everything and end before anybody looks.
        for (user, may_be_inside) in [(User::Caller, true), (User::Ordinary, !is_root)] {
            let ended = in_child(user, || {
                let mut socket = UnixStream::connect(&path).unwrap();
                io::Write::write_all(&mut socket, b"everything").unwrap();
                0
            });
            assert_eq!(ended, Ended::Exit(0));
            let (stream, _) = listener.accept().unwrap();
            assert_eq!(is_peer_inside(stream.as_fd()), may_be_inside, "{user:?}");
        }
    }
}
