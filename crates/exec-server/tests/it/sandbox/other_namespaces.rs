//! A server in another pid namespace that shares the network does not serve a sandbox that it cannot see.

use exec_server_testkit::TestExecutor;

use super::attempt::outcomes;
use super::fixture::{SandboxFixture, as_each_user};
use super::*;

/// Starts a server as a container with the network of the host has it: its own pid namespace and `/proc`.
async fn start_in_container(user: &str) -> Option<TestExecutor> {
    let probe = format!("unshare {user} --pid --fork --mount-proc true");
    let works = std::process::Command::new("/bin/sh").args(["-c", &probe]).status();
    if !works.is_ok_and(|status| status.success()) {
        eprintln!("skipped: `{probe}` does not work here");
        return None;
    }
    let enter = format!(
        "[ -n \"$IN_CONTAINER\" ] || IN_CONTAINER=1 exec unshare {user} --pid --fork --kill-child --mount-proc \
         \"$0\" \"$@\""
    );
    Some(TestExecutor::builder().after(&enter).start().await)
}

#[tokio::test]
async fn a_sandbox_of_the_host_is_not_served_in_a_container() {
    let Some(container) = start_in_container("--user --map-root-user").await else { return };
    let mut fixture = SandboxFixture::new(TestExecutor::start().await, None).await;
    let address = container.url().trim_start_matches("ws://").trim_end_matches('/').to_owned();
    fixture.env.insert("DIAL".to_owned(), address);
    // The server sees none of these processes, and refuses all of them, because it asks for no token.
    for policy in [Value::Null, fixture.workspace("enabled"), unrestricted("enabled")] {
        for (attempt, outcome) in outcomes(&mut fixture, &policy, &["dial", "dial_in_flight"]).await
        {
            assert_ne!(outcome, "ok", "{attempt} {policy}");
        }
    }
}

/// `--allow-other-users` opens a server to users, not to sandboxes of users that conceal their socket.
#[tokio::test]
async fn a_concealed_socket_of_another_user_is_refused_as_well() {
    let open = TestExecutor::start_with(&["--allow-other-users"]).await;
    as_each_user(async |fixture| {
        let address = open.url().trim_start_matches("ws://").trim_end_matches('/').to_owned();
        fixture.env.insert("DIAL".to_owned(), address);
        let free = outcomes(fixture, &Value::Null, &["dial"]).await;
        assert_eq!(free["dial"], "ok");
        let policy = fixture.workspace("enabled");
        for (attempt, outcome) in outcomes(fixture, &policy, &["dial", "dial_in_flight"]).await {
            assert_ne!(outcome, "ok", "{attempt}");
        }
    })
    .await;
}
