//! Message transport: connections to one peer, over websockets or lines, with TLS, proxies and dialling.
//!
//! | module | contains |
//! |---|---|
//! | [`connection`] | one peer: incoming events, outgoing messages, keepalive |
//! | [`keepalive_timer`] | pings and their deadline, for every loop that owns a socket |
//! | [`outbox`] | send queue of one peer, with a priority lane for replies |
//! | [`websocket`] | messages as websocket messages |
//! | [`upgrade`] | server side of the websocket handshake |
//! | [`http_front`] | HTTP front end of both servers: accept, TLS, health, version, metrics, upgrade |
//! | [`local_listener`] | listener of a client command, with a gate for local processes |
//! | [`host`] | loopback check of the `Host` header |
//! | [`lines`] | messages as lines, over stdio or in memory |
//! | [`stdio`] | stdin and stdout of this process |
//! | [`text`] | reusable buffers for large outgoing messages |
//! | [`dial`], [`proxy`] | connects to a server, directly or through an HTTP proxy |
//! | [`spans`] | spans of calls, requests and processes, for a recorder |
//! | [`http_exchange`] | one HTTP request on its own connection |
//! | `metric_set` | the metrics of a server, with the feature `metrics` |
//! | [`causes`] | formats an error with its causes |
//! | [`certificates`] | certificate and key of a listener, loaded again when their files change |
//! | [`tls`] | TLS setup from PEM files and system roots |

#![warn(unreachable_pub)]

pub mod causes;
pub mod certificates;
pub mod connection;
pub mod dial;
pub mod host;
pub mod http_exchange;
pub mod http_front;
pub mod keepalive_timer;
pub mod lines;
pub mod local_listener;
#[cfg(feature = "metrics")]
pub mod metric_set;
pub mod outbox;
pub mod proxy;
pub mod spans;
pub mod stdio;
pub mod text;
pub mod tls;
pub mod upgrade;
pub mod websocket;
