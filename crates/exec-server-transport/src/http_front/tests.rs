use std::future::{pending, ready};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

const HANDSHAKE: &[u8] =
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

fn answer(request: Request<Incoming>) -> Answer<&'static str> {
    let accepted = crate::upgrade::accept(request.headers());
    let result = match (request.uri().path(), accepted) {
        ("/ws", Ok(accepted)) => Ok(Upgrade::new(request, accepted, "context")),
        ("/version", _) => Err(version("test", "1.2.3")),
        _ => Err(check_metrics_route(&request, true)
            .err()
            .unwrap_or_else(|| openmetrics("x".into()))),
    };
    result.into()
}

async fn ask(request: &str) -> String {
    let (mut client, server) = tokio::io::duplex(4096);
    client.write_all(request.as_bytes()).await.unwrap();
    let serving = serve(server, "peer", PATIENCE, pending(), |request| ready(answer(request)));
    let reading = async {
        let mut reply = String::new();
        client.read_to_string(&mut reply).await.unwrap();
        reply
    };
    let (upgraded, reply) = tokio::join!(serving, reading);
    assert!(upgraded.is_none());
    reply
}

#[tokio::test]
async fn requests_are_answered_until_the_connection_closes() {
    let close = "Connection: close\r\n\r\n";
    let reply = ask(&format!("GET /version HTTP/1.1\r\nHost: localhost\r\n{close}")).await;
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    assert!(reply.ends_with(r#"{"name":"test","version":"1.2.3"}"#), "{reply}");
    for (head, status) in [
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\n", 200),
        ("POST /metrics HTTP/1.1\r\nHost: localhost\r\n", 405),
        ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n", 403),
        ("GET /metrics HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n", 403),
        ("GET /else HTTP/1.1\r\nHost: localhost\r\n", 404),
    ] {
        let reply = ask(&format!("{head}{close}")).await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status}")), "{head} {reply}");
        assert_eq!(reply.contains("allow: GET,HEAD"), status == 405, "{reply}");
        assert_eq!(reply.contains("openmetrics-text"), status == 200, "{reply}");
    }
}

#[tokio::test]
async fn an_accepted_handshake_hands_over_the_stream_with_its_context() {
    let (mut client, server) = tokio::io::duplex(4096);
    client.write_all(HANDSHAKE).await.unwrap();
    let upgraded =
        serve(server, "peer", PATIENCE, pending(), |request| ready(answer(request))).await;
    let (mut stream, context) = upgraded.expect("the handshake is valid");
    assert_eq!(context, "context");
    stream.write_all(b"after").await.unwrap();
    drop(stream);
    let mut reply = String::new();
    client.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 101") && reply.ends_with("\r\n\r\nafter"), "{reply}");
}

#[tokio::test]
async fn an_idle_connection_ends_when_the_server_stops() {
    let (_client, server) = tokio::io::duplex(4096);
    let upgraded =
        serve(server, "peer", PATIENCE, ready(()), |request| ready(answer(request))).await;
    assert!(upgraded.is_none());
}

#[tokio::test]
async fn accepting_continues_after_an_error() {
    let mut results = vec![Ok(7), Err(io::Error::other("out of descriptors"))];
    let accepted = accept_next(|| ready(results.pop().expect("no accept after a success"))).await;
    assert_eq!(accepted, 7);
}
