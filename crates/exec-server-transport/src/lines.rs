//! Carries each message as one line, over stdio or in memory for tests.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use exec_server_protocol::binary;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::poll_read_buf;

use crate::connection::{InMessage, Received, Wire, WireError};

/// Minimum free space per read; longer lines grow the buffer.
const READ_BYTES: usize = 16 * 1024;

/// A [`Wire`] with one message per line.
pub struct LineWire<R, W> {
    reader: R,
    writer: W,
    max_line: usize,
    input: BytesMut,
    /// Bytes of `input` that are known to hold no line end.
    searched: usize,
    is_at_end: bool,
    output: BytesMut,
}

impl<R: AsyncRead + Send + Unpin, W: AsyncWrite + Send + Unpin> LineWire<R, W> {
    /// Takes both directions; a line above `max_line` bytes ends the connection.
    pub fn new(reader: R, writer: W, max_line: usize) -> Self {
        Self {
            reader,
            writer,
            max_line,
            input: BytesMut::new(),
            searched: 0,
            is_at_end: false,
            output: BytesMut::new(),
        }
    }

    /// The next non-blank line; at the end of input also an unterminated one.
    fn take_line(&mut self) -> Result<Option<BytesMut>, WireError> {
        loop {
            let line = match memchr::memchr(b'\n', &self.input[self.searched..]) {
                Some(found) => {
                    let line = self.input.split_to(self.searched + found);
                    self.input.advance(1);
                    line
                }
                None if self.is_at_end && !self.input.is_empty() => self.input.split(),
                None => {
                    self.searched = self.input.len();
                    self.check_length(self.searched)?;
                    return Ok(None);
                }
            };
            self.searched = 0;
            self.check_length(line.len())?;
            let is_blank = line.iter().all(|byte| matches!(byte, b' ' | b'\t' | b'\r'));
            if !is_blank {
                return Ok(Some(line));
            }
        }
    }

    fn check_length(&self, length: usize) -> Result<(), WireError> {
        if length > self.max_line {
            let max = self.max_line;
            return Err(WireError::Protocol(format!("a line exceeds the limit of {max} bytes")));
        }
        Ok(())
    }

    fn poll_fill(&mut self, cx: &mut Context) -> Poll<io::Result<()>> {
        self.input.reserve(READ_BYTES);
        let count = ready!(poll_read_buf(Pin::new(&mut self.reader), cx, &mut self.input))?;
        self.is_at_end = count == 0;
        Poll::Ready(Ok(()))
    }
}

impl<R: AsyncRead + Send + Unpin, W: AsyncWrite + Send + Unpin> Wire for LineWire<R, W> {
    fn poll_next(&mut self, cx: &mut Context) -> Poll<Option<Result<Received, WireError>>> {
        loop {
            match self.take_line() {
                Ok(Some(line)) => {
                    return Poll::Ready(Some(Ok(Received::Message(InMessage::Bytes(
                        line.freeze(),
                    )))));
                }
                Ok(None) if self.is_at_end => return Poll::Ready(None),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
            if let Err(error) = ready!(self.poll_fill(cx)) {
                return Poll::Ready(Some(Err(error.into())));
            }
        }
    }

    /// JSON has line ends only between its tokens, where a blank means the same.
    fn start_send(&mut self, message: Bytes) -> Result<(), WireError> {
        let begin = self.output.len();
        let message = match binary::is_binary(&message) {
            true => Bytes::from(
                binary::to_text(&message)
                    .map_err(|error| WireError::Protocol(error.to_string()))?,
            ),
            false => message,
        };
        self.output.extend_from_slice(&message);
        if memchr::memchr2(b'\n', b'\r', &message).is_some() {
            for byte in &mut self.output[begin..] {
                if matches!(byte, b'\n' | b'\r') {
                    *byte = b' ';
                }
            }
        }
        self.output.extend_from_slice(b"\n");
        Ok(())
    }

    fn poll_flush(&mut self, cx: &mut Context) -> Poll<Result<(), WireError>> {
        while !self.output.is_empty() {
            let written = ready!(Pin::new(&mut self.writer).poll_write(cx, &self.output))?;
            if written == 0 {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::WriteZero).into()));
            }
            self.output.advance(written);
        }
        Pin::new(&mut self.writer).poll_flush(cx).map_err(WireError::from)
    }

    fn can_half_close(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        "failed to parse JSON-RPC message from exec-server stdio".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_message_with_line_ends_or_bytes_leaves_as_one_line_of_json() {
        let (near, mut far) = tokio::io::duplex(1024);
        let (reader, writer) = tokio::io::split(near);
        let mut wire = LineWire::new(reader, writer, 1024);
        let binary = b"\x01\0\0\0\x17{\"result\":{\"chunk\":\"\"}}\n\n";
        let texts: [&[u8]; 3] = [b"{\n  \"id\": 1\r\n}", b"{\"id\":2}", binary];
        for message in texts {
            wire.start_send(Bytes::from_static(message)).unwrap();
        }
        poll_fn(|cx| wire.poll_flush(cx)).await.unwrap();
        let mut read = vec![0; 256];
        let count = tokio::io::AsyncReadExt::read(&mut far, &mut read).await.unwrap();
        let lines = b"{   \"id\": 1  }\n{\"id\":2}\n{\"result\":{\"chunk\":\"Cgo=\"}}\n";
        assert_eq!(&read[..count], lines);
        assert!(wire.start_send(Bytes::from_static(b"\x01\0\0\0\x02{}")).is_err());
    }
}
