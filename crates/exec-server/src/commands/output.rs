//! What a remote process says, written to our own streams by a thread that may wait for whoever reads them.

use std::io::{self, Write};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

/// One of our streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// stdout
    Out,
    /// stderr
    Err,
}

/// The way to our streams; what is given is written in order.
pub type Output = mpsc::Sender<(Stream, Bytes)>;

/// The end of all writing: everything was written after the last [`Output`] was dropped, or nobody reads it.
pub struct Written(oneshot::Receiver<io::Result<()>>);

const PIECES_AHEAD: usize = 16;

/// Begins to write.
pub fn begin() -> (Output, Written) {
    let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
    let (end, ended) = oneshot::channel();
    std::thread::spawn(move || {
        // Nobody may be left who wants to know.
        let _ = end.send(write_all(receiver));
    });
    (sender, Written(ended))
}

impl Written {
    /// Waits for it.
    pub async fn ended(&mut self) -> io::Result<()> {
        match (&mut self.0).await {
            Ok(result) => result,
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

fn write_all(mut receiver: mpsc::Receiver<(Stream, Bytes)>) -> io::Result<()> {
    let mut out = unbuffered_stdout();
    let mut err = io::stderr();
    while let Some((stream, bytes)) = receiver.blocking_recv() {
        match stream {
            Stream::Out => out.write_all(&bytes).and_then(|()| out.flush())?,
            // A command goes on without its messages, but not without its output.
            Stream::Err => drop(err.write_all(&bytes)),
        }
    }
    Ok(())
}

/// The standard handle would look for the last line end in everything, and write twice.
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
