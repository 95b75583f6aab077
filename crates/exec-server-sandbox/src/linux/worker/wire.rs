//! Frames with descriptors between the server and a confined file worker.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::children::Watching;
use exec_server_fs::search::SearchSpec;
use exec_server_fs::tree_watch::{WatchError, WatchSpec};
use exec_server_fs::{FsError, FsRequest};

/// A request to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerRequest {
    Perform(FsRequest),
    /// Starts a search and returns its first page.
    Search(Box<SearchSpec>),
    /// Returns the next page of the search.
    NextPage,
    /// Starts a watch.
    Watch(WatchSpec),
    /// Waits up to `wait` for a change of the watch after `seq`.
    AwaitChanges {
        seq: u64,
        wait: Duration,
    },
    /// Returns the changes of the watch after `seq`.
    ReadChanges {
        seq: u64,
    },
    /// Publishes a staged file.
    Publish(u64),
    /// Discards a staged file.
    Discard(u64),
}

/// A reply of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum WorkerReply {
    /// The result as JSON text for the client.
    Text(String),
    /// Carries a file opened for reading.
    Opened,
    /// The id of a staged file; carries the file, which the server fills.
    Staged(u64),
    /// A page of a search as JSON text for the client, and whether it is the last one.
    Page(String, bool),
    Watching(Watching),
    NotWatching(WatchError),
    /// Whether there are changes to read.
    Changed(bool),
    /// The answer with changes as JSON text for the client.
    Changes(String),
    Failed(FsError),
}

/// A frame being sent: length, content, and at most one descriptor with the first byte.
pub struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    pub fn new(message: &impl Serialize) -> io::Result<Self> {
        let bytes =
            postcard::to_extend(message, vec![0; LENGTH_BYTES]).map_err(io::Error::other)?;
        let mut frame = Self { bytes, sent: 0 };
        let length = u32::try_from(frame.bytes.len() - LENGTH_BYTES).map_err(io::Error::other)?;
        frame.bytes[..LENGTH_BYTES].copy_from_slice(&length.to_ne_bytes());
        Ok(frame)
    }

    /// Sends as much as the socket accepts; true when the frame is complete.
    pub fn send(&mut self, socket: BorrowedFd, beside: Option<BorrowedFd>) -> io::Result<bool> {
        while self.sent < self.bytes.len() {
            let fds: Vec<BorrowedFd> = beside.filter(|_| self.sent == 0).into_iter().collect();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(&fds));
            }
            let rest = [io::IoSlice::new(&self.bytes[self.sent..])];
            match sendmsg(socket, &rest, &mut control, SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }
}

const LENGTH_BYTES: usize = 4;

/// The largest frame: a whole file in one message, plus its envelope.
const MAX_FRAME_BYTES: usize = 80 * 1024 * 1024;

/// A frame being received.
#[derive(Default)]
pub struct Arriving {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

/// One `recvmsg` of this size covers every frame that carries no large file content.
const ONE_LOOK_BYTES: usize = 16 * 1024;
/// Roughly the capacity of a socket buffer.
const MOST_AT_ONCE_BYTES: usize = 256 * 1024;

/// A received frame with its descriptors.
pub struct Arrived {
    /// Includes the length prefix.
    bytes: Vec<u8>,
    /// Descriptors that came with the frame.
    pub fds: Vec<OwnedFd>,
}

impl Arriving {
    /// Reads what is available; `None` while the frame is incomplete.
    ///
    /// Nothing may follow a frame: each side sends only after the other has replied.
    pub fn receive(&mut self, socket: BorrowedFd) -> io::Result<Option<Arrived>> {
        loop {
            let wanted = self.wanted()?;
            if wanted == 0 {
                let Self { bytes, fds } = std::mem::take(self);
                return Ok(Some(Arrived { bytes, fds }));
            }
            let start = self.bytes.len();
            self.bytes.resize(start + wanted.clamp(ONE_LOOK_BYTES, MOST_AT_ONCE_BYTES), 0);
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut rest = [io::IoSliceMut::new(&mut self.bytes[start..])];
            let received = recvmsg(socket, &mut rest, &mut control, RecvFlags::CMSG_CLOEXEC);
            let count = received.as_ref().map_or(0, |received| received.bytes);
            self.bytes.truncate(start + count);
            match received {
                Ok(received) if received.bytes == 0 => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(fds) = message {
                    self.fds.extend(fds);
                }
            }
        }
    }

    /// The number of missing bytes.
    fn wanted(&self) -> io::Result<usize> {
        let Some(length) = self.bytes.first_chunk::<LENGTH_BYTES>() else {
            return Ok(LENGTH_BYTES - self.bytes.len());
        };
        let length = u32::from_ne_bytes(*length) as usize;
        if length > MAX_FRAME_BYTES {
            return Err(io::Error::other("a frame is too large"));
        }
        let missing = (LENGTH_BYTES + length).checked_sub(self.bytes.len());
        missing.ok_or_else(|| io::Error::other("unexpected data after a frame"))
    }
}

impl Arrived {
    pub fn decode<'a, T: Deserialize<'a>>(&'a self) -> io::Result<T> {
        postcard::from_bytes(&self.bytes[LENGTH_BYTES..]).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use exec_server_fs::{Nature, TreeOperation};

    use super::*;

    #[test]
    fn an_error_says_the_same_after_it_was_sent() {
        let denied = || io::Error::from_raw_os_error(libc::EACCES);
        let path = || PathBuf::from("/a/\u{fffd}b");
        let errors = [
            FsError::System(denied()),
            FsError::NotAFile(path(), Nature::Special),
            FsError::TooManyEntries(3, 2),
            FsError::Incomplete {
                did: TreeOperation::Removed,
                done: 7,
                path: path(),
                cause: Box::new(denied().into()),
            },
            FsError::ShortWrite { done: 1, wanted: 2, cause: denied() },
        ];
        for error in errors {
            let text = error.to_string();
            let sent = postcard::to_stdvec(&WorkerReply::Failed(error)).unwrap();
            let WorkerReply::Failed(error) = postcard::from_bytes(&sent).unwrap() else {
                panic!("another reply: {text}");
            };
            assert_eq!(error.to_string(), text);
        }
    }
}
