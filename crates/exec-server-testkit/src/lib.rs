//! What the tests of exec-server are made with: real servers, real sockets, the reference client.
//!
//! | look here | for |
//! |---|---|
//! | [`executor`] | a server of its own for each test |
//! | [`client`] | a plain client that checks the order of events as it reads them |
//! | [`desk`] | a directory on a disk and in memory, with a server beside it |
//! | [`cable`] | a connection that a test can cut, stall and slow down |
//! | [`terminal`] | a program on a terminal, and somebody who types and reads |
//! | [`raw`] | a client that sends any frame, and reads only when it wants |
//! | [`http`] | hand-written HTTP, for what no client library would send |
//! | [`web`] | a web server whose every byte a test decides |
//! | [`tunnel`] | proxies on the way to a server |
//! | [`fifo`] | a door between a test and a child |
//! | [`footprint`] | every process that came from a test, and when they are gone |
//! | [`rendezvous`] | a meeting point, and sockets that say anything |
//! | [`authority`] | who issues agent identities, and checks what they sign |
//! | [`harness`] | somebody who finds an executor through a meeting point |
//! | [`stage`] | a registry and a relay that a test plays itself |
//! | [`hostile_relay`] | a meeting point with somebody in the middle who does anything to frames |
//! | [`mod@reference`] | the unmodified reference client, driven by a scripted model |
//!
//! Everything waits for events, with one deadline each.

pub mod authority;
#[cfg(target_os = "linux")]
pub mod cable;
pub mod client;
#[cfg(target_os = "linux")]
pub mod desk;
pub mod executor;
#[cfg(target_os = "linux")]
pub mod fifo;
#[cfg(target_os = "linux")]
pub mod footprint;
pub mod harness;
pub mod hostile_relay;
pub mod http;
pub mod raw;
#[cfg(unix)]
pub mod reference;
pub mod rendezvous;
pub mod stage;
#[cfg(target_os = "linux")]
pub mod terminal;
pub mod tunnel;
pub mod web;

use std::time::Duration;

#[cfg(target_os = "linux")]
pub use cable::Cable;
pub use client::{Finished, TestClient};
pub use executor::TestExecutor;
#[cfg(target_os = "linux")]
pub use fifo::Fifo;
#[cfg(target_os = "linux")]
pub use footprint::Footprint;
pub use harness::TestHarness;
pub use hostile_relay::{HostileRelay, Leg};
pub use http::{HttpConnection, HttpReply};
pub use raw::RawClient;
pub use rendezvous::{RelaySocket, Relayed, TestRendezvous};
pub use stage::Stage;
#[cfg(target_os = "linux")]
pub use terminal::Terminal;
pub use web::Web;

/// Far longer than anything takes, also on a busy machine; only a test that fails waits this long.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// Asks until it is so; for facts that nobody announces, such as the table of processes.
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let asking = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(DEADLINE, asking).await.is_ok(), "it never came that {what}");
}
