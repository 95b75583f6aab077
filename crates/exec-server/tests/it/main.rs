//! Tests of the server as its users see it: real processes, real sockets.

mod auth;
mod command_line;
#[cfg(target_os = "linux")]
mod concurrency;
mod fuzz;
mod http_routes;
mod limits;
mod listener;
mod logs;
mod metrics;
mod processes;
mod reads;
#[cfg(unix)]
mod reference_client;
#[cfg(target_os = "linux")]
mod sessions;
#[cfg(unix)]
mod shutdown;
#[cfg(unix)]
mod stdio;
mod wire;
