//! The pipes of exec-server: messages in both directions, whatever carries them.
//!
//! | look here | for |
//! |---|---|
//! | [`connection`] | one peer: what it sends, and what is sent to it |
//! | [`outbox`] | the queue in front of a peer, with a fast lane for replies |
//! | [`websocket`] | messages as websocket messages |
//! | [`upgrade`] | the step from HTTP to a websocket |
//! | [`lines`] | messages as lines, over stdio or memory |
//! | [`text`] | messages that are written by hand |
//! | [`dial`], [`proxy`] | links to a server, through a proxy where the environment says so |
//! | [`relay_harness`], [`relay_mux`] | messages through a relay, at either end |
//! | [`registry`], [`http_exchange`] | what a registry is asked, and any single request |
//! | [`splice`] | two wires made into one |
//! | [`causes`] | an error with what led to it |
//! | [`tls`], [`identity_file`] | certificates and keys from files |

pub mod causes;
pub mod connection;
pub mod dial;
pub mod http_exchange;
pub mod identity_file;
pub mod lines;
pub mod outbox;
pub mod proxy;
pub mod registry;
pub mod relay_harness;
pub mod relay_mux;
pub mod splice;
pub mod text;
pub mod tls;
pub mod upgrade;
pub mod websocket;
