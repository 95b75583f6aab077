//! `run --spool`, `logs` and the Rust client.

use exec_server::ExecServerClient;
use exec_server_testkit::TestExecutor;

use super::numbers;
use crate::commands::cli;

#[tokio::test]
async fn logs_shows_all_output_of_a_detached_command() {
    let server = TestExecutor::start().await;
    let url = server.url();
    let script = "seq 400000; echo bad >&2";
    let run = ["run", "-d", "--spool", "--name", "job", url, "--", "sh", "-c", script];
    assert_eq!(cli(&run).await.code, 0);
    assert_eq!(cli(&["wait", url, "job"]).await.code, 0);
    let logs = cli(&["logs", url, "job"]).await;
    assert_eq!((logs.code, logs.err.as_str()), (0, "bad\n"));
    assert!(logs.out == numbers(400_000), "{} bytes", logs.out.len());
    let tail = cli(&["logs", "--tail", "3", url, "job"]).await;
    // The streams are read separately, so that the last line of either may come last.
    assert_eq!(tail.out.lines().count() + tail.err.lines().count(), 3);
    assert!(tail.out.ends_with("399999\n400000\n"), "{}", tail.out);
    let found = cli(&["logs", "--grep", "^3999.7$", url, "job"]).await;
    let expected: String = (0..10).map(|digit| format!("3999{digit}7\n")).collect();
    assert_eq!((found.code, found.out), (0, expected));
    let found = cli(&["logs", "--grep", "bad", url, "job"]).await;
    assert_eq!((found.out.as_str(), found.err.as_str()), ("", "bad\n"));
    let none = cli(&["logs", "--grep", "no such", url, "job"]).await;
    assert_eq!((none.code, none.out.as_str()), (0, ""));
    let recent = cli(&["logs", "--since", "1h", "--grep", "^400000$", url, "job"]).await;
    assert_eq!(recent.out, "400000\n");
    let wrong = cli(&["logs", "--grep", "(", url, "job"]).await;
    assert!(wrong.code != 0 && wrong.err.contains("regex"), "{} {}", wrong.code, wrong.err);
    let small = ["run", "-d", "--spool=1k", url, "--", "true"];
    assert!(cli(&small).await.err.contains("must be between"), "sizes are checked");
}

#[tokio::test]
async fn a_command_of_the_client_can_have_a_spool() {
    let server = TestExecutor::start().await;
    let client = ExecServerClient::connect(server.url()).await.unwrap();
    let mut command = client.command("seq");
    let output = command.arg("200000").output_retention(65_536).output_spool(None).output().await;
    assert!(output.unwrap().stdout == numbers(200_000).into_bytes());
}
