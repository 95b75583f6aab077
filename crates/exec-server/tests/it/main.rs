//! Tests of the server as its users see it: real processes, real sockets.

#[cfg(target_os = "linux")]
mod concurrency;
mod fuzz;
mod processes;
#[cfg(unix)]
mod reference_client;
#[cfg(target_os = "linux")]
mod sessions;
mod wire;
