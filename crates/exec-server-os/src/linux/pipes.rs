//! The server's ends of a child's stdio pipes and terminal.

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

/// A pipe that was full once gets this size, which reduces the switches between writer and reader.
const FLOOD_PIPE_BYTES: usize = 1024 * 1024;

/// The server's end of a stream that the child writes.
#[derive(Debug)]
pub struct ChildOutput {
    fd: AsyncFd<OwnedFd>,
    kind: OutputKind,
    is_enlarged: bool,
}

/// Kind of the descriptor of a [`ChildOutput`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    /// A pipe, for which a short read means that it is empty.
    Pipe,
    /// A terminal, which returns its bytes in small pieces.
    Terminal,
}

impl ChildOutput {
    /// Takes ownership of a non-blocking descriptor.
    pub fn new(fd: OwnedFd, kind: OutputKind) -> io::Result<Self> {
        let fd = register(fd, Interest::READABLE)?;
        Ok(Self { fd, kind, is_enlarged: false })
    }

    /// Ready when a read may return bytes, end of file or an error.
    pub fn poll_readable(&self, cx: &mut Context) -> Poll<io::Result<()>> {
        self.fd.poll_read_ready(cx).map_ok(drop)
    }

    /// Reads without waiting: 0 bytes at end of file, `None` if no data is available.
    pub fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        // Non-blocking; callers wait with `poll_readable`.
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(ready) = self.fd.poll_read_ready(&mut cx) {
            let mut ready = ready?;
            match rustix::io::read(self.fd.get_ref(), &mut *buffer) {
                Ok(count) => {
                    // A pipe that returned less than the buffer holds is empty now, which saves a read that fails with EAGAIN.
                    if self.kind == OutputKind::Pipe && count > 0 && count < buffer.len() {
                        ready.clear_ready();
                    }
                    self.after_read(count);
                    return Ok(Some(count));
                }
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                // A terminal reports EIO after the last process has closed it.
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
            // Ignore the error: it is an optimisation, and the user's pipe quota may be exhausted.
            let _ = rustix::pipe::fcntl_setpipe_size(self.fd.get_ref(), FLOOD_PIPE_BYTES);
        }
    }
}

/// The server's end of the stream that the child reads.
#[derive(Debug)]
pub struct ChildInput {
    fd: AsyncFd<OwnedFd>,
    is_enlarged: AtomicBool,
}

impl ChildInput {
    /// Takes ownership of a non-blocking descriptor.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { fd: register(fd, Interest::WRITABLE)?, is_enlarged: AtomicBool::new(false) })
    }

    /// Writes as many bytes as fit.
    pub fn poll_write(&self, cx: &mut Context, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.fd.poll_write_ready(cx))?;
            match rustix::io::write(self.fd.get_ref(), bytes) {
                Ok(count) => return Poll::Ready(Ok(count)),
                // A terminal whose slave is closed may stay full, and its closed readiness cannot be cleared, so a
                // retry would loop forever.
                Err(Errno::AGAIN) if ready.ready().is_write_closed() => {
                    return Poll::Ready(Err(Errno::PIPE.into()));
                }
                // Retry once with a larger pipe before waiting.
                Err(Errno::AGAIN) if self.enlarge() => {}
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Returns whether the pipe was enlarged; tried once only.
    fn enlarge(&self) -> bool {
        !self.is_enlarged.swap(true, Ordering::Relaxed)
            && rustix::pipe::fcntl_setpipe_size(self.fd.get_ref(), FLOOD_PIPE_BYTES).is_ok()
    }

    /// Sets the terminal size; fails on a pipe.
    pub fn resize(&self, size: TerminalSize) -> io::Result<()> {
        terminal::set_size(self.fd.get_ref(), size)
    }
}
