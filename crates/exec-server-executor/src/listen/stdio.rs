//! The one connection over stdin and stdout.

use std::io;
use std::sync::Arc;

use exec_server_transport::connection::{Connection, Ended, KeepaliveConfig};
use exec_server_transport::lines::LineWire;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;

use crate::auth::Principal;
use crate::connection::run_connection;
use crate::server::Server;

/// Serves the peer on stdin and stdout until its connection ends.
pub async fn serve_stdio(server: &Arc<Server>) -> io::Result<Ended> {
    let max_line = server.config.limits.message_bytes;
    let wire = LineWire::new(stdin()?, stdout()?, max_line);
    let timings = &server.config.timings;
    let pings =
        KeepaliveConfig { interval: timings.ping_interval, deadline: timings.pong_deadline };
    let connection = Connection::new(Box::new(wire), pings);
    // The server owns the task, because the peer still receives process events during shutdown.
    let (done, ended) = oneshot::channel();
    let task = run_connection(server.clone(), connection, Principal::Anyone);
    server.spawn(async move { drop(done.send(task.await)) });
    ended.await.map_err(io::Error::other)
}

type Reader = Box<dyn AsyncRead + Send + Unpin>;
type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// A pipe is read asynchronously; other files need tokio's blocking threads.
#[cfg(unix)]
fn stdin() -> io::Result<Reader> {
    use std::os::fd::AsFd;
    let copy = std::fs::File::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(match tokio::net::unix::pipe::Receiver::from_file(copy) {
        Ok(pipe) => Box::new(pipe),
        Err(_) => Box::new(tokio::io::stdin()),
    })
}

#[cfg(unix)]
fn stdout() -> io::Result<Writer> {
    use std::os::fd::AsFd;
    let copy = std::fs::File::from(io::stdout().as_fd().try_clone_to_owned()?);
    Ok(match tokio::net::unix::pipe::Sender::from_file(copy) {
        Ok(pipe) => Box::new(pipe),
        Err(_) => Box::new(tokio::io::stdout()),
    })
}

#[cfg(not(unix))]
fn stdin() -> io::Result<Reader> {
    Ok(Box::new(tokio::io::stdin()))
}

#[cfg(not(unix))]
fn stdout() -> io::Result<Writer> {
    Ok(Box::new(tokio::io::stdout()))
}
