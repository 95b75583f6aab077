use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::*;

#[tokio::test]
async fn it_carries_bytes_both_ways_and_their_end() {
    let (proxy, listener) = tcp().await;
    let (mut client, mut server) = connect(&proxy, &listener).await;
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(read_all(&mut server).await.unwrap(), b"question");
    server.write_all(b"answer").await.unwrap();
    drop(server);
    assert_eq!(read_all(&mut client).await.unwrap(), b"answer");
    proxy.wait_for_silence().await;
    assert_eq!((proxy.carried(Toward::Server), proxy.carried(Toward::Client)), (8, 6));
}

#[tokio::test]
async fn a_cut_resets_both_sides_and_the_next_connection_gets_through() {
    let (proxy, listener) = tcp().await;
    let (mut client, mut server) = connect(&proxy, &listener).await;
    proxy.cut();
    for side in [&mut client, &mut server] {
        let error = read_all(side).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    let (mut client, mut server) = connect(&proxy, &listener).await;
    client.write_all(b"x").await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'x');
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test]
async fn a_cut_at_a_byte_count_lets_exactly_those_bytes_through() {
    let (proxy, listener) = tcp().await;
    let (mut client, mut server) = connect(&proxy, &listener).await;
    client.write_all(b"before").await.unwrap();
    proxy.wait_for_carried(Toward::Server, 6).await;
    proxy.cut_after(Toward::Server, 3);
    client.write_all(b"0123456789").await.unwrap();
    assert_eq!(read_until_it_ends(&mut server).await, b"before012");
    assert_eq!(read_until_it_ends(&mut client).await, b"");
}

#[tokio::test]
async fn a_stalled_direction_waits_while_the_other_flows() {
    let (proxy, listener) = tcp().await;
    let (mut client, mut server) = connect(&proxy, &listener).await;
    proxy.stall(Toward::Server);
    client.write_all(b"late").await.unwrap();
    server.write_all(b"early").await.unwrap();
    let mut early = [0; 5];
    client.read_exact(&mut early).await.unwrap();
    assert_eq!((&early, proxy.carried(Toward::Server)), (b"early", 0));
    proxy.resume();
    let mut late = [0; 4];
    server.read_exact(&mut late).await.unwrap();
    assert_eq!(&late, b"late");
}

#[tokio::test]
async fn a_half_close_ends_one_direction_only() {
    let (proxy, listener) = tcp().await;
    let (mut client, mut server) = connect(&proxy, &listener).await;
    proxy.half_close(Toward::Client);
    assert_eq!(read_all(&mut client).await.unwrap(), b"");
    client.write_all(b"still here").await.unwrap();
    let mut heard = [0; 10];
    server.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"still here");
}

#[tokio::test]
async fn an_unplugged_cable_turns_connections_away() {
    let (proxy, listener) = tcp().await;
    let (mut client, _server) = connect(&proxy, &listener).await;
    proxy.unplug();
    read_all(&mut client).await.unwrap_err();
    let mut refused = dial(&proxy).await;
    read_all(&mut refused).await.unwrap_err();
    proxy.wait_for_refused(1).await;
    proxy.plug_in();
    let (mut client, mut server) = connect(&proxy, &listener).await;
    server.write_all(b"hello").await.unwrap();
    drop(server);
    assert_eq!(read_all(&mut client).await.unwrap(), b"hello");
}

#[tokio::test]
async fn seeded_faults_change_no_byte_and_cut_where_the_seed_determines() {
    let sent: Vec<u8> = (0..200_000_u32).map(|index| (index % 251) as u8).collect();
    let faults = FaultSchedule {
        seed: 7,
        delay: Duration::ZERO..Duration::from_micros(50),
        piece: 1..5000,
        cut_every: None,
    };
    let (proxy, listener) = tcp().await;
    proxy.set_faults(Some(faults.clone()));
    let (mut client, mut server) = connect(&proxy, &listener).await;
    let sending = async {
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let (_, received) = tokio::join!(sending, read_all(&mut server));
    assert!(received.unwrap() == sent);

    proxy.set_faults(Some(FaultSchedule { cut_every: Some(1000..50_000), ..faults }));
    let (mut client, mut server) = connect(&proxy, &listener).await;
    let sending = async {
        // The cut happens in the middle of the write.
        let _ = client.write_all(&sent).await;
    };
    let (_, received) = tokio::join!(sending, read_until_it_ends(&mut server));
    assert!(received.len() >= 1000 && received.len() < 55_000, "{}", received.len());
    assert!(sent.starts_with(&received));
}

#[tokio::test]
async fn a_unix_server_gets_a_unix_cable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("server.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let proxy = FaultProxy::to(&format!("unix://{}", path.display())).await;
    let mut client =
        UnixStream::connect(proxy.url().strip_prefix("unix://").unwrap()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    client.write_all(b"x").await.unwrap();
    assert_eq!(server.read_u8().await.unwrap(), b'x');
    proxy.cut();
    assert_eq!(client.read(&mut [0; 8]).await.unwrap_or(0), 0);
    assert_eq!(server.read(&mut [0; 8]).await.unwrap_or(0), 0);
}

async fn tcp() -> (FaultProxy, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/some/path", listener.local_addr().unwrap());
    let proxy = FaultProxy::to(&url).await;
    assert!(proxy.url().ends_with("/some/path"));
    (proxy, listener)
}

async fn connect(proxy: &FaultProxy, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = dial(proxy).await;
    let (server, _) = timeout(DEADLINE, listener.accept()).await.unwrap().unwrap();
    (client, server)
}

async fn dial(proxy: &FaultProxy) -> TcpStream {
    let address = proxy.url().strip_prefix("ws://").unwrap().split('/').next().unwrap();
    TcpStream::connect(address).await.unwrap()
}

async fn read_all(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut all = Vec::new();
    timeout(DEADLINE, stream.read_to_end(&mut all)).await.expect("it ends in time")?;
    Ok(all)
}

/// Bytes received before the end, however the stream ended.
async fn read_until_it_ends(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = timeout(DEADLINE, stream.read_to_end(&mut all)).await.expect("it ends in time");
    all
}
