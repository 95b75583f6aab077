//! Our own executor at registries and relays that are of no use, for a moment or for long.

use exec_server_testkit::executor::{Signal, TestExecutor};
use exec_server_testkit::stage::{registration, switch};
use exec_server_testkit::web::{Visit, answer};
use exec_server_testkit::{DEADLINE, Web};
use tokio::time::timeout;

use super::executor::join;

/// Pauses grow so fast that fewer attempts than this come before one of more than a second.
const MANY: usize = 60;

#[tokio::test]
async fn a_relay_that_takes_nobody_is_asked_ever_more_slowly() {
    for relay in [Relay::HangsUp, Relay::Says(404), Relay::Says(502), Relay::Drops] {
        let web = Web::start(move |visit| serve(visit, relay)).await;
        let state = tempfile::tempdir().unwrap();
        let mut executor = join(&web.url(""), state.path(), "token").piped_stderr().spawn();
        wait_for_a_long_pause(&mut executor, &web, relay).await;
        let asked = web.requests();
        let registered = asked.iter().filter(|request| request.method == "POST").count();
        assert!(registered < MANY, "{relay:?}: {registered} registrations");
        executor.signal(Signal::TERM);
        assert_eq!(executor.wait().await.code(), Some(0));
    }
}

/// What becomes of those who want a websocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relay {
    /// No answer, only the end.
    HangsUp,
    /// This status.
    Says(u16),
    /// They get it, and then it is gone.
    Drops,
}

async fn serve(mut visit: Visit, relay: Relay) {
    while let Some(request) = visit.request().await {
        match relay {
            _ if request.method == "POST" => {
                visit.send(&answer(200, &[], registration(&request))).await;
            }
            Relay::HangsUp => return,
            Relay::Says(status) => {
                visit.send(&answer(status, &[], "")).await;
            }
            Relay::Drops => {
                visit.send(switch(&request)).await;
                return;
            }
        }
    }
}

/// Waits until the log says that it pauses for more than a second.
async fn wait_for_a_long_pause(executor: &mut TestExecutor, web: &Web, relay: Relay) {
    let waiting = async {
        loop {
            let line = executor.next_stderr_line().await.expect("it goes on");
            let requests = web.requests().len();
            assert!(requests < 10 * MANY, "{relay:?}: {requests} requests");
            let line: serde_json::Value = serde_json::from_str(&line).expect("a line of JSON");
            let pause = line["pause"].as_str().unwrap_or_default();
            if line["message"].as_str().unwrap_or_default().ends_with("trying again")
                && !pause.ends_with("ms")
                && !pause.ends_with("µs")
            {
                return;
            }
        }
    };
    timeout(DEADLINE, waiting).await.expect("it is patient in time");
}
