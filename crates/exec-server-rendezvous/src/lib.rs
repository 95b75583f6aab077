//! Registry and relay server for executors and harnesses that cannot reach each other directly.
//!
//! | module | contains |
//! |---|---|
//! | [`server`], `opened` | bind, serve, drain; the data directory or the shared database |
//! | [`config`] | configuration, limits, timings |
//! | `hand_over` | a node that stops lets others take over its executors |
//! | `http`, `api` | HTTP routes and handlers |
//! | [`signed_url`], `key_ring` | signed websocket URLs, and the keys for them |
//! | `socket`, `tcp` | websocket of one executor or harness, and its TCP options |
//! | [`bus`] | registry of attached sockets; the routing rules are in `exec_server_relay::switchboard` |
//! | `maintenance` | ended tokens, expired rows, free memory |
//! | [`membership`], [`held_claims`] | which nodes of a cluster are alive; which executors a node holds |
//! | [`trunk`], [`wire`] | links between two nodes, and the messages between nodes |
//! | [`store`], [`data_dir`] | persistent state |
//! | [`admin`], [`presence`] | token management and online status |
//!
//! The rendezvous sees which peers communicate and how much; the content is end-to-end encrypted. It starts no processes.

pub mod admin;
pub mod bus;
pub mod clock;
pub mod config;
pub mod data_dir;
pub mod held_claims;
pub mod membership;
pub mod presence;
pub mod server;
pub mod signed_url;
pub mod store;
pub mod trunk;
pub mod wire;

mod api;
mod hand_over;
mod http;
mod key_ring;
mod maintenance;
mod metrics;
mod opened;
mod secrets;
mod socket;
mod tcp;

pub use config::RendezvousConfig;
pub use opened::open_store;
pub use server::{BoundRendezvous, StartError};
