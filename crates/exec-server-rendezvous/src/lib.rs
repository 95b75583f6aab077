//! The meeting point of exec-server: a registry and a relay for executors and harnesses that cannot reach each other.
//!
//! | look here | for |
//! |---|---|
//! | [`server`] | a rendezvous' life: bind, serve, drain |
//! | [`config`] | how it is set up |
//! | `http`, `api` | what is asked by HTTP, and by whom |
//! | [`signed_url`] | websocket URLs that carry their own authority |
//! | `socket` | one socket of an executor or a harness |
//! | [`bus`] | everybody who is attached; the rules are the machine `switchboard` |
//! | [`store`], [`data_dir`] | what is remembered, and where |
//! | [`admin`], [`presence`] | what an administrator can do, and hear |
//!
//! It sees who talks to whom, and how much; what they say is encrypted between them. It can start nothing.

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
