//! The I/O handles of a running child.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::task::Poll;
use std::time::{Instant, SystemTime};

use exec_server_os::spawn::{ExitStatus, Spawned};
use exec_server_os::{ChildInput, ChildOutput, ExitWatch, ProcessTree};
use exec_server_protocol::limits::MAX_OUTPUT_CHUNK_BYTES;
use exec_server_protocol::process::OutputStream;

/// Chunks that are read in a row before the process task checks for an exit.
const MAX_BURST: usize = 32;

thread_local! {
    /// One buffer per thread instead of one per process: it is only used between two waits.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_OUTPUT_CHUNK_BYTES]);
}

/// A child process with its pipes or its terminal.
pub struct Child {
    pub pid: u32,
    pub started: Instant,
    pub started_at: SystemTime,
    pub tree: ProcessTree,
    pub input: Option<ChildInput>,
    output: Option<ChildOutput>,
    error_output: Option<ChildOutput>,
    /// None once the root process was reaped.
    exit: Option<ExitWatch>,
    ready: Option<Source>,
    burst: usize,
    is_terminal: bool,
}

/// One of the two output streams.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Output,
    ErrorOutput,
}

impl Child {
    pub fn new(spawned: Spawned, is_terminal: bool) -> Self {
        Self {
            pid: spawned.pid,
            started: Instant::now(),
            started_at: SystemTime::now(),
            tree: spawned.tree,
            input: spawned.input,
            output: Some(spawned.output),
            error_output: spawned.error_output,
            exit: Some(spawned.exit),
            ready: None,
            burst: 0,
            is_terminal,
        }
    }

    /// Whether the root process has not been reaped.
    pub fn is_running(&self) -> bool {
        self.exit.is_some()
    }

    pub fn has_streams(&self) -> bool {
        self.output.is_some() || self.error_output.is_some()
    }

    /// Whether output was found that has not been read.
    pub fn is_ready(&self) -> bool {
        self.ready.is_some()
    }

    pub fn set_ready(&mut self, source: Source) {
        self.ready = Some(source);
    }

    /// Whether the streams should be polled for output.
    pub fn wants_readable(&self) -> bool {
        self.ready.is_none() && !self.is_burst_over()
    }

    pub fn is_burst_over(&self) -> bool {
        self.burst >= MAX_BURST
    }

    pub fn start_burst(&mut self) {
        self.burst = 0;
    }

    /// Waits until one of the streams has output; with output on both they take turns.
    pub fn readable(&self) -> impl Future<Output = Source> {
        let (first, second) = if self.burst.is_multiple_of(2) {
            (Source::Output, Source::ErrorOutput)
        } else {
            (Source::ErrorOutput, Source::Output)
        };
        poll_fn(move |cx| {
            let mut is_ready = |source| {
                let stream =
                    if source == Source::Output { &self.output } else { &self.error_output };
                stream.as_ref().is_some_and(|stream| stream.poll_readable(cx).is_ready())
            };
            if is_ready(first) {
                Poll::Ready(first)
            } else if is_ready(second) {
                Poll::Ready(second)
            } else {
                Poll::Pending
            }
        })
    }

    /// Reads the chunk that was found and passes it to `take`; a stream that has ended is closed.
    pub fn read_ready(&mut self, take: impl FnOnce(OutputStream, &[u8])) {
        let Some(source) = self.ready.take() else { return };
        let (stream, child_output) = match source {
            Source::Output if self.is_terminal => (OutputStream::Pty, &mut self.output),
            Source::Output => (OutputStream::Stdout, &mut self.output),
            Source::ErrorOutput => (OutputStream::Stderr, &mut self.error_output),
        };
        SCRATCH.with_borrow_mut(|scratch| {
            match child_output.as_mut().map(|output| output.read_now(scratch)) {
                None | Some(Ok(None)) => {}
                Some(Ok(Some(0)) | Err(_)) => *child_output = None,
                Some(Ok(Some(count))) => {
                    self.burst += 1;
                    take(stream, &scratch[..count]);
                }
            }
        });
    }

    pub fn close_output(&mut self) {
        self.output = None;
        self.error_output = None;
        self.ready = None;
    }

    /// Writes some of the bytes to stdin.
    pub fn write(&self, bytes: Option<&[u8]>) -> impl Future<Output = io::Result<usize>> {
        poll_fn(move |cx| match (&self.input, bytes) {
            (Some(input), Some(bytes)) => input.poll_write(cx, bytes),
            _ => Poll::Pending,
        })
    }

    /// Waits until the root process has exited.
    pub fn exited(&self) -> impl Future<Output = io::Result<ExitStatus>> {
        poll_fn(move |cx| match &self.exit {
            Some(exit) => exit.poll_exit(cx),
            None => Poll::Pending,
        })
    }

    pub fn handle_reaped(&mut self) {
        self.exit = None;
        self.tree.handle_root_reaped();
    }
}
