//! Tests of the server as its users see it: real processes, real sockets.

mod processes;
#[cfg(unix)]
mod reference_client;
