//! The rendezvous: real sockets and a real database.

#[cfg(unix)]
mod agent_identity;
#[cfg(unix)]
mod certificates;
#[cfg(target_os = "linux")]
mod chaos;
#[cfg(unix)]
mod claims;
#[cfg(unix)]
mod cluster;
#[cfg(target_os = "linux")]
mod cluster_crowd;
#[cfg(target_os = "linux")]
mod cluster_errors;
#[cfg(target_os = "linux")]
mod cluster_example;
#[cfg(target_os = "linux")]
mod cluster_partitions;
#[cfg(target_os = "linux")]
mod cluster_rounds;
#[cfg(target_os = "linux")]
mod cluster_sessions;
#[cfg(target_os = "linux")]
mod cluster_versions;
pub mod commands;
mod crowd;
mod deletion;
#[cfg(unix)]
mod deployment;
#[cfg(unix)]
pub mod executor;
#[cfg(unix)]
mod executor_retries;
mod expiry;
#[cfg(target_os = "linux")]
mod forward;
#[cfg(target_os = "linux")]
mod full_disk;
#[cfg(unix)]
mod handshake_limits;
mod hostile_requests;
mod lifecycle;
mod limits;
#[cfg(unix)]
mod logs;
#[cfg(target_os = "linux")]
mod numbering;
#[cfg(unix)]
mod reference;
#[cfg(unix)]
mod registration_bearer;
mod registry;
mod relay;
mod returning;
mod routes;
mod store;
mod store_metrics;
#[cfg(unix)]
mod trunk;
#[cfg(target_os = "linux")]
mod trust;

use exec_server_rendezvous::clock;
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::http::HttpReply;
use exec_server_testkit::rendezvous::{public_key, upgrade_at};
use exec_server_testkit::{RelaySocket, TestRendezvous};
use serde_json::Value;

/// An environment with its tokens.
struct Env {
    name: &'static str,
    executor: String,
    harness: String,
}

async fn env(rendezvous: &TestRendezvous, name: &'static str) -> Env {
    let executor = rendezvous.token(TokenRole::Executor, name).await;
    let harness = rendezvous.token(TokenRole::Harness, name).await;
    Env { name, executor, harness }
}

impl Env {
    /// Registers and attaches an executor.
    async fn executor(&self, rendezvous: &TestRendezvous) -> RelaySocket {
        let answer = rendezvous.register(self.name, &self.executor, &public_key(1)).await;
        RelaySocket::open(url(&answer)).await
    }

    /// Sends a connect request and attaches a harness.
    async fn harness(&self, rendezvous: &TestRendezvous) -> RelaySocket {
        let bundle = rendezvous.connect(self.name, &self.harness, &public_key(2)).await;
        RelaySocket::open(url(&bundle)).await
    }
}

fn url(answer: &Value) -> &str {
    answer["url"].as_str().expect("an answer has a URL")
}

/// Status and code of a rejection.
fn refusal(reply: &HttpReply) -> (u16, String) {
    let body: Value = serde_json::from_str(&reply.body).unwrap_or_default();
    (reply.status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

/// Status and reason of a rejected websocket.
async fn rejection(url: &str) -> (u16, String) {
    rejected(&upgrade_at(url).await)
}

/// Status and reason of the answer to an upgrade.
fn rejected(reply: &HttpReply) -> (u16, String) {
    let reason = reply.header("x-codex-rendezvous-rejection-reason");
    (reply.status, reason.unwrap_or_default().to_owned())
}

/// Revokes every token in the database, as another program would.
pub async fn revoke_all(rendezvous: &TestRendezvous) {
    let store = rendezvous.store();
    for token in store.tokens().await.expect("the store works") {
        store.revoke_token(token.id, clock::now()).await.expect("the store works");
    }
}
