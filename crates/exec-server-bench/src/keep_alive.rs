//! HTTP requests to a rendezvous over one connection that stays open.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::failure::{Failure, Result};

/// Longer than any working request takes.
const TIMEOUT: Duration = Duration::from_secs(30);

/// An open connection.
pub struct KeepAlive {
    stream: TcpStream,
    address: SocketAddr,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl KeepAlive {
    /// Connects.
    pub fn connect(address: SocketAddr) -> Result<KeepAlive> {
        let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(KeepAlive { stream, address, request: Vec::new(), reply: Vec::new() })
    }

    /// Sends a request with a JSON body; returns status and body of the reply.
    pub fn post(&mut self, path: &str, token: &str, body: &str) -> Result<(u16, &[u8])> {
        self.ask("POST", path, token, body)
    }

    /// Sends a request without a body.
    pub fn get(&mut self, path: &str, token: &str) -> Result<(u16, &[u8])> {
        self.ask("GET", path, token, "")
    }

    /// Sends a request that deletes.
    pub fn delete(&mut self, path: &str, token: &str) -> Result<(u16, &[u8])> {
        self.ask("DELETE", path, token, "")
    }

    fn ask(&mut self, method: &str, path: &str, token: &str, body: &str) -> Result<(u16, &[u8])> {
        self.request.clear();
        write!(
            self.request,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Type: \
             application/json\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )?;
        self.stream.write_all(&self.request)?;
        self.reply.clear();
        let mut piece = [0; 16 * 1024];
        loop {
            let count = self.stream.read(&mut piece)?;
            if count == 0 {
                return Err(Failure::new("the rendezvous closed the connection"));
            }
            self.reply.extend_from_slice(&piece[..count]);
            if let Some((status, start, length)) = head(&self.reply)?
                && self.reply.len() >= start + length
            {
                return Ok((status, &self.reply[start..start + length]));
            }
        }
    }
}

/// Status, start of the body and its length, once the head of a reply is complete.
fn head(reply: &[u8]) -> Result<Option<(u16, usize, usize)>> {
    let Some(end) = reply.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let text = String::from_utf8_lossy(&reply[..end]);
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let (Some(status), Some(length)) = (status, length) else {
        return Err(Failure::new(format!("the rendezvous answered with {text}")));
    };
    Ok(Some((status, end + 4, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_complete_with_its_body() {
        let reply = b"HTTP/1.1 409 Conflict\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(head(&reply[..20]).unwrap(), None);
        assert_eq!(head(reply).unwrap(), Some((409, reply.len() - 2, 2)));
        assert!(head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
