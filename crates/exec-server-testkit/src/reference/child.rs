//! Runs a program to its end, within a deadline.

use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

pub(super) struct Ended {
    /// `None` if the deadline passed first.
    pub status: Option<ExitStatus>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a program until it exits or the deadline passes, and reaps it.
pub(super) fn run_to_end(mut command: Command, deadline: Duration) -> io::Result<Ended> {
    let deadline = Instant::now() + deadline;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let stdout = read_in_background(child.stdout.take().expect("stdout is piped"));
    let stderr = read_in_background(child.stderr.take().expect("stderr is piped"));
    let wait = |text: &Receiver<String>| {
        text.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    };
    let texts = (wait(&stdout), wait(&stderr));
    let in_time = texts.0.is_some() && texts.1.is_some();
    if !in_time {
        child.kill()?;
    }
    let status = child.wait()?;
    // After a kill the streams end at once, unless a child of the program holds them open.
    let rest =
        |text: Receiver<String>| text.recv_timeout(Duration::from_secs(1)).unwrap_or_default();
    Ok(Ended {
        status: in_time.then_some(status),
        stdout: texts.0.unwrap_or_else(|| rest(stdout)),
        stderr: texts.1.unwrap_or_else(|| rest(stderr)),
    })
}

/// Reads a stream to its end on a thread.
fn read_in_background(mut stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}
