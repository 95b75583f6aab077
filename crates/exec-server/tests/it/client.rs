//! The Rust client: commands, files and HTTP over links that break, against real and scripted servers.

mod chaos;
mod commands;
mod completion;
mod cuts;
mod files;
mod hostile_server;
mod http;
mod limits;
pub mod peer;
mod reconnecting;
pub mod reference;
mod resync;
mod surface;
mod transports;
