use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};

use super::*;
use crate::linux::mark;
use crate::linux::testing::{Ended, User, in_child};
use crate::peer::Network;

#[test]
fn a_connection_of_this_process_is_from_outside_and_of_its_user() {
    let peers = Peers::default();
    let own = Some(rustix::process::geteuid().as_raw());
    for address in ["127.0.0.1:0", "[::1]:0"] {
        let Ok(listener) = TcpListener::bind(address) else { continue };
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        let found = peers.of_tcp(peer, stream.local_addr().unwrap());
        assert_eq!(found, Peer { uid: own, place: PeerPlace::Outside });
        drop(client);
    }
}

#[test]
fn a_process_with_the_mark_is_found_and_counts_as_sandboxed() {
    for user in [User::Caller, User::Ordinary] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let judge = std::thread::spawn(move || {
            let (stream, peer) = listener.accept().unwrap();
            let found = Peers::default().of_tcp(peer, stream.local_addr().unwrap());
            (&ours).write_all(b"x").unwrap();
            found
        });
        let ended = in_child(user, || {
            mark::apply(Network::Host).unwrap();
            let _client = TcpStream::connect(address).unwrap();
            io::Read::read_exact(&mut (&theirs), &mut [0]).unwrap();
            0
        });
        assert_eq!(ended, Ended::Exit(0), "{user:?}");
        assert_eq!(judge.join().unwrap().place, PeerPlace::Sandbox, "{user:?}");
    }
}

#[test]
fn an_end_that_was_closed_may_have_been_inside() {
    for user in [User::Caller, User::Ordinary] {
        let ended = in_child(user, || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            client.write_all(b"everything").unwrap();
            drop(client);
            let (stream, peer) = listener.accept().unwrap();
            let local = stream.local_addr().unwrap();
            assert_eq!(Peers::default().of_tcp(peer, local).place, PeerPlace::Gone);
            // When both ends are closed, the kernel soon removes both.
            drop(stream);
            assert_eq!(Peers::default().of_tcp(peer, local).place, PeerPlace::Gone);
            0
        });
        assert_eq!(ended, Ended::Exit(0), "{user:?}");
    }
}

#[test]
fn an_end_of_another_machine_is_remote() {
    let local = "127.0.0.1:1".parse().unwrap();
    for (address, place) in [
        ("192.0.2.1:1", PeerPlace::Remote),
        ("[2001:db8::1]:1", PeerPlace::Remote),
        ("127.0.0.1:1", PeerPlace::Gone),
        ("127.9.9.9:1", PeerPlace::Gone),
        ("[::1]:1", PeerPlace::Gone),
        ("[::ffff:127.0.0.1]:1", PeerPlace::Gone),
        ("[::ffff:192.0.2.1]:1", PeerPlace::Remote),
    ] {
        let peer = address.parse().unwrap();
        assert_eq!(Peers::default().of_tcp(peer, local).place, place, "{address}");
    }
}

#[test]
fn the_peer_of_a_unix_socket_is_known_by_its_process() {
    let peers = Peers::default();
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let own = rustix::process::geteuid().as_raw();
    let expected = Peer { uid: Some(own), place: PeerPlace::Outside };
    assert_eq!(peers.of_unix(ours.as_fd()), expected);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
    for user in [User::Caller, User::Ordinary] {
        // The peer is looked up only after the process has exited.
        let ended = in_child(user, || {
            let mut socket = UnixStream::connect(&path).unwrap();
            socket.write_all(b"everything").unwrap();
            0
        });
        assert_eq!(ended, Ended::Exit(0));
        let (stream, _) = listener.accept().unwrap();
        assert_eq!(peers.of_unix(stream.as_fd()).place, PeerPlace::Gone, "{user:?}");
        // A running process is identified, also as another user.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (own_listener, judge) = (listener.try_clone().unwrap(), Peers::default());
        let judging = std::thread::spawn(move || {
            let (stream, _) = own_listener.accept().unwrap();
            let found = judge.of_unix(stream.as_fd());
            (&ours).write_all(b"x").unwrap();
            found
        });
        let ended = in_child(user, || {
            mark::apply(Network::Host).unwrap();
            let _socket = UnixStream::connect(&path).unwrap();
            io::Read::read_exact(&mut (&theirs), &mut [0]).unwrap();
            0
        });
        assert_eq!(ended, Ended::Exit(0));
        assert_eq!(judging.join().unwrap().place, PeerPlace::Sandbox, "{user:?}");
    }
}
