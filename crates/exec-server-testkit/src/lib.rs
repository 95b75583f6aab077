//! Test fixtures: real servers, real sockets, the reference client.
//!
//! | look here | for |
//! |---|---|
//! | [`executor`] | a separate server process for each test |
//! | [`client`] | a plain client that checks the order of events as it reads them |
//! | [`fs_fixture`] | a directory on a disk and in memory, with a server beside it |
//! | [`fault_proxy`] | a proxy that a test can cut, stall and slow down |
//! | [`terminal`] | a program on a pseudoterminal, with scripted input |
//! | [`raw`] | a websocket client at frame level |
//! | [`http`] | hand-written HTTP requests |
//! | [`web`] | a web server scripted byte by byte |
//! | [`collector`] | an OpenTelemetry collector |
//! | [`tunnel`] | HTTP proxies |
//! | [`isolation`] | isolates children from the settings of the user who runs the tests |
//! | [`fifo`] | synchronises a test with a child process |
//! | [`small_disk`] | a file system that a test can fill |
//! | [`process_count`] | counts the descendants of a test, and waits for their exit |
//! | [`rendezvous`] | a rendezvous for each test, and raw relay sockets |
//! | [`postgres`], [`nats`] | servers for a test, or a part of a shared one |
//! | [`nats_proxy`] | a proxy that loses, doubles and swaps messages of NATS |
//! | [`cluster`], [`balancer`] | rendezvous nodes that share a database, and what is in front of them |
//! | [`rig`], [`session`] | a cluster whose parts fail, and sessions through it that check every byte |
//! | [`remote`] | our executor and our client at a rendezvous |
//! | [`mock_idp`] | issues agent identities, and verifies their signatures |
//! | [`harness`] | a harness that reaches an executor through a rendezvous |
//! | [`mock_registry`] | a scripted registry and relay |
//! | [`hostile_relay`] | a rendezvous behind a relay that alters frames |
//! | [`mod@reference`] | the unmodified reference client, driven by a scripted model |
//!
//! Everything waits for events, with one deadline each.

pub mod balancer;
pub mod client;
#[cfg(unix)]
pub mod cluster;
pub mod collector;
pub mod executor;
#[cfg(target_os = "linux")]
pub mod fault_proxy;
#[cfg(target_os = "linux")]
pub mod fifo;
#[cfg(target_os = "linux")]
pub mod fs_fixture;
pub mod harness;
pub mod hostile_relay;
pub mod http;
pub mod isolation;
pub mod mock_idp;
pub mod mock_registry;
#[cfg(unix)]
pub mod nats;
pub mod nats_proxy;
#[cfg(unix)]
pub mod postgres;
#[cfg(target_os = "linux")]
pub mod process_count;
pub mod raw;
#[cfg(unix)]
pub mod reference;
pub mod remote;
pub mod rendezvous;
#[cfg(unix)]
pub mod rig;
#[cfg(unix)]
pub mod session;
#[cfg(target_os = "linux")]
pub mod small_disk;
#[cfg(target_os = "linux")]
pub mod terminal;
pub mod tunnel;
pub mod web;

use std::time::Duration;

pub use client::{Finished, TestClient};
pub use executor::TestExecutor;
#[cfg(target_os = "linux")]
pub use fault_proxy::FaultProxy;
#[cfg(target_os = "linux")]
pub use fifo::Fifo;
pub use harness::TestHarness;
pub use hostile_relay::{HostileRelay, Leg};
pub use http::{HttpConnection, HttpReply};
pub use mock_registry::MockRegistry;
#[cfg(target_os = "linux")]
pub use process_count::ProcessMarker;
pub use raw::RawClient;
pub use rendezvous::{RelaySocket, Relayed, TestRendezvous};
#[cfg(target_os = "linux")]
pub use small_disk::SmallDisk;
#[cfg(target_os = "linux")]
pub use terminal::Terminal;
pub use web::Web;

/// Far longer than any operation takes on a busy machine; only a failing test waits this long.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// Polls until the condition holds; for state without events, such as the process table.
pub async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let asking = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(DEADLINE, asking).await.is_ok(), "it never came that {what}");
}
