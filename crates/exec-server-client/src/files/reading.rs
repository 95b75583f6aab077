//! Reads a file in blocks, with read-ahead.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use exec_server_protocol::fs::{
    FsCloseParams, FsOpenParams, FsOpenResponse, FsReadBlockParams, FsReadBlockResponse, OpenMode,
    Sandbox,
};
use exec_server_protocol::limits::MAX_FILE_BLOCK_BYTES;
use exec_server_protocol::methods::Method;
use exec_server_protocol::params;
use exec_server_protocol::path_uri::PathUri;
use exec_server_protocol::user::UserName;
use futures_core::Stream;
use tokio::io::{AsyncRead, ReadBuf};

use crate::call::{PendingCall, Reply};
use crate::caller::Caller;
use crate::connection::ExecServerConnection;
use crate::error::ExecServerError;

/// Pending block requests once a file is longer than one block.
const BLOCKS_AHEAD: usize = 4;

/// A file that is read in blocks; dropping the stream closes its handle on the server.
///
/// The handle belongs to one connection: after a disconnect the stream ends with an error.
pub struct FileReadStream {
    handle: Handle,
    size: Option<u64>,
    /// Pending reads, in file order.
    asked: VecDeque<PendingCall>,
    next_offset: u64,
    ahead: usize,
    is_over: bool,
    /// The rest of a block that did not fit into the reader's buffer.
    rest: Bytes,
}

/// An open file handle on the server; dropping it closes the handle.
pub(super) struct Handle {
    pub connection: ExecServerConnection,
    pub id: String,
    /// Whether closing on drop discards the new content; `None` for a read handle.
    pub discard: Option<bool>,
    pub is_open: bool,
}

impl Handle {
    /// Opens a handle; dropping the future before the answer closes the handle.
    pub(super) async fn open(
        caller: &Caller,
        path: PathUri,
        mode: OpenMode,
        sandbox: Sandbox,
        user: Option<UserName>,
    ) -> Result<(Self, FsOpenResponse), ExecServerError> {
        let connection = caller.connection().await?;
        let detailed = connection.capabilities().fs_detailed_metadata.then_some(true);
        let id = uuid::Uuid::new_v4().simple().to_string();
        let params = FsOpenParams {
            handle_id: id.clone(),
            path,
            mode,
            sandbox,
            user,
            detailed,
            durability: None,
            if_absent: None,
            if_match: None,
            mode_bits: None,
            new_mode_bits: None,
            modified_at_ms: None,
        };
        let discard = (mode == OpenMode::Replace).then_some(true);
        let mut handle = Self { connection, id, discard, is_open: true };
        let opened = handle.connection.call(Method::FsOpen.name(), &params).await;
        handle.is_open = opened.is_ok();
        Ok((handle, opened?))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_open {
            let params = FsCloseParams { handle_id: self.id.clone(), discard: self.discard };
            self.connection.shared().clean_up(Method::FsClose.name(), &params);
        }
    }
}

impl FileReadStream {
    pub(super) async fn open(
        caller: &Caller,
        path: PathUri,
        sandbox: Sandbox,
        user: Option<UserName>,
    ) -> Result<Self, ExecServerError> {
        let (handle, opened) = Handle::open(caller, path, OpenMode::Read, sandbox, user).await?;
        Ok(Self {
            handle,
            size: opened.size,
            asked: VecDeque::new(),
            next_offset: 0,
            ahead: 1,
            is_over: false,
            rest: Bytes::new(),
        })
    }

    /// The size of the file when it was opened, if the server reports it.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// The next block; `None` at the end of the file.
    pub async fn next_block(&mut self) -> Result<Option<Bytes>, ExecServerError> {
        poll_fn(|cx| self.poll_block(cx)).await.transpose()
    }

    fn poll_block(&mut self, cx: &mut Context) -> Poll<Option<Result<Bytes, ExecServerError>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(std::mem::take(&mut self.rest))));
        }
        if self.is_over {
            return Poll::Ready(None);
        }
        if let Err(error) = self.ask_ahead() {
            self.is_over = true;
            return Poll::Ready(Some(Err(error)));
        }
        let next = self.asked.front_mut().expect("was just asked for");
        let block = ready!(Pin::new(next).poll(cx)).and_then(|reply| decode(&reply));
        self.asked.pop_front();
        let block = block.and_then(check);
        match &block {
            Ok(block) if !block.eof => self.ahead = BLOCKS_AHEAD,
            Ok(_) | Err(_) => {
                self.is_over = true;
                self.asked.clear();
            }
        }
        Poll::Ready(match block {
            Ok(block) if block.chunk.0.is_empty() => None,
            Ok(block) => Some(Ok(block.chunk.0.into())),
            Err(error) => Some(Err(error)),
        })
    }

    fn ask_ahead(&mut self) -> Result<(), ExecServerError> {
        while self.asked.len() < self.ahead {
            let is_behind_the_end = self.size.is_some_and(|size| self.next_offset > size);
            if is_behind_the_end && !self.asked.is_empty() {
                break;
            }
            let params = FsReadBlockParams {
                handle_id: self.handle.id.clone(),
                offset: self.next_offset,
                len: MAX_FILE_BLOCK_BYTES,
            };
            let call = self.handle.connection.request(Method::FsReadBlock.name(), &params)?;
            self.asked.push_back(call);
            self.next_offset += MAX_FILE_BLOCK_BYTES;
        }
        Ok(())
    }
}

fn decode(reply: &Reply) -> Result<FsReadBlockResponse, ExecServerError> {
    let Some(chunk) = reply.chunk() else { return reply.decode() };
    // Without the detour of base64.
    let mut block: FsReadBlockResponse = params::decode(reply.text())
        .map_err(|error| ExecServerError::Protocol(format!("cannot decode a block: {error}")))?;
    block.chunk.0 = chunk.to_vec();
    Ok(block)
}

fn check(block: FsReadBlockResponse) -> Result<FsReadBlockResponse, ExecServerError> {
    let len = block.chunk.0.len() as u64;
    if len > MAX_FILE_BLOCK_BYTES {
        return Err(ExecServerError::Protocol(
            "a block is longer than it was asked for".to_owned(),
        ));
    }
    if len < MAX_FILE_BLOCK_BYTES && !block.eof {
        return Err(ExecServerError::Protocol("a block is short before the end".to_owned()));
    }
    Ok(block)
}

impl Stream for FileReadStream {
    type Item = Result<Bytes, ExecServerError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context) -> Poll<Option<Self::Item>> {
        self.poll_block(cx)
    }
}

impl AsyncRead for FileReadStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context,
        buffer: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        let Some(mut block) = ready!(self.poll_block(cx)).transpose()? else {
            return Poll::Ready(Ok(()));
        };
        let count = block.len().min(buffer.remaining());
        buffer.put_slice(&block[..count]);
        block.advance(count);
        self.rest = block;
        Poll::Ready(Ok(()))
    }
}
