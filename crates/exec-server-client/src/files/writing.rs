//! Writes a file in blocks; the new content replaces the old one at the end.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use exec_server_protocol::fs::{
    FsCloseParams, FsWriteBlockParams, FsWriteFileResponse, OpenMode, Sandbox,
};
use exec_server_protocol::limits::MAX_FILE_BLOCK_BYTES;
use exec_server_protocol::methods::Method;
use exec_server_protocol::path_uri::PathUri;
use exec_server_protocol::user::UserName;
use tokio::io::AsyncWrite;

use super::reading::Handle;
use crate::call::PendingCall;
use crate::caller::Caller;
use crate::error::ExecServerError;

/// Limit of unanswered block writes.
const BLOCKS_AHEAD: usize = 4;
const BLOCK: usize = MAX_FILE_BLOCK_BYTES as usize;

/// New content for a file; without [`FileWriteStream::finish`] the server discards it.
///
/// The handle belongs to one connection: after a disconnect writes fail, and the file is unchanged.
pub struct FileWriteStream {
    handle: Handle,
    buffer: Vec<u8>,
    offset: u64,
    /// Unanswered writes, in file order.
    sent: VecDeque<PendingCall>,
}

impl FileWriteStream {
    pub(super) async fn open(
        caller: &Caller,
        path: PathUri,
        sandbox: Sandbox,
        user: Option<UserName>,
    ) -> Result<Self, ExecServerError> {
        let (handle, _) = Handle::open(caller, path, OpenMode::Replace, sandbox, user).await?;
        Ok(Self { handle, buffer: Vec::new(), offset: 0, sent: VecDeque::new() })
    }

    /// Appends bytes to the new content.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), ExecServerError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let count = poll_fn(|cx| self.poll_take(cx, rest)).await?;
            rest = &rest[count..];
        }
        Ok(())
    }

    /// Replaces the old content of the file with the new one.
    pub async fn finish(mut self) -> Result<FsWriteFileResponse, ExecServerError> {
        poll_fn(|cx| self.poll_send_all(cx)).await?;
        let params = FsCloseParams { handle_id: self.handle.id.clone(), discard: None };
        let close = self.handle.connection.request(Method::FsClose.name(), &params)?;
        // The close request is sent, so dropping the handle must not send another one.
        self.handle.is_open = false;
        close.await?.decode()
    }

    /// Sends the buffer without waiting for the answer.
    fn send_buffer(&mut self) -> Result<(), ExecServerError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::take(&mut self.buffer);
        let len = chunk.len() as u64;
        let handle_id = self.handle.id.clone();
        let params = FsWriteBlockParams { handle_id, offset: self.offset, chunk: chunk.into() };
        let call = self.handle.connection.request(Method::FsWriteBlock.name(), &params)?;
        self.sent.push_back(call);
        self.offset += len;
        Ok(())
    }

    /// Waits until at most `count` writes are unanswered.
    fn poll_sent(&mut self, cx: &mut Context, count: usize) -> Poll<Result<(), ExecServerError>> {
        while self.sent.len() > count {
            let first = self.sent.front_mut().expect("there are more than none");
            let result = ready!(Pin::new(first).poll(cx));
            self.sent.pop_front();
            result?;
        }
        Poll::Ready(Ok(()))
    }

    /// Copies bytes into the buffer once there is room.
    fn poll_take(
        &mut self,
        cx: &mut Context,
        bytes: &[u8],
    ) -> Poll<Result<usize, ExecServerError>> {
        if self.buffer.len() == BLOCK {
            ready!(self.poll_sent(cx, BLOCKS_AHEAD - 1))?;
            self.send_buffer()?;
        }
        let count = bytes.len().min(BLOCK - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_send_all(&mut self, cx: &mut Context) -> Poll<Result<(), ExecServerError>> {
        self.send_buffer()?;
        self.poll_sent(cx, 0)
    }
}

impl AsyncWrite for FileWriteStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_take(cx, bytes).map_err(io::Error::from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        self.poll_send_all(cx).map_err(io::Error::from)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}
