//! The encrypted relay: frames, Noise, streams at both ends, and the routing table of a relay node.
//!
//! | look here | for |
//! |---|---|
//! | [`frame`], [`registry_types`] | the wire: relay frames, and the JSON bodies of a registry |
//! | [`noise`] | identities, the handshake, encrypted records |
//! | [`fingerprint`] | the text form of a public key that users compare |
//! | [`harness_stream`] | the harness's end of one stream |
//! | [`mux`], [`handshake_limit`] | the executor's end of all streams of one socket, and its handshake limits |
//! | [`framing`], [`reorder`], [`stream`] | messages to records and back, record order, stream errors |
//! | [`switchboard`] | the routing table of a relay node |
//! | [`mux_task`], [`harness_wire`], [`splice`] | the tasks that drive them over websockets |
//! | [`registry_client`], [`identity_file`] | requests to a registry, keys in files |
//!
//! Without the feature `io`, only the modules that use no sockets, clocks or files are built; they build for
//! `wasm32-unknown-unknown`, too, with a cipher without C code (`noise::cipher`).

#![warn(unreachable_pub)]

pub mod fingerprint;
pub mod frame;
pub mod framing;
pub mod handshake_limit;
pub mod harness_stream;
pub mod mux;
pub mod noise;
mod record_stream;
pub mod registry_types;
pub mod reorder;
pub mod stream;
pub mod switchboard;

#[cfg(feature = "io")]
pub mod harness_wire;
#[cfg(feature = "io")]
pub mod identity_file;
#[cfg(feature = "io")]
pub mod mux_task;
#[cfg(feature = "io")]
pub mod registry_client;
#[cfg(feature = "io")]
pub mod splice;
