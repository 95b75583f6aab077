//! Terminals and signals reach a sandboxed program as they reach any other.

use super::fixture::{SandboxFixture, as_each_user};
use super::*;

async fn start(fixture: &mut SandboxFixture, id: &str, tty: bool, script: &str) {
    let mut params = fixture.params(&fixture.workspace("restricted"));
    params["tty"] = json!(tty);
    params["pipeStdin"] = json!(!tty);
    fixture.client.start(id, &["/bin/sh", "-c", script], params).await.expect("it starts");
}

#[tokio::test]
async fn ctrl_c_reaches_the_handler_of_the_program() {
    as_each_user(async |fixture| {
        start(
            fixture,
            "p",
            true,
            "trap 'echo caught; exit 5' INT; echo ready; while :; do sleep 0.05; done",
        )
        .await;
        fixture.client.wait_output("p", "ready").await;
        fixture.client.write("p", "w", "\x03").await.unwrap();
        let finished = fixture.client.finish("p").await;
        assert!(finished.pty_text().contains("caught"), "{finished:?}");
        assert_eq!(finished.exit_code, 5);
    })
    .await;
}

#[tokio::test]
async fn a_terminal_has_job_control() {
    as_each_user(async |fixture| {
        start(fixture, "p", true, "exec bash --norc -i").await;
        let steps = [
            ("set -m; sh -c 'echo go-$((1+1)); exec sleep 1000'\n", "go-2"),
            ("\x1a", "Stopped"),
            ("bg >/dev/null; kill %1; wait; echo e$((1+1))nd\n", "e2nd"),
            ("sh -c 'echo again-$((1+1)); exec sleep 1000'\n", "again-2"),
            ("\x03", "^C"),
            ("exit 9\n", "exit"),
        ];
        for (number, (input, wanted)) in steps.into_iter().enumerate() {
            fixture.client.write("p", &number.to_string(), input).await.unwrap();
            fixture.client.wait_output("p", wanted).await;
        }
        assert_eq!(fixture.client.finish("p").await.exit_code, 9);
    })
    .await;
}

#[tokio::test]
async fn signals_reach_the_handler_of_the_program() {
    as_each_user(async |fixture| {
        let named = [("INT", "interrupt"), ("TERM", "terminate"), ("HUP", "hangup"), ("USR1", "usr1"), ("USR2", "usr2"), ("QUIT", "quit")];
        for tty in [false, true] {
            for (name, word) in named {
                let id = fixture.next_id();
                let script = format!("trap 'echo caught {name}; exit 3' {name}; echo ready; while :; do sleep 0.05; done");
                start(fixture, &id, tty, &script).await;
                fixture.client.wait_output(&id, "ready").await;
                fixture.client.signal(&id, word).await;
                let finished = fixture.client.finish(&id).await;
                let said = finished.text() + &finished.pty_text();
                assert!(said.contains(&format!("caught {name}")), "{finished:?}");
                assert_eq!(finished.exit_code, 3);
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_can_be_stopped_and_continued() {
    as_each_user(async |fixture| {
        start(fixture, "p", false, "echo ready; read line; echo got $line").await;
        fixture.client.wait_output("p", "ready").await;
        fixture.client.signal("p", "stop").await;
        fixture.client.write("p", "w", "it\n").await.unwrap();
        fixture.client.signal("p", "continue").await;
        assert_eq!(fixture.client.finish("p").await.text(), "got it\n");
    })
    .await;
}

#[tokio::test]
async fn a_terminal_can_be_resized() {
    as_each_user(async |fixture| {
        start(
            fixture,
            "p",
            true,
            "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done",
        )
        .await;
        fixture.client.wait_output("p", "ready").await;
        let size = json!({"processId": "p", "rows": 33, "cols": 77});
        fixture.client.call("process/resize", size).await.expect("there is a terminal");
        let finished = fixture.client.finish("p").await;
        assert!(finished.pty_text().contains("33 77"), "{finished:?}");
    })
    .await;
}
