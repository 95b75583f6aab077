//! Looks up the local peer socket of a TCP connection in the kernel.
//!
//! `sock_diag` looks up one connection in a few microseconds. Where it is not available, `/proc/net/tcp` lists the same
//! data for all connections.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// The peer socket of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// Connected, or half closed.
    Open {
        /// The user that created the socket.
        uid: u32,
        /// Identifies the socket among the descriptors of processes.
        inode: u64,
    },
    /// Closed by its process; the kernel may still send its data.
    Closed,
}

/// Finds the socket at `peer` of a connection that this process has accepted at `local`.
pub fn find_endpoint(peer: SocketAddr, local: SocketAddr) -> io::Result<Option<Endpoint>> {
    match ask_kernel(peer, local) {
        Ok(endpoint) => Ok(Some(endpoint)),
        // A kernel without the sock_diag module reports the same errors, so the tables are searched as well.
        Err(_) => find_in_tables(peer, local),
    }
}

const ESTABLISHED: u8 = 1;
const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;
const CLOSE_WAIT: u8 = 8;

/// All other states belong to connections that are not yet established or already closed.
fn endpoint(state: u8, uid: u32, inode: u64) -> Endpoint {
    let is_connected = matches!(state, ESTABLISHED | FIN_WAIT_1 | FIN_WAIT_2 | CLOSE_WAIT);
    if is_connected && inode != 0 { Endpoint::Open { uid, inode } } else { Endpoint::Closed }
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
const ANSWER_BYTES: usize = HEADER_BYTES + 72;

fn ask_kernel(peer: SocketAddr, local: SocketAddr) -> io::Result<Endpoint> {
    let kind = SocketType::DGRAM;
    let protocol = Some(netlink::SOCK_DIAG);
    let socket = socket_with(AddressFamily::NETLINK, kind, SocketFlags::CLOEXEC, protocol)?;
    let request = request(peer, local);
    send(&socket, &request, SendFlags::empty())?;
    let mut answer = [0_u8; 1024];
    let (_, length) = recv(&socket, &mut answer, RecvFlags::empty())?;
    read_answer(&answer[..length], &request)
}

fn request(peer: SocketAddr, local: SocketAddr) -> [u8; REQUEST_BYTES] {
    let (peer, local) = (canonical(peer), canonical(local));
    let family = if peer.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 } as u8;
    let mut request = [0; REQUEST_BYTES];
    request[..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    request[16] = family;
    request[17] = libc::IPPROTO_TCP as u8;
    request[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    request[24..26].copy_from_slice(&peer.port().to_be_bytes());
    request[26..28].copy_from_slice(&local.port().to_be_bytes());
    put_address(&mut request[28..44], peer.ip());
    put_address(&mut request[44..60], local.ip());
    // No cookie: the addresses identify the socket.
    request[64..72].fill(0xff);
    request
}

fn put_address(into: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(address) => into[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => into.copy_from_slice(&address.octets()),
    }
}

fn read_answer(answer: &[u8], request: &[u8; REQUEST_BYTES]) -> io::Result<Endpoint> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let word = |at: usize| -> io::Result<u32> {
        let bytes = answer.get(at..at + 4).ok_or_else(bad)?;
        Ok(u32::from_ne_bytes(bytes.try_into().expect("four bytes were taken")))
    };
    let kind = answer.get(4..6).ok_or_else(bad)?;
    let kind = u16::from_ne_bytes(kind.try_into().expect("two bytes were taken"));
    if kind == libc::NLMSG_ERROR as u16 {
        return Err(io::Error::from_raw_os_error(word(HEADER_BYTES)?.cast_signed().wrapping_neg()));
    }
    if kind != SOCK_DIAG_BY_FAMILY || answer.len() < ANSWER_BYTES {
        return Err(bad());
    }
    // If there is no such connection, the kernel returns a listener on the same port.
    if answer[20..24] != request[24..28] {
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(endpoint(answer[17], word(80)?, u64::from(word(84)?)))
}

fn canonical(mut address: SocketAddr) -> SocketAddr {
    address.set_ip(address.ip().to_canonical());
    address
}

fn find_in_tables(peer: SocketAddr, local: SocketAddr) -> io::Result<Option<Endpoint>> {
    let v4 = fs::read_to_string("/proc/net/tcp").map(|table| find_in(&table, peer, local, false));
    let v6 = fs::read_to_string("/proc/net/tcp6").map(|table| find_in(&table, peer, local, true));
    match (v4, v6) {
        (Ok(Some(found)), _) | (_, Ok(Some(found))) => Ok(Some(found)),
        // A kernel without IPv6 has no tcp6 table.
        (Ok(None), _) => Ok(None),
        (Err(error), _) => Err(error),
    }
}

fn find_in(table: &str, peer: SocketAddr, local: SocketAddr, is_v6: bool) -> Option<Endpoint> {
    let (from, to) = (written(peer, is_v6)?, written(local, is_v6)?);
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        if fields.next()? != from || fields.next()? != to {
            return None;
        }
        let state = u8::from_str_radix(fields.next()?, 16).ok()?;
        let uid = fields.nth(3)?.parse().ok()?;
        Some(endpoint(state, uid, fields.nth(1)?.parse().ok()?))
    })
}

/// An address in the format of the kernel's tables: hexadecimal words in native byte order.
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

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernel_and_its_tables_say_the_same_of_every_kind_of_address() {
        for (bind, dial) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("0.0.0.0:0", "127.0.0.9"),
            ("[::1]:0", "::1"),
            ("[::]:0", "::1"),
            ("[::]:0", "127.0.0.1"),
            ("[::]:0", "::ffff:127.0.0.1"),
        ] {
            let Ok(listener) = TcpListener::bind(bind) else { continue };
            let dial = (dial.parse::<IpAddr>().unwrap(), listener.local_addr().unwrap().port());
            let Ok(client) = TcpStream::connect(dial) else { continue };
            let (stream, peer) = listener.accept().unwrap();
            let local = stream.local_addr().unwrap();
            let found = ask_kernel(peer, local).expect("the connection is open");
            let Endpoint::Open { uid, inode } = found else { panic!("{bind}: {found:?}") };
            assert_eq!(uid, rustix::process::geteuid().as_raw(), "{bind}");
            assert_ne!(inode, 0);
            assert_eq!(find_in_tables(peer, local).unwrap(), Some(found), "{bind}");
            assert_eq!(find_endpoint(peer, local).unwrap(), Some(found), "{bind}");
            // A half-closed socket counts as open.
            client.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(find_endpoint(peer, local).unwrap(), Some(found), "{bind}");
            drop(client);
            let closed = find_endpoint(peer, local).unwrap();
            assert_eq!(closed, Some(Endpoint::Closed), "{bind}");
            assert_eq!(find_in_tables(peer, local).unwrap(), Some(Endpoint::Closed), "{bind}");
            drop(stream);
        }
    }

    #[test]
    fn a_listener_on_the_same_port_is_not_the_other_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        assert_eq!(find_endpoint(local, "127.0.0.1:1".parse().unwrap()).unwrap(), None);
    }

    #[test]
    fn an_answer_that_is_cut_short_is_an_error() {
        let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let request = request(address, address);
        let mut answer = vec![0; ANSWER_BYTES];
        answer[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        answer[20..24].copy_from_slice(&request[24..28]);
        assert_eq!(read_answer(&answer, &request).unwrap(), Endpoint::Closed);
        for length in 0..ANSWER_BYTES {
            read_answer(&answer[..length], &request).unwrap_err();
        }
    }
}
