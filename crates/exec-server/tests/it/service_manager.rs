//! What a service manager such as systemd hears of a server and a rendezvous.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use exec_server_testkit::executor::Signal;
use exec_server_testkit::isolation::free_address;
use exec_server_testkit::{DEADLINE, TestExecutor};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg, sockopt::set_socket_passcred,
};
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
    let builder = TestExecutor::builder().args(&arguments).env("WATCHDOG_USEC", "100000");
    let mut server = builder.env("NOTIFY_SOCKET", format!("@{name}")).start().await;
    assert_eq!(next_state(&socket), format!("READY=1\nSTATUS=listening on {}", server.url()));
    for _ in 0..3 {
        assert_eq!(next(&socket), "WATCHDOG=1");
    }
    server.signal(Signal::TERM);
    assert_eq!(next_state(&socket), "STOPPING=1");
    assert_eq!(server.wait().await.code(), Some(0));
}

#[tokio::test]
async fn it_hears_of_an_executor_also_while_its_rendezvous_is_down() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = listening_at(&SocketAddr::from_pathname(&path).unwrap());
    let remote = format!("http://{}", free_address());
    let mut executor = TestExecutor::builder()
        .args(&["--remote", &remote, "--environment-id", "box"])
        .env("EXEC_SERVER_REMOTE_TOKEN", "xs_executor_of_this_test")
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "100000")
        .piped_stderr()
        .spawn();
    // A unit that waited for a registry would be restarted instead of trying again.
    assert_eq!(next_state(&socket), "READY=1\nSTATUS=serving");
    let mut line = String::new();
    while !line.contains("could not register") {
        line = executor.next_stderr_line().await.expect("the failure is logged");
    }
    for _ in 0..3 {
        assert_eq!(next(&socket), "WATCHDOG=1");
    }
    executor.signal(Signal::TERM);
    assert_eq!(next_state(&socket), "STOPPING=1");
    assert_eq!(executor.wait().await.code(), Some(0));
}

/// The next message, and the process that sent it.
fn next_with_sender(socket: &UnixDatagram) -> (String, i32) {
    let mut message = [0; 1000];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut message)];
    let received = recvmsg(socket, &mut parts, &mut control, RecvFlags::empty()).unwrap();
    let sender = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid.as_raw_nonzero().get()),
        _ => None,
    });
    (String::from_utf8(message[..received.bytes].to_vec()).unwrap(), sender.unwrap())
}

#[tokio::test]
async fn it_hears_only_of_the_process_that_it_started() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = listening_at(&SocketAddr::from_pathname(&path).unwrap());
    set_socket_passcred(&socket, true).unwrap();
    let mut server = TestExecutor::builder().env("NOTIFY_SOCKET", &path).start().await;
    assert_ne!(server.pid(), server.serving_pid());
    let main = server.pid().cast_signed();
    let (text, sender) = next_with_sender(&socket);
    assert!(text.starts_with("READY=1\n") && sender == main, "{text} of {sender}, not of {main}");
    server.signal(Signal::TERM);
    assert_eq!(next_with_sender(&socket), ("STOPPING=1".to_owned(), main));
    assert_eq!(server.wait().await.code(), Some(0));
}

#[tokio::test]
async fn the_watchdog_of_another_process_is_not_fed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = listening_at(&SocketAddr::from_pathname(&path).unwrap());
    let builder = TestExecutor::builder().env("NOTIFY_SOCKET", &path);
    // A server that fed it would send a message at once.
    let builder = builder.env("WATCHDOG_USEC", "1000").env("WATCHDOG_PID", "1");
    let mut server = builder.start().await;
    assert!(next(&socket).starts_with("READY=1"));
    assert_eq!(server.client().await.sh("p", "echo hello").await.text(), "hello\n");
    server.signal(Signal::TERM);
    assert_eq!(next(&socket), "STOPPING=1");
    assert_eq!(server.wait().await.code(), Some(0));
}
