//! A FIFO that synchronises a test with a child process.

use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::pipe;
use tokio::time::timeout;

use crate::DEADLINE;

/// A named pipe in its own directory; use each for one direction only.
pub struct Fifo {
    folder: TempDir,
    sender: pipe::Sender,
    receiver: BufReader<pipe::Receiver>,
}

impl Fifo {
    /// A new pipe, which both ends can open without blocking.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let path = folder.path().join("fifo");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode, 0).expect("the folder is ours");
        // Open for both directions, so that opening and reading never report a missing peer.
        let mut options = pipe::OpenOptions::new();
        let sender = options.read_write(true).open_sender(&path).expect("was just made");
        let receiver = options.open_receiver(&path).expect("was just made");
        Self { folder, sender, receiver: BufReader::new(receiver) }
    }

    /// The directory, removed on drop.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The path, for a shell script.
    pub fn path(&self) -> String {
        self.folder.path().join("fifo").to_str().expect("a plain path").to_owned()
    }

    /// Unblocks one `read _ <fifo` of a child.
    pub async fn open(&mut self) {
        self.sender.write_all(b"go\n").await.expect("a line always fits");
    }

    /// The next line that a child wrote.
    pub async fn line(&mut self) -> String {
        let mut line = String::new();
        timeout(DEADLINE, self.receiver.read_line(&mut line))
            .await
            .expect("a line comes in time")
            .expect("the pipe is readable");
        line.trim_end().to_owned()
    }
}

impl Default for Fifo {
    fn default() -> Self {
        Self::new()
    }
}
