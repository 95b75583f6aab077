//! `fs/*`: what a connection asks about files, and the files that it has open.
//!
//! Whatever the kernel has in memory is answered at once; everything else is done by threads that may wait for a disk
//! or a network, so that no connection waits for them.

use std::io;
use std::sync::Arc;

use exec_server_os::files::{
    FsError, FsReply, FsRequest, OpenFile, Patience, answer_from_cache, perform,
};
use exec_server_protocol::fs::{
    FsCloseParams, FsReadBlockParams, FsWatchMissingParams, FsWriteBlockParams,
};

use crate::errors::RequestError;
use crate::reply::Reply;
use crate::server::Server;

mod answer;
mod batch;
mod handles;
mod request;
mod watch;

use batch::BatchItem;
use handles::{Handles, OpenCall};
pub use request::decode;
use watch::WatchSlot;

/// A request about files whose params have been read.
#[derive(Debug)]
pub enum FileCall {
    /// Something about a path.
    Path(PathCall),
    /// `fs/open`.
    Open(OpenCall),
    /// `fs/readBlock`.
    ReadBlock(FsReadBlockParams),
    /// `fs/writeBlock`.
    WriteBlock(FsWriteBlockParams),
    /// `fs/close`.
    Close(FsCloseParams),
    /// `fs/batch`.
    Batch(Vec<BatchItem>),
    /// `fs/watchMissing`.
    WatchMissing(FsWatchMissingParams),
}

/// Something to do with a path, and how much to tell about it.
#[derive(Debug)]
pub struct PathCall {
    request: FsRequest,
    /// Whether the content of a file comes with its version.
    detailed: bool,
}

/// The files that one connection has open, and what it watches.
#[derive(Debug, Default)]
pub struct Files {
    handles: Arc<Handles>,
    watch: WatchSlot,
}

/// Files up to this size are read by the connection's own thread if they are in memory: it takes less time than to
/// wake another thread.
const QUICK_READ_BYTES: u64 = 128 * 1024;

impl Files {
    /// Answers a request, or hands it to a thread that may wait.
    pub fn run(&self, server: &Server, call: FileCall, reply: Reply) {
        match call {
            FileCall::Path(call) => run_path(call, reply),
            FileCall::Open(call) => self.handles.open(call, reply),
            FileCall::ReadBlock(params) => self.handles.read_block(params, reply),
            FileCall::WriteBlock(params) => self.handles.write_block(params, reply),
            FileCall::Close(params) => self.handles.close(params, reply),
            FileCall::Batch(items) => {
                tokio::task::spawn_blocking(move || batch::run(items, reply));
            }
            FileCall::WatchMissing(params) => self.watch.watch(server, params, reply),
        }
    }
}

fn run_path(call: PathCall, reply: Reply) {
    let reply = match answer_from_cache(&call.request) {
        Some(Ok(FsReply::Opened(file))) => match read_quickly(&file, call.detailed, reply) {
            Ok(()) => return,
            Err(reply) => reply,
        },
        Some(result) => return finish(result, call.detailed, reply),
        None => reply,
    };
    tokio::task::spawn_blocking(move || finish(perform(call.request), call.detailed, reply));
}

fn read_quickly(file: &OpenFile, detailed: bool, reply: Reply) -> Result<(), Reply> {
    if file.size() > QUICK_READ_BYTES {
        return Err(reply);
    }
    let mut text = reply.begin_text(answer::room_for(file));
    match answer::write_content(file, detailed, Patience::None, &mut text) {
        Ok(()) => reply.ok_text(text),
        Err(RequestError::Files(FsError::System(error)))
            if error.kind() == io::ErrorKind::WouldBlock =>
        {
            return Err(reply);
        }
        Err(error) => reply.fail(&error),
    }
    Ok(())
}

fn finish(result: Result<FsReply, FsError>, detailed: bool, reply: Reply) {
    let result = match result {
        Ok(result) => result,
        Err(error) => return reply.fail(&error.into()),
    };
    let room = match &result {
        FsReply::Opened(file) => answer::room_for(file),
        _ => 0,
    };
    let mut text = reply.begin_text(room);
    match answer::write(&result, detailed, &mut text) {
        Ok(()) => reply.ok_text(text),
        Err(error) => reply.fail(&error),
    }
    // Only now, because it may take longer than all before.
    drop(result);
}
