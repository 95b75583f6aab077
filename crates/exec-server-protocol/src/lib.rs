//! Wire types of exec-server: messages, method names, error codes and limits.
//!
//! | look here | for |
//! |---|---|
//! | [`envelope`] | requests, replies, notifications: the envelope of every message |
//! | [`methods`] | the table of methods, with their lanes |
//! | [`initialize`], [`session`], [`process`], [`fs`], [`http`], [`environment`] | payloads by method family |
//! | [`answers`] | lenient reply types for clients of older servers |
//! | [`sandbox`] | sandbox policies |
//! | [`user`] | the user that a request runs as |
//! | [`encode`] | hand-written encoders for hot messages |
//! | [`base64`], [`hex`] | byte-to-text encodings |
//! | [`binary`] | binary messages, with bytes beside their JSON |
//! | [`duration`] | durations in milliseconds |
//! | [`path_uri`] | `file:` URIs and the paths that they name |
//! | [`error_kinds`] | the table of errors: names and meanings |
//! | [`errors`] | codes and the shape of `error.data` |
//! | [`trace_context`] | the W3C trace context of a request |
//! | [`escape_untrusted`] | escaping of untrusted text |
//! | [`limits`] | numbers that both ends rely on, each with its reason |
//!
//! This crate does no I/O and holds no state.

pub mod answers;
pub mod base64;
pub mod binary;
pub mod bytes64;
pub mod duration;
pub mod encode;
pub mod envelope;
pub mod environment;
pub mod error_kinds;
pub mod errors;
pub mod escape_untrusted;
pub mod fs;
pub mod hex;
pub mod http;
pub mod initialize;
pub mod json;
pub mod limits;
pub mod methods;
pub mod params;
pub mod path_uri;
pub mod process;
pub mod sandbox;
#[cfg(feature = "schema")]
pub mod schema;
pub mod session;
pub mod trace_context;
pub mod user;

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
pub(crate) fn is_zero(value: &u64) -> bool {
    *value == 0
}
