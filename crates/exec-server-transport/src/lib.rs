//! The pipes of exec-server: messages in both directions, whatever carries them.
//!
//! | look here | for |
//! |---|---|
//! | [`connection`] | one peer: what it sends, and what is sent to it |
//! | [`outbox`] | the queue in front of a peer, with a fast lane for replies |
//! | [`websocket`] | messages as websocket messages |
//! | [`lines`] | messages as lines, over stdio or memory |
//! | [`text`] | messages that are written by hand |
//! | [`tls`] | certificates and keys from files |

pub mod connection;
pub mod lines;
pub mod outbox;
pub mod text;
pub mod tls;
pub mod websocket;
