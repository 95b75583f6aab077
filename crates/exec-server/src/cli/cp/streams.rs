//! `-`, pipes and devices as source or destination of a copy.
//!
//! A separate thread blocks on the other end of a pipe, so that a signal ends the copy at once.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use exec_server_fs::destination::{descriptor_of, open_stream};
use tokio::sync::{mpsc, oneshot};

use super::super::failure::Failure;
use super::super::format::plain;
use super::destination_path::DestinationPath;
use super::endpoint::{Attributes, Location};
use super::progress::Progress;
use super::transfer::own_umask;

/// Equal to the block size of a server.
const PIECE: usize = 1024 * 1024;
const PIECES_AHEAD: usize = 4;
/// 128 plus SIGPIPE, as for any writer to a closed pipe.
const BROKEN_PIPE: u8 = 141;

/// A local source or destination that is not a regular file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stream {
    /// `-`, or a path such as /dev/stdin that names descriptor 0 or 1.
    Standard,
    /// A path that names descriptor 2.
    Stderr,
    /// The path of a pipe or a device.
    Path(PathBuf),
}

impl Stream {
    /// The stream behind a destination path; none for a regular file.
    pub fn to(path: &Path, is_stream: bool) -> Option<Self> {
        match descriptor_of(path) {
            Some(0 | 1) => Some(Self::Standard),
            Some(2) => Some(Self::Stderr),
            Some(_) => Some(Self::Path(path.to_owned())),
            None => is_stream.then(|| Self::Path(path.to_owned())),
        }
    }

    /// The stream behind a source path; none for a regular file.
    pub fn from(path: &Path, is_stream: bool) -> Option<Self> {
        match descriptor_of(path) {
            Some(0) => Some(Self::Standard),
            _ => is_stream.then(|| Self::Path(path.to_owned())),
        }
    }

    fn open_to_read(&self) -> io::Result<Box<dyn Read>> {
        match self {
            Self::Standard | Self::Stderr => Ok(Box::new(io::stdin())),
            Self::Path(path) => Ok(Box::new(File::open(path)?)),
        }
    }

    fn open_to_write(&self) -> io::Result<Box<dyn Write>> {
        match self {
            Self::Standard => unbuffered_stdout(),
            Self::Stderr => Ok(Box::new(io::stderr())),
            // The descriptor refers to a regular file, whose content must not be replaced.
            Self::Path(path) if path.is_file() => {
                Ok(Box::new(File::options().append(true).open(path)?))
            }
            Self::Path(path) => Ok(Box::new(open_stream(path)?)),
        }
    }

    fn describe(&self, standard: &str) -> String {
        match self {
            Self::Standard => standard.to_owned(),
            Self::Stderr => "stderr".to_owned(),
            Self::Path(path) => plain(&path.display().to_string()),
        }
    }
}

/// Copies a stream into a file, which gets its name when the stream ends.
pub async fn store(
    stream: Stream,
    to: &Location,
    dest: &DestinationPath,
    progress: &Arc<Progress>,
) -> Result<(), Failure> {
    let name = stream.describe("stdin");
    let mut writer = to.side.writer(dest, Attributes::New(0o666 & !own_umask())).await?;
    let (sender, mut pieces) = mpsc::channel(PIECES_AHEAD);
    // Not a runtime thread, because the runtime waits for its threads at shutdown.
    std::thread::spawn(move || read_all(&stream, &sender));
    progress.found(0);
    while let Some(piece) = pieces.recv().await {
        let piece = piece.map_err(|source| Failure::local(name.clone(), source))?;
        moved(progress, piece.len());
        writer
            .write(piece)
            .await
            .map_err(|failure| failure.about(to.side.describe(dest.path())))?;
    }
    writer.finish().await?;
    progress.done();
    Ok(())
}

/// Copies a file into a stream; returns 0, or the exit code for SIGPIPE if stdout was closed.
pub async fn pour(
    from: &Location,
    size: u64,
    stream: Stream,
    progress: &Arc<Progress>,
) -> Result<u8, Failure> {
    let is_standard = stream == Stream::Standard;
    let name = stream.describe("stdout");
    let about = |failure: Failure| failure.about(from.describe());
    let mut reader = from.side.reader(&from.path).await?;
    progress.found(size);
    let (sender, receiver) = mpsc::channel::<Bytes>(PIECES_AHEAD);
    let (end, ended) = oneshot::channel();
    std::thread::spawn(move || {
        // The receiver is gone if the copy was cancelled.
        let _ = end.send(write_all(&stream, receiver));
    });
    while let Some(piece) = reader.next().await.map_err(about)? {
        let bytes = piece.len();
        if sender.send(piece).await.is_err() {
            break;
        }
        moved(progress, bytes);
    }
    drop(sender);
    match ended.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into())) {
        Ok(()) => {
            progress.done();
            Ok(0)
        }
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe && is_standard => Ok(BROKEN_PIPE),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            let text = "the reader closed the pipe; the copy is incomplete";
            Err(Failure::local(name, io::Error::new(io::ErrorKind::BrokenPipe, text)))
        }
        Err(error) => Err(Failure::local(name, error)),
    }
}

fn read_all(stream: &Stream, sender: &mpsc::Sender<io::Result<Bytes>>) {
    let mut input = match stream.open_to_read() {
        Ok(input) => input,
        Err(error) => {
            // The receiver is gone if the copy was cancelled.
            let _ = sender.blocking_send(Err(error));
            return;
        }
    };
    loop {
        let mut piece = Vec::with_capacity(PIECE);
        let result = match (&mut input).take(PIECE as u64).read_to_end(&mut piece) {
            Ok(0) => return,
            Ok(_) => Ok(piece.into()),
            Err(error) => Err(error),
        };
        let is_over = result.is_err();
        if sender.blocking_send(result).is_err() || is_over {
            return;
        }
    }
}

fn write_all(stream: &Stream, mut pieces: mpsc::Receiver<Bytes>) -> io::Result<()> {
    let mut output = stream.open_to_write()?;
    while let Some(piece) = pieces.blocking_recv() {
        output.write_all(&piece)?;
    }
    output.flush()
}

fn moved(progress: &Progress, bytes: usize) {
    progress.moved(i64::try_from(bytes).unwrap_or(i64::MAX));
}

/// `io::stdout` buffers by line, which scans every block and splits writes.
#[cfg(unix)]
fn unbuffered_stdout() -> io::Result<Box<dyn Write>> {
    use std::os::fd::AsFd;
    Ok(Box::new(File::from(io::stdout().as_fd().try_clone_to_owned()?)))
}

#[cfg(not(unix))]
fn unbuffered_stdout() -> io::Result<Box<dyn Write>> {
    Ok(Box::new(io::stdout()))
}
