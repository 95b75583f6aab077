//! HTTP through the client: buffered responses, streams, and streams that break.

use exec_server::{ExecServerError, HttpRequestParams};
use exec_server_testkit::DEADLINE;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::commands::connected;
use super::peer::{Peer, scripted_client};

/// A web server that answers one request with `body`, in a few pieces.
async fn answering(body: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(socket.read_u8().await.unwrap());
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
        socket.write_all(head.as_bytes()).await.unwrap();
        for piece in body.chunks(5) {
            socket.write_all(piece).await.unwrap();
            socket.flush().await.unwrap();
        }
        let _ = socket.read_u8().await;
    });
    url
}

#[tokio::test]
async fn a_response_is_buffered_or_streamed() {
    let (_server, client) = connected().await;
    let url = answering(b"hello world").await;
    let answer = client.http().http_request(HttpRequestParams::get("x", url)).await.unwrap();
    assert_eq!((answer.status, answer.body_base64.0.as_slice()), (200, &b"hello world"[..]));
    let url = answering(b"hello stream").await;
    let params = HttpRequestParams::get("", url);
    let (head, body) = client.http().http_request_stream(params).await.unwrap();
    assert_eq!((head.status, head.body_base64.0.len()), (200, 0));
    assert_eq!(body.collect().await.unwrap(), b"hello stream");
    let url = answering(b"read as bytes").await;
    let params = HttpRequestParams::get("", url);
    let (_, mut body) = client.http().http_request_stream(params).await.unwrap();
    let mut text = String::new();
    body.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "read as bytes");
}

async fn serve_head(peer: &mut Peer) -> String {
    let asked = peer.expect("http/request").await;
    assert_eq!(asked.params["streamResponse"], true);
    peer.reply(&asked, json!({"status": 200, "headers": [], "bodyBase64": ""})).await;
    asked.params["requestId"].as_str().unwrap().to_owned()
}

async fn delta(peer: &mut Peer, id: &str, seq: u64, text: &str, done: bool) {
    let chunk = exec_server::protocol::base64::encode(text.as_bytes());
    let params =
        json!({"requestId": id, "seq": seq, "deltaBase64": chunk, "done": done, "error": null});
    peer.notify("http/request/bodyDelta", params).await;
}

#[tokio::test]
async fn a_stream_that_breaks_is_an_error_and_never_a_clean_end() {
    let (client, mut peers) = scripted_client();
    let http = client.http();
    let serving = async {
        let mut peer = peers.accept_session("s-1").await;
        let id = serve_head(&mut peer).await;
        (peer, id)
    };
    let asking = http.http_request_stream(HttpRequestParams::get("", "http://h/"));
    let (answer, (mut peer, id)) = tokio::join!(asking, serving);
    let (_, mut body) = answer.unwrap();
    assert_eq!(id, "http-1");
    delta(&mut peer, &id, 1, "first", false).await;
    assert_eq!(body.recv().await.unwrap().unwrap(), "first");
    delta(&mut peer, &id, 2, "queued", false).await;
    delta(&mut peer, "http-99", 1, "somebody else's", false).await;
    drop(peer);
    assert_eq!(body.recv().await.unwrap().unwrap(), "queued");
    let error = timeout(DEADLINE, body.recv()).await.unwrap().expect_err("it broke off");
    assert!(matches!(error, ExecServerError::HttpBody(_)), "{error}");
    assert!(body.recv().await.is_err(), "and stays so");
}

#[tokio::test]
async fn a_dropped_stream_is_cancelled_and_its_late_pieces_are_ignored() {
    let (client, mut peers) = scripted_client();
    let http = client.http();
    let serving = async {
        let mut peer = peers.accept_session("s-1").await;
        let id = serve_head(&mut peer).await;
        (peer, id)
    };
    let asking = http.http_request_stream(HttpRequestParams::get("", "http://h/"));
    let (answer, (mut peer, id)) = tokio::join!(asking, serving);
    drop(answer.unwrap());
    let asked = peer.expect("http/cancel").await;
    assert_eq!(asked.params["requestId"], id.as_str());
    delta(&mut peer, &id, 1, "late", true).await;
    peer.reply(&asked, json!({"cancelled": true})).await;
    let asking = http.http_request_stream(HttpRequestParams::get("", "http://h/"));
    let (answer, second) = tokio::join!(asking, serve_head(&mut peer));
    assert_eq!(second, "http-2");
    let (_, mut body) = answer.unwrap();
    delta(&mut peer, &second, 1, "", true).await;
    assert_eq!(body.recv().await.unwrap(), None, "a clean end is no error");
}
