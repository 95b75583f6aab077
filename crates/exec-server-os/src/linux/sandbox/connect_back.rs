//! Who dialled: a sandboxed process that shares the machine's network must not get at the server itself.
//!
//! The owner of the other end is looked for in the descriptors of every process of our user. One that lives in another
//! pid namespace is inside a sandbox. An end that nobody has open may be on its way between two processes, so it counts
//! as one of a sandbox, too.

use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Whether a connection may come from inside a sandbox of this server; may block.
pub fn is_from_sandbox(peer: SocketAddr, local: SocketAddr) -> bool {
    // An end that this machine does not know belongs to another one.
    let Some(end) = find_end(peer, local) else { return false };
    if end.uid != rustix::process::geteuid().as_raw() {
        return false;
    }
    is_held_inside(&end.inode)
}

/// Whether a process is in another pid namespace than this one, which for a process of ours means a sandbox.
pub fn is_inside(pid: u32) -> bool {
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    namespace(&pid.to_string()) != namespace("self")
}

struct End {
    inode: String,
    uid: u32,
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

    use super::*;

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
        let far: SocketAddr = "192.0.2.1:1".parse().unwrap();
        assert!(!is_from_sandbox(far, "127.0.0.1:1".parse().unwrap()));
    }
}
