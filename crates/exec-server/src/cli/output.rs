//! Writes remote output to stdout and stderr on a separate thread, which may block on their readers.

use std::io::{self, Write};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

/// A local output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// stdout
    Out,
    /// stderr
    Err,
}

/// Queue of output chunks, written in order.
pub type Output = mpsc::Sender<(Stream, Bytes)>;

/// Completes when the last [`Output`] is dropped and all is written, or when stdout has no reader.
pub struct Written {
    end: oneshot::Receiver<io::Result<()>>,
    is_abandoned: Arc<AtomicBool>,
}

const PIECES_AHEAD: usize = 16;

/// Starts the writer thread.
pub fn begin() -> (Output, Written) {
    let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
    let (end, ended) = oneshot::channel();
    let is_abandoned = Arc::new(AtomicBool::new(false));
    let flag = is_abandoned.clone();
    std::thread::spawn(move || {
        // The receiver may be gone.
        let _ = end.send(write_all(receiver, &flag));
    });
    (sender, Written { end: ended, is_abandoned })
}

impl Written {
    /// Waits for the end of all writing.
    pub async fn ended(&mut self) -> io::Result<()> {
        match (&mut self.end).await {
            Ok(result) => result,
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// Drops all chunks that are not written yet.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Ordering::Relaxed);
    }
}

/// Streams that are not writable within this time, all together, are skipped.
const WRITE_TIMEOUT: Duration = Duration::from_millis(50);
/// Whether that time is used up.
static IS_STUCK: AtomicBool = AtomicBool::new(false);
/// Longest wait for the write itself.
const BLOCKED_WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Writes a message to stderr without blocking on a stopped terminal.
pub fn print_stderr(text: &str) {
    write_soon(io::stderr(), text.as_bytes().to_vec());
}

/// Writes a message to stdout in the same way.
pub fn print_stdout(text: &str) {
    write_soon(io::stdout(), text.as_bytes().to_vec());
}

#[cfg(unix)]
fn write_soon(mut stream: impl Write + std::os::fd::AsFd + Send + 'static, bytes: Vec<u8>) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let time = if IS_STUCK.load(Ordering::Relaxed) { Duration::ZERO } else { WRITE_TIMEOUT };
    let time = Timespec::try_from(time).expect("it is short");
    let has_room = poll(&mut [PollFd::new(&stream, PollFlags::OUT)], Some(&time));
    if !matches!(has_room, Ok(1..)) {
        IS_STUCK.store(true, Ordering::Relaxed);
        return;
    }
    let (done, is_done) = std::sync::mpsc::channel();
    // The stream may have room for a part only, so the thread may block forever.
    std::thread::spawn(move || {
        let _ = stream.write_all(&bytes).and_then(|()| stream.flush());
        let _ = done.send(());
    });
    let _ = is_done.recv_timeout(BLOCKED_WRITE_TIMEOUT);
}

#[cfg(not(unix))]
fn write_soon(mut stream: impl Write, bytes: Vec<u8>) {
    let _ = stream.write_all(&bytes).and_then(|()| stream.flush());
}

fn write_all(
    mut receiver: mpsc::Receiver<(Stream, Bytes)>,
    is_abandoned: &AtomicBool,
) -> io::Result<()> {
    let mut out = unbuffered_stdout();
    let mut err = io::stderr();
    while let Some((stream, bytes)) = receiver.blocking_recv() {
        if is_abandoned.load(Ordering::Relaxed) {
            return Ok(());
        }
        match stream {
            Stream::Out => out.write_all(&bytes).and_then(|()| out.flush())?,
            // A closed stderr is ignored; a closed stdout ends the command.
            Stream::Err => drop(err.write_all(&bytes)),
        }
    }
    Ok(())
}

/// `io::stdout` buffers by line, which scans every chunk and splits writes.
#[cfg(unix)]
fn unbuffered_stdout() -> Box<dyn Write> {
    use std::os::fd::AsFd;
    match io::stdout().as_fd().try_clone_to_owned() {
        Ok(fd) => Box::new(std::fs::File::from(fd)),
        Err(_) => Box::new(io::stdout()),
    }
}

#[cfg(not(unix))]
fn unbuffered_stdout() -> Box<dyn Write> {
    Box::new(io::stdout())
}
