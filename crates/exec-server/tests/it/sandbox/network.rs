//! Connections to processes outside of the sandbox.
#![allow(unsafe_code, reason = "what a sandbox must refuse are system calls")]

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram, UnixListener, UnixStream};

use exec_server_testkit::TestExecutor;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::attempt::{are_refused, check, outcomes, variable};
use super::fixture::{SandboxFixture, as_each_user, users};
use super::*;
use crate::files::host::as_nobody;

/// Sockets of every kind on which a process outside listens.
pub struct Outside {
    tcp: TcpListener,
    udp: UdpSocket,
    path: UnixListener,
    datagrams: UnixDatagram,
    abstracts: UnixListener,
}

impl Outside {
    pub fn listen(fixture: &mut SandboxFixture) -> Self {
        let name = format!("exec-server-test-{}-{:p}", std::process::id(), &raw const *fixture);
        let socket = fixture.outside().join("socket");
        let datagrams = fixture.outside().join("datagrams");
        let outside = Self {
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            path: UnixListener::bind(&socket).unwrap(),
            datagrams: UnixDatagram::bind(&datagrams).unwrap(),
            abstracts: UnixListener::bind_addr(&UnixAddr::from_abstract_name(&name).unwrap())
                .unwrap(),
        };
        for path in [&socket, &datagrams] {
            crate::files::host::set_mode(path, 0o777);
        }
        let (tcp, udp) = (outside.tcp.local_addr().unwrap(), outside.udp.local_addr().unwrap());
        fixture.env.insert("TCP".to_owned(), tcp.to_string());
        fixture.env.insert("UDP".to_owned(), udp.to_string());
        fixture.env.insert("ABSTRACT".to_owned(), name);
        outside.tcp.set_nonblocking(true).unwrap();
        outside.udp.set_nonblocking(true).unwrap();
        outside.path.set_nonblocking(true).unwrap();
        outside.datagrams.set_nonblocking(true).unwrap();
        outside.abstracts.set_nonblocking(true).unwrap();
        outside
    }

    /// The reached listeners, each once.
    pub fn reached(&self) -> Vec<&str> {
        let mut buffer = [0; 16];
        let heard = [
            ("tcp", self.tcp.accept().is_ok()),
            ("udp", self.udp.recv(&mut buffer).is_ok()),
            ("path", self.path.accept().is_ok()),
            ("datagrams", self.datagrams.recv(&mut buffer).is_ok()),
            ("abstract", self.abstracts.accept().is_ok()),
        ];
        heard.into_iter().filter(|(_, heard)| *heard).map(|(name, _)| name).collect()
    }
}

pub const CALLS: [&str; 5] = ["tcp", "udp", "unix", "unix_datagram", "unix_abstract"];

#[tokio::test]
async fn without_a_network_no_process_outside_is_reached() {
    as_each_user(async |fixture| {
        let outside = Outside::listen(fixture);
        outcomes(fixture, &Value::Null, &CALLS).await;
        assert_eq!(outside.reached(), ["tcp", "udp", "path", "datagrams", "abstract"]);
        for policy in [fixture.workspace("restricted"), unrestricted("restricted")] {
            let inside = outcomes(fixture, &policy, &CALLS).await;
            assert!(outside.reached().is_empty(), "{inside:?}");
            assert!(inside.values().all(|outcome| outcome != "ok"), "{inside:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn without_a_network_no_descriptor_is_passed_out() {
    as_each_user(async |fixture| {
        let outside = Outside::listen(fixture);
        outcomes(fixture, &Value::Null, &["pass_descriptor"]).await;
        let (stream, _) = outside.path.accept().unwrap();
        assert!(holds_descriptor(&stream));
        let policy = fixture.workspace("restricted");
        let inside = outcomes(fixture, &policy, &["pass_descriptor"]).await;
        assert_eq!(inside["pass_descriptor"], "EPERM");
        assert!(outside.path.accept().is_err());
    })
    .await;
}

#[tokio::test]
async fn an_empty_network_is_shared_within_a_session_only() {
    as_each_user(async |fixture| {
        let sandbox = fixture.workspace("restricted");
        let script = "readlink /proc/self/ns/net /proc/self/ns/user; cat /proc/net/dev | wc -l";
        let first = fixture.run(&sandbox, script).await.text();
        let second = fixture.run(&sandbox, script).await.text();
        let host = fixture.run_free(script).await.text();
        let params = fixture.params(&sandbox);
        let mut other = fixture.server.client().await;
        other.start("p", &["/bin/sh", "-c", script], params).await.expect("it starts");
        let other = other.finish("p").await.text();
        let line = |text: &str, number: usize| text.lines().nth(number).unwrap().to_owned();
        assert_eq!(line(&first, 0), line(&second, 0));
        assert_ne!(line(&first, 0), line(&other, 0));
        assert_ne!(line(&first, 0), line(&host, 0));
        // Two lines of a table's head, and the loopback.
        assert_eq!(line(&first, 2), "3");
    })
    .await;
}

fn holds_descriptor(stream: &UnixStream) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0];
    let mut buffer = [io::IoSliceMut::new(&mut bytes)];
    recvmsg(stream, &mut buffer, &mut control, RecvFlags::empty()).unwrap();
    control.drain().any(|message| matches!(message, RecvAncillaryMessage::ScmRights(_)))
}

#[tokio::test]
async fn with_a_network_no_local_service_is_reached_by_a_hidden_name_or_a_datagram() {
    as_each_user(async |fixture| {
        let outside = Outside::listen(fixture);
        for policy in [fixture.workspace("enabled"), unrestricted("enabled")] {
            outcomes(fixture, &policy, &["tcp", "udp", "unix_datagram", "unix_abstract"]).await;
            assert_eq!(outside.reached(), ["tcp", "udp"]);
        }
    })
    .await;
}

#[tokio::test]
async fn with_a_network_the_sockets_that_speak_for_the_user_are_hidden() {
    for user in users() {
        let dir = tempfile::tempdir().unwrap();
        crate::files::host::set_mode(dir.path(), 0o755);
        let builder = TestExecutor::builder().env("SSH_AUTH_SOCK", dir.path().join("agent")).env(
            "DBUS_SESSION_BUS_ADDRESS",
            format!("unix:path={}", dir.path().join("bus").display()),
        );
        let Some(builder) = (if user.is_some() { as_nobody(builder) } else { Some(builder) })
        else {
            return;
        };
        let mut fixture = SandboxFixture::new(builder.start().await, user).await;
        for name in ["agent", "bus"] {
            let path = dir.path().join(name);
            let service = UnixListener::bind(&path).unwrap();
            service.set_nonblocking(true).unwrap();
            crate::files::host::set_mode(&path, 0o777);
            fixture.env.insert("SOCKET".to_owned(), path.to_str().unwrap().to_owned());
            outcomes(&mut fixture, &Value::Null, &["unix_named"]).await;
            assert!(service.accept().is_ok());
            let policy = fixture.workspace("enabled");
            let inside = outcomes(&mut fixture, &policy, &["unix_named"]).await;
            assert!(service.accept().is_err(), "{name} was reached: {inside:?}");
        }
    }
}

#[tokio::test]
async fn sockets_of_other_kinds_are_refused() {
    as_each_user(async |fixture| {
        let always = ["socket_netlink_audit", "socket_unix_datagram", "pair_datagram"];
        let as_root = ["socket_packet", "socket_raw"];
        for policy in [fixture.workspace("restricted"), fixture.workspace("enabled")] {
            are_refused(fixture, &policy, &always, &as_root).await;
            // Not every kernel has these.
            let exotic =
                ["socket_vsock", "socket_alg", "socket_xdp", "socket_bluetooth", "socket_tipc"];
            let inside = outcomes(fixture, &policy, &exotic).await;
            assert!(inside.values().all(|outcome| outcome == "EPERM"), "{inside:?}");
        }
        let policy = fixture.workspace("restricted");
        let listening = ["socket_inet", "socket_inet6", "socket_netlink", "listen_unix"];
        are_refused(fixture, &policy, &listening, &[]).await;
    })
    .await;
}

#[tokio::test]
async fn pairs_of_sockets_work_without_a_network_and_loopback_with_one() {
    as_each_user(async |fixture| {
        let restricted = fixture.workspace("restricted");
        let inside = outcomes(fixture, &restricted, &["pair_stream", "pair_packets"]).await;
        assert!(inside.values().all(|outcome| outcome == "ok"), "{inside:?}");
        let outside = Outside::listen(fixture);
        let policy = fixture.workspace("enabled");
        let names = ["pair_stream", "tcp", "own_loopback", "own_socket", "socket_netlink"];
        let inside = outcomes(fixture, &policy, &names).await;
        assert!(inside.values().all(|outcome| outcome == "ok"), "{inside:?}");
        assert_eq!(outside.reached(), ["tcp"]);
    })
    .await;
}

pub fn perform(name: &str) -> io::Result<()> {
    let socket = |family, kind, protocol| {
        // SAFETY: takes numbers only.
        check(unsafe { libc::socket(family, kind, protocol) })
    };
    let out = |name: &str| format!("{}/{name}", variable("OUT"));
    match name {
        "tcp" => TcpStream::connect(variable("TCP")).map(drop),
        "udp" => {
            let from = UdpSocket::bind("127.0.0.1:0")?;
            from.send_to(b"hello", variable("UDP")).map(drop)
        }
        "unix" => UnixStream::connect(out("socket")).map(drop),
        "pass_descriptor" => {
            let stream = UnixStream::connect(out("socket"))?;
            let directory = std::fs::File::open(variable("WORK"))?;
            let fds = [directory.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&fds));
            let text = [io::IoSlice::new(b"d")];
            Ok(sendmsg(&stream, &text, &mut control, SendFlags::empty()).map(drop)?)
        }
        "unix_named" => UnixStream::connect(variable("SOCKET")).map(drop),
        "unix_datagram" => UnixDatagram::unbound()?.send_to(b"hello", out("datagrams")).map(drop),
        "unix_abstract" => {
            let address = UnixAddr::from_abstract_name(variable("ABSTRACT"))?;
            UnixStream::connect_addr(&address).map(drop)
        }
        "socket_inet" => socket(libc::AF_INET, libc::SOCK_STREAM, 0),
        "socket_inet6" => socket(libc::AF_INET6, libc::SOCK_DGRAM, 0),
        "socket_netlink" => socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE),
        "socket_netlink_audit" => {
            socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_KOBJECT_UEVENT)
        }
        "socket_unix_datagram" => socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0),
        "socket_packet" => socket(libc::AF_PACKET, libc::SOCK_RAW, 0),
        "socket_raw" => socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP),
        "socket_vsock" => socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0),
        "socket_alg" => socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
        "socket_xdp" => socket(libc::AF_XDP, libc::SOCK_RAW, 0),
        "socket_bluetooth" => socket(libc::AF_BLUETOOTH, libc::SOCK_RAW, 0),
        "socket_tipc" => socket(libc::AF_TIPC, libc::SOCK_SEQPACKET, 0),
        "pair_datagram" => UnixDatagram::pair().map(drop),
        "pair_stream" => {
            let (mut one, mut other) = UnixStream::pair()?;
            io::Write::write_all(&mut one, b"hi")?;
            io::Read::read_exact(&mut other, &mut [0; 2])
        }
        "pair_packets" => {
            let mut pair = [0; 2];
            // SAFETY: fills a live local.
            check(unsafe {
                libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, pair.as_mut_ptr())
            })
        }
        "listen_unix" => UnixListener::bind(format!("{}/listening", variable("WORK"))).map(drop),
        "own_socket" => {
            let path = format!("{}/own", variable("WORK"));
            let _listener = UnixListener::bind(&path)?;
            UnixStream::connect(&path).map(drop)
        }
        "own_loopback" => {
            let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
            TcpStream::connect(listener.local_addr()?).map(drop)
        }
        _ => super::landlock_level::perform(name),
    }
}
