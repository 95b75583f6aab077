//! A client command whose output is shown line by line as it comes.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::time::timeout;

use super::narrator::Narrator;
use super::stage::Stage;
use crate::cli::Failure;

/// Longer than any silence of the demo; after it, something is broken.
const SILENCE: Duration = Duration::from_secs(60);

/// A running client command.
pub struct Shown<'a> {
    child: Child,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: Lines<BufReader<ChildStderr>>,
    is_stdout_open: bool,
    is_stderr_open: bool,
    /// Lines on stdout so far.
    pub lines: Vec<String>,
    stage: &'a Stage,
    narrator: &'a Narrator,
}

impl<'a> Shown<'a> {
    pub fn start(
        mut command: Command,
        stage: &'a Stage,
        narrator: &'a Narrator,
    ) -> Result<Self, Failure> {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| Failure::local("could not start a command of the demo", error))?;
        let stdout = lines(child.stdout.take().expect("stdout is piped"));
        let stderr = lines(child.stderr.take().expect("stderr is piped"));
        Ok(Self {
            child,
            stdout,
            stderr,
            is_stdout_open: true,
            is_stderr_open: true,
            lines: Vec::new(),
            stage,
            narrator,
        })
    }

    /// Shows output until there are `count` lines on stdout, or no more.
    pub async fn show_until(&mut self, count: usize) -> Result<(), Failure> {
        while self.lines.len() < count && self.is_stdout_open {
            self.show_line().await?;
        }
        Ok(())
    }

    /// Shows output for this long.
    pub async fn show_for(&mut self, time: Duration) -> Result<(), Failure> {
        let end = tokio::time::Instant::now() + time;
        while self.is_stdout_open || self.is_stderr_open {
            match tokio::time::timeout_at(end, self.show_line()).await {
                Ok(result) => result?,
                Err(_) => return Ok(()),
            }
        }
        tokio::time::sleep_until(end).await;
        Ok(())
    }

    /// Shows the rest of the output; returns the exit code.
    pub async fn finish(&mut self) -> Result<i32, Failure> {
        while self.is_stdout_open || self.is_stderr_open {
            self.show_line().await?;
        }
        let ended = timeout(SILENCE, self.child.wait()).await;
        let status = ended.ok().and_then(Result::ok);
        let status =
            status.ok_or_else(|| self.stage.broken("a command of the demo did not end"))?;
        Ok(status.code().unwrap_or(-1))
    }

    async fn show_line(&mut self) -> Result<(), Failure> {
        let next = async {
            tokio::select! {
                line = self.stdout.next_line(), if self.is_stdout_open => (true, line),
                line = self.stderr.next_line(), if self.is_stderr_open => (false, line),
            }
        };
        let Ok((is_stdout, line)) = timeout(SILENCE, next).await else {
            return Err(self.stage.broken("a command of the demo was silent for a minute"));
        };
        match line {
            Ok(Some(line)) => {
                self.narrator.output(&line);
                if is_stdout {
                    self.lines.push(line);
                }
            }
            _ if is_stdout => self.is_stdout_open = false,
            _ => self.is_stderr_open = false,
        }
        Ok(())
    }
}

fn lines<T: AsyncRead + Unpin>(stream: T) -> Lines<BufReader<T>> {
    BufReader::new(stream).lines()
}
