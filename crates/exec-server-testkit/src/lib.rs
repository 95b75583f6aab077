//! What the tests of exec-server are made with: real servers, real sockets, the reference client.
//!
//! | look here | for |
//! |---|---|
//! | [`executor`] | a server of its own for each test |
//! | [`client`] | a plain client that checks the order of events as it reads them |
//! | [`raw`] | a client that sends any frame, and reads only when it wants |
//! | [`http`] | hand-written HTTP, for what no client library would send |
//! | [`reference`] | the unmodified reference client, driven by a scripted model |
//!
//! Everything waits for events, with one deadline each.

pub mod client;
pub mod executor;
pub mod http;
pub mod raw;
#[cfg(unix)]
pub mod reference;

use std::time::Duration;

pub use client::{Finished, TestClient};
pub use executor::TestExecutor;
pub use http::{HttpConnection, HttpReply};
pub use raw::RawClient;

/// Far longer than anything takes, also on a busy machine; only a test that fails waits this long.
pub const DEADLINE: Duration = Duration::from_secs(30);
