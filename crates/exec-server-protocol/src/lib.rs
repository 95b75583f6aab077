//! The words of exec-server: every shape, method name, error code and limit on any wire.
//!
//! | look here | for |
//! |---|---|
//! | [`envelope`] | requests, replies, notifications: the outside of every message |
//! | [`methods`] | the table of methods, with their lanes |
//! | [`initialize`], [`session`], [`process`], [`fs`], [`http`], [`environment`] | the payloads of each family |
//! | [`answers`] | what a client takes from a server of any age |
//! | [`sandbox`] | what a request may touch |
//! | [`relay_frame`], [`registry`] | how an executor and a harness meet at a rendezvous |
//! | [`encode`] | messages that are sent so often that they are written by hand |
//! | [`base64`], [`hex`] | bytes as text |
//! | [`path_uri`] | `file:` URIs and the paths that they name |
//! | [`errors`] | codes and the shape of `error.data` |
//! | [`visible`] | texts of others, as they can be shown |
//! | [`limits`] | numbers that both ends rely on, each with its reason |
//!
//! Nothing here does I/O or decides what happens next.

pub mod answers;
pub mod base64;
pub mod bytes64;
pub mod encode;
pub mod envelope;
pub mod environment;
pub mod errors;
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
pub mod registry;
pub mod relay_frame;
pub mod sandbox;
pub mod session;
pub mod visible;

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}
