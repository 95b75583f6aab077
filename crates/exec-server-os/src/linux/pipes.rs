//! Our ends of a child's streams, without a thread or a buffer of their own.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};

use exec_server_protocol::limits::MAX_OUTPUT_CHUNK_BYTES;
use exec_server_protocol::process::TerminalSize;
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{register, terminal};

/// A pipe that was full once is made this large, so that its writer and we take turns less often.
const FLOOD_PIPE_BYTES: usize = 1024 * 1024;

/// Our end of a stream that the child writes.
#[derive(Debug)]
pub struct ChildOutput {
    fd: AsyncFd<OwnedFd>,
    kind: OutputKind,
    is_enlarged: bool,
}

/// What is behind a [`ChildOutput`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    /// A pipe.
    Pipe,
    /// A terminal, which gives its bytes in small pieces.
    Terminal,
}

impl ChildOutput {
    /// Takes over a non-blocking descriptor.
    pub fn new(fd: OwnedFd, kind: OutputKind) -> io::Result<Self> {
        let fd = register(fd, Interest::READABLE)?;
        Ok(Self { fd, kind, is_enlarged: false })
    }

    /// Ready when there may be something to read.
    pub fn poll_readable(&self, cx: &mut Context) -> Poll<io::Result<()>> {
        self.fd.poll_read_ready(cx).map_ok(drop)
    }

    /// Reads what is there: 0 bytes at the end, none when there is nothing yet.
    pub fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        // Nobody waits here: whoever wants to asks `poll_readable`.
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(ready) = self.fd.poll_read_ready(&mut cx) {
            let mut ready = ready?;
            match rustix::io::read(self.fd.get_ref(), &mut *buffer) {
                Ok(count) => {
                    // A pipe that gave less than asked is empty now, which saves asking again.
                    if self.kind == OutputKind::Pipe && count > 0 && count < buffer.len() {
                        ready.clear_ready();
                    }
                    self.after_read(count);
                    return Ok(Some(count));
                }
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                // A terminal says so when the last process that had it open is gone.
                Err(Errno::IO) => return Ok(Some(0)),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    fn after_read(&mut self, count: usize) {
        let is_flood = count >= MAX_OUTPUT_CHUNK_BYTES && self.kind == OutputKind::Pipe;
        if is_flood && !self.is_enlarged {
            self.is_enlarged = true;
            // Only a help: a user's total may be exhausted.
            let _ = rustix::pipe::fcntl_setpipe_size(self.fd.get_ref(), FLOOD_PIPE_BYTES);
        }
    }
}

/// Our end of the stream that the child reads.
#[derive(Debug)]
pub struct ChildInput {
    fd: AsyncFd<OwnedFd>,
    is_enlarged: AtomicBool,
}

impl ChildInput {
    /// Takes over a non-blocking descriptor.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: register(fd, Interest::WRITABLE)?, is_enlarged: AtomicBool::new(false) })
    }

    /// Writes what the child has room for.
    pub fn poll_write(&self, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.fd.poll_write_ready(cx))?;
            match rustix::io::write(self.fd.get_ref(), bytes) {
                Ok(count) => return Poll::Ready(Ok(count)),
                // A terminal whose other side is gone may be full for good; and its readiness cannot be cleared, so
                // to ask again would be to ask for ever.
                Err(Errno::AGAIN) if ready.ready().is_write_closed() => {
                    return Poll::Ready(Err(Errno::PIPE.into()));
                }
                // What did not fit may fit into a larger pipe; only then is it worth waiting.
                Err(Errno::AGAIN) if self.enlarge() => {}
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Says whether the pipe is larger than before.
    fn enlarge(&self) -> bool {
        !self.is_enlarged.swap(true, Ordering::Relaxed)
            && rustix::pipe::fcntl_setpipe_size(self.fd.get_ref(), FLOOD_PIPE_BYTES).is_ok()
    }

    /// Sets the size of the terminal behind this.
    pub fn resize(&self, size: TerminalSize) -> io::Result<()> {
        terminal::set_size(self.fd.get_ref(), size)
    }
}
