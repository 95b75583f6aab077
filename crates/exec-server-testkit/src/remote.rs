//! Our executor and our client at a rendezvous, both for the environment `env`.

use std::path::Path;
use std::time::Duration;

use exec_server_client::relay::ClientStateDir;
use exec_server_client::{ExecServerClient, RelayConnectArgs, TokenSource};
use tokio::time::timeout;

use crate::DEADLINE;
use crate::executor::{ExecutorBuilder, TestExecutor};
use crate::http::request_with_body;

/// Our server, with its state in a directory of its own.
pub fn join(url: &str, state: &Path, token: &str) -> ExecutorBuilder {
    join_with(TestExecutor::builder(), url, state, token)
}

/// A program that joins the environment like a server, with its state in a directory of its own.
pub fn join_with(
    mut builder: ExecutorBuilder,
    url: &str,
    state: &Path,
    token: &str,
) -> ExecutorBuilder {
    let command = builder.command();
    for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    command.env_remove("RUST_LOG").arg("--state-dir").arg(state);
    builder
        .args(&["--remote", url, "--environment-id", "env"])
        .env("EXEC_SERVER_REMOTE_TOKEN", token)
}

/// Waits until the rendezvous reports the executor as attached, or as detached.
pub async fn wait_for_presence(url: &str, admin: &str, is_online: bool) {
    let authorization = format!("Bearer {admin}");
    let headers = [("Authorization", authorization.as_str())];
    let expected = format!("\"online\":{is_online}");
    let asking = async {
        loop {
            let reply = request_with_body(url, "GET", "/admin/environments", &headers, b"").await;
            if reply.body.contains(&expected) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let came = timeout(DEADLINE, asking).await;
    assert!(came.is_ok(), "it never came that the executor was {expected}");
}

/// Options of a client that keeps what it knows in this directory.
pub fn args(url: &str, token: &str, state: &Path) -> RelayConnectArgs {
    let state = ClientStateDir::open(state).expect("there is room for a directory");
    RelayConnectArgs::new(url, "env", TokenSource::fixed(token)).remembering(&state)
}

/// A client that has reached the executor.
pub async fn connect(args: RelayConnectArgs) -> ExecServerClient {
    let connecting = ExecServerClient::connect_relay(args);
    timeout(DEADLINE, connecting).await.expect("it answers in time").expect("it is reached")
}
