//! The bare server's `http/request`: one connection, a write, and a read until the answer is
//! complete. It knows the answers of the benchmark's own web server and no others.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use serde::Deserialize;

use super::messages;

/// The connection to the web server that was asked last.
#[derive(Default)]
pub struct Web {
    open: Option<(String, TcpStream)>,
    bytes: Vec<u8>,
}

/// What a request asks for, as far as the bare server listens.
#[derive(Deserialize)]
pub struct WebParams<'a> {
    url: &'a str,
}

impl Web {
    /// Appends the answer to a request, or nothing if it fails.
    pub fn answer(&mut self, out: &mut Vec<u8>, id: i64, params: &WebParams<'_>) -> io::Result<()> {
        let place = params.url.strip_prefix("http://").and_then(|rest| rest.split_once('/'));
        let (host, path) = place.ok_or(io::ErrorKind::InvalidInput)?;
        let stream = match &mut self.open {
            Some((open, stream)) if open == host => stream,
            closed => {
                let stream = TcpStream::connect(host)?;
                stream.set_nodelay(true)?;
                &mut closed.insert((host.to_owned(), stream)).1
            }
        };
        stream.write_all(format!("GET /{path} HTTP/1.1\r\nhost: {host}\r\n\r\n").as_bytes())?;
        let body = read_answer(stream, &mut self.bytes)?;
        let head = format!(r#"{{"id":{id},"result":{{"status":200,"headers":[],"bodyBase64":""#);
        messages::push_encoded(out, &head, body, r#""}}"#);
        Ok(())
    }
}

/// Reads one answer and returns its body.
fn read_answer<'a>(stream: &mut TcpStream, bytes: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
    let mut filled = 0;
    loop {
        if filled == bytes.len() {
            bytes.resize((filled * 2).max(8192), 0);
        }
        let count = stream.read(&mut bytes[filled..])?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        filled += count;
        if let Some((start, length)) = parse_head(&bytes[..filled])
            && filled >= start + length
        {
            return Ok(&bytes[start..start + length]);
        }
    }
}

/// Where the body of an answer begins, and how long it is.
fn parse_head(bytes: &[u8]) -> Option<(usize, usize)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let length = head.strip_prefix("HTTP/1.1 200 OK\r\ncontent-length: ")?;
    Some((end + 4, length.parse().ok()?))
}
