//! `http/request` of the bare server: one connection, one write, and reads until the response is complete. It supports
//! only the responses of the benchmark's web server.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use serde::Deserialize;

use super::messages;

/// The connection to the last web server.
#[derive(Default)]
pub struct Web {
    open: Option<(String, TcpStream)>,
    bytes: Vec<u8>,
}

/// Params of `http/request` that the bare server supports.
#[derive(Deserialize)]
pub struct WebParams<'a> {
    url: &'a str,
}

impl Web {
    /// Appends the reply to a request, or nothing if it fails.
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

/// Reads one response and returns its body.
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

/// Offset and length of the body of a response.
fn parse_head(bytes: &[u8]) -> Option<(usize, usize)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let length = head.strip_prefix("HTTP/1.1 200 OK\r\ncontent-length: ")?;
    Some((end + 4, length.parse().ok()?))
}
