//! What a service manager such as systemd hears of a server and a rendezvous.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use exec_server_testkit::executor::Signal;
use exec_server_testkit::{DEADLINE, TestExecutor};
use serde_json::json;

fn next(socket: &UnixDatagram) -> String {
    let mut message = [0; 1000];
    let count = socket.recv(&mut message).expect("a message comes in time");
    String::from_utf8(message[..count].to_vec()).unwrap()
}

/// The next message other than from the watchdog.
fn next_state(socket: &UnixDatagram) -> String {
    loop {
        let message = next(socket);
        if message != "WATCHDOG=1" {
            return message;
        }
    }
}

fn listening_at(address: &SocketAddr) -> UnixDatagram {
    let socket = UnixDatagram::bind_addr(address).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

#[tokio::test]
async fn it_hears_that_a_server_is_ready_alive_and_stopping() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = listening_at(&SocketAddr::from_pathname(&path).unwrap());
    let builder = TestExecutor::builder().env("NOTIFY_SOCKET", &path);
    let mut server = builder.env("WATCHDOG_USEC", "100000").start().await;
    assert_eq!(next_state(&socket), format!("READY=1\nSTATUS=listening on {}", server.url()));
    for _ in 0..3 {
        assert_eq!(next(&socket), "WATCHDOG=1");
    }
    // A command could otherwise speak for the server.
    let mut client = server.client().await;
    let policy = json!({"inherit": "all", "ignoreDefaultExcludes": true, "exclude": [], "set": {}, "includeOnly": []});
    let more = json!({ "envPolicy": policy });
    let found = client.run("p", &["/usr/bin/env"], more).await;
    assert!(found.text().contains("HOME="), "{}", found.text());
    assert!(!found.text().contains("NOTIFY_SOCKET") && !found.text().contains("WATCHDOG"));
    server.signal(Signal::TERM);
    assert_eq!(next_state(&socket), "STOPPING=1");
    assert_eq!(server.wait().await.code(), Some(0));
}

#[tokio::test]
async fn it_hears_of_a_rendezvous_on_an_abstract_socket() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("exec-server-notify-{}", std::process::id());
    let socket = listening_at(&SocketAddr::from_abstract_name(&name).unwrap());
    let data = dir.path().join("data");
    let arguments =
        ["rendezvous", "--listen", "http://127.0.0.1:0", "--data", data.to_str().unwrap()];
    let builder = TestExecutor::builder().args(&arguments);
    let mut server = builder.env("NOTIFY_SOCKET", format!("@{name}")).start().await;
    assert_eq!(next_state(&socket), format!("READY=1\nSTATUS=listening on {}", server.url()));
    server.signal(Signal::TERM);
    assert_eq!(next_state(&socket), "STOPPING=1");
    assert_eq!(server.wait().await.code(), Some(0));
}
