//! Sends queued input to a process, one request at a time, and then its end.

use std::pin::Pin;

use exec_server_client::{ExecServerError, ProcessSession};

use super::input_queue::InputQueue;

/// Bytes of input in one request.
const WRITE_BYTES: usize = 1024 * 1024;

type Writing = Pin<Box<dyn Future<Output = Result<(), ExecServerError>> + Send>>;

/// Sends input to one process.
pub struct StdinWriter {
    process: ProcessSession,
    /// The request in flight.
    writing: Option<Writing>,
    has_ended: bool,
    /// Whether the end of input is sent as Ctrl-D.
    ends_by_key: bool,
    /// Whether the input so far does not end a line.
    is_in_line: bool,
}

impl StdinWriter {
    pub fn new(process: ProcessSession, ends_by_key: bool) -> Self {
        Self { process, writing: None, has_ended: false, ends_by_key, is_in_line: false }
    }

    /// Starts the next request (input, or its end) unless one is in flight.
    pub fn begin(&mut self, input: &mut Option<InputQueue>) {
        let Some(input) = input.as_mut().filter(|_| self.writing.is_none()) else { return };
        let process = self.process.clone();
        if let Some(bytes) = input.take(WRITE_BYTES) {
            self.is_in_line = bytes.last().is_some_and(|byte| *byte != b'\n');
            self.writing = Some(Box::pin(async move { process.write(&bytes).await }));
        } else if input.is_over() && !std::mem::replace(&mut self.has_ended, true) {
            self.writing = Some(match self.ends_by_key {
                // Within a line the first Ctrl-D only flushes the line.
                true if self.is_in_line => {
                    Box::pin(async move { process.write(b"\x04\x04").await })
                }
                true => Box::pin(async move { process.write(b"\x04").await }),
                false => Box::pin(close(process)),
            });
        }
    }

    /// Waits for the request in flight; pending forever without one.
    pub async fn written(&mut self) -> Result<(), ExecServerError> {
        let Some(writing) = &mut self.writing else { return std::future::pending().await };
        let result = writing.await;
        self.writing = None;
        result
    }

    /// Sends all queued input.
    pub async fn finish(&mut self, input: &mut Option<InputQueue>) {
        if let Some(writing) = &mut self.writing {
            let _ = writing.await;
        }
        self.writing = None;
        while let Some(bytes) = input.as_mut().and_then(|input| input.take(WRITE_BYTES)) {
            if self.process.write(&bytes).await.is_err() {
                return;
            }
        }
    }
}

async fn close(process: ProcessSession) -> Result<(), ExecServerError> {
    match process.close_stdin().await {
        Err(ExecServerError::StdinClosed(_) | ExecServerError::UnknownProcess(_)) => Ok(()),
        result => result,
    }
}
