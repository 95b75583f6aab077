//! Stdin and stdout of this process as byte streams.

use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

/// Input of this process.
pub type Reader = Box<dyn AsyncRead + Send + Unpin>;
/// Output of this process.
pub type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Stdin: a pipe is read asynchronously, other files need tokio's blocking threads.
#[cfg(unix)]
pub fn stdin() -> io::Result<Reader> {
    use std::os::fd::AsFd;
    let copy = std::fs::File::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(match tokio::net::unix::pipe::Receiver::from_file(copy) {
        Ok(pipe) => Box::new(pipe),
        Err(_) => Box::new(tokio::io::stdin()),
    })
}

/// Stdout, written in the same way.
#[cfg(unix)]
pub fn stdout() -> io::Result<Writer> {
    use std::os::fd::AsFd;
    let copy = std::fs::File::from(io::stdout().as_fd().try_clone_to_owned()?);
    Ok(match tokio::net::unix::pipe::Sender::from_file(copy) {
        Ok(pipe) => Box::new(pipe),
        Err(_) => Box::new(tokio::io::stdout()),
    })
}

/// Stdin.
#[cfg(not(unix))]
pub fn stdin() -> io::Result<Reader> {
    Ok(Box::new(tokio::io::stdin()))
}

/// Stdout.
#[cfg(not(unix))]
pub fn stdout() -> io::Result<Writer> {
    Ok(Box::new(tokio::io::stdout()))
}
