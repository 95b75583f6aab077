//! Registry and relay server for executors and harnesses that cannot reach each other directly.
//!
//! | module | contains |
//! |---|---|
//! | [`server`] | bind, serve, drain |
//! | [`config`] | configuration, limits, timings |
//! | `http`, `api` | HTTP routes and handlers |
//! | [`signed_url`] | signed websocket URLs |
//! | `socket` | websocket of one executor or harness |
//! | [`bus`] | registry of attached sockets; the routing rules are in `exec_server_relay::switchboard` |
//! | [`store`], [`data_dir`] | persistent state |
//! | [`admin`], [`presence`] | token management and online status |
//!
//! The rendezvous sees which peers communicate and how much; the content is end-to-end encrypted. It starts no processes.

pub mod admin;
pub mod bus;
pub mod clock;
pub mod config;
pub mod data_dir;
pub mod presence;
pub mod server;
pub mod signed_url;
pub mod store;

mod api;
mod http;
mod metrics;
mod secrets;
mod socket;

pub use config::RendezvousConfig;
pub use server::{BoundRendezvous, StartError};
