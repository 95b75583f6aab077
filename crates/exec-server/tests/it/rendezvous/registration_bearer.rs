//! `--registration-bearer-stdin`: one registry token on the first line of stdin.

use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::TestRendezvous;
use exec_server_testkit::executor::{ExecutorBuilder, Signal, TestExecutor};
use exec_server_testkit::remote::{join, join_with, wait_for_presence};

const OPTION: &str = "--registration-bearer-stdin";

fn forward(builder: ExecutorBuilder) -> ExecutorBuilder {
    builder.args(&["forward", "--connect", "ws://127.0.0.1:1"])
}

#[tokio::test]
async fn the_first_line_is_the_token_and_the_rest_is_ignored() {
    for (end, is_forward) in [("\n", false), ("\r\n", false), ("\n", true)] {
        let rendezvous = TestRendezvous::start().await;
        let state = tempfile::tempdir().unwrap();
        let token = rendezvous.token(TokenRole::Executor, "env").await;
        let builder = TestExecutor::builder();
        let builder = if is_forward { forward(builder) } else { builder };
        // The token variable is ignored.
        let builder = join_with(builder, rendezvous.url(), state.path(), "xs_exec_wrong");
        let builder = builder.env("CODEX_API_KEY", "wrong").args(&[OPTION]);
        let mut executor = builder.spawn();
        executor.write_stdin(format!("{token}{end}something else\n").as_bytes()).await;
        // Closing stdin does not stop the executor.
        executor.close_stdin();
        wait_for_presence(rendezvous.url(), rendezvous.admin_token(), true).await;
        executor.signal(Signal::TERM);
        assert_eq!(executor.wait().await.code(), Some(0));
    }
}

#[tokio::test]
async fn the_end_of_stdin_ends_it_if_that_is_the_sign() {
    for is_forward in [false, true] {
        let rendezvous = TestRendezvous::start().await;
        let state = tempfile::tempdir().unwrap();
        let token = rendezvous.token(TokenRole::Executor, "env").await;
        let builder = TestExecutor::builder();
        let builder = if is_forward { forward(builder) } else { builder };
        let builder = join_with(builder, rendezvous.url(), state.path(), "");
        let mut executor = builder.args(&[OPTION, "--exit-on-stdin-close"]).spawn();
        executor.write_stdin(format!("{token}\n").as_bytes()).await;
        wait_for_presence(rendezvous.url(), rendezvous.admin_token(), true).await;
        executor.close_stdin();
        assert_eq!(executor.wait().await.code(), Some(0));
    }
}

#[tokio::test]
async fn an_invalid_token_is_rejected_before_anything_is_sent() {
    let no_line = "expected a newline-terminated registration bearer of at most 16 KiB";
    let invalid = "invalid registration bearer";
    let long = "x".repeat(16 * 1024 + 1) + "\n";
    let state = tempfile::tempdir().unwrap();
    // No registry listens there: an executor that sent something would wait for it.
    let refused = async |url: &str, line: &str| {
        let mut executor = join(url, state.path(), "").args(&[OPTION]).piped_stderr().spawn();
        executor.write_stdin(line.as_bytes()).await;
        executor.close_stdin();
        let said = executor.next_stderr_line().await.expect("it says why");
        assert_eq!(executor.wait().await.code(), Some(1), "{said}");
        assert_eq!(executor.next_stderr_line().await, None);
        said
    };
    for (line, answers) in [
        ("", no_line),
        ("token", no_line),
        (long.as_str(), no_line),
        ("\n", invalid),
        (" token\n", invalid),
        ("token \n", invalid),
        ("to\u{7f}ken\n", invalid),
        ("tökén\n", invalid),
    ] {
        let said = refused("http://127.0.0.1:1", line).await;
        assert!(said.contains(answers), "{line:?}: {said}");
    }
    let said = refused("http://192.0.2.1:7780", "token\n").await;
    assert!(said.contains("without TLS"), "{said}");
    let both = join("http://127.0.0.1:1", state.path(), "");
    let (code, _, stderr) = both.args(&[OPTION, "--executor-credential-stdin"]).run().await;
    assert!(code == 2 && stderr.contains("cannot be used with"), "{stderr}");
}

#[tokio::test]
async fn a_pipe_of_credentials_that_ends_too_early_is_a_failure() {
    let state = tempfile::tempdir().unwrap();
    let builder = join("http://127.0.0.1:1", state.path(), "");
    let mut executor = builder.args(&["--executor-credential-stdin"]).piped_stderr().spawn();
    executor.close_stdin();
    let mut said = String::new();
    while let Some(line) = executor.next_stderr_line().await {
        said += &line;
    }
    assert_eq!(executor.wait().await.code(), Some(1), "{said}");
    assert!(said.contains("stdin ended before this executor was registered"), "{said}");
}
