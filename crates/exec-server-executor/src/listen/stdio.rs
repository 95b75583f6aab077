//! The one connection over stdin and stdout.

use std::io;
use std::sync::Arc;

use exec_server_transport::connection::{Connection, Ended, KeepaliveConfig};
use exec_server_transport::lines::LineWire;
use exec_server_transport::stdio;
use tokio::sync::oneshot;

use crate::auth::{Authenticated, Principal};
use crate::connection::run_connection;
use crate::server::Server;

/// Serves the peer on stdin and stdout until its connection ends.
pub async fn serve_stdio(server: &Arc<Server>) -> io::Result<Ended> {
    let max_line = server.config.limits.message_bytes;
    let wire = LineWire::new(stdio::stdin()?, stdio::stdout()?, max_line);
    let timings = &server.config.timings;
    let pings =
        KeepaliveConfig { interval: timings.ping_interval, deadline: timings.pong_deadline };
    let connection = Connection::new(Box::new(wire), pings);
    // The server owns the task, because the peer still receives process events during shutdown.
    let (done, ended) = oneshot::channel();
    let client = Authenticated::from(Principal::Anyone).from_origin("stdio", None);
    let task = run_connection(server.clone(), connection, client);
    server.spawn(async move { drop(done.send(task.await)) });
    ended.await.map_err(io::Error::other)
}
