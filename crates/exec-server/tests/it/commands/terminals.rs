//! `run -t` and `shell` on a real terminal.

use exec_server_testkit::executor::binary;
use exec_server_testkit::{Terminal, TestExecutor};

/// A shell on a terminal that runs our program as a child, so that its settings can be looked at afterwards.
async fn around(script: &str, server: &TestExecutor) -> Terminal {
    let program = binary();
    let env = [
        ("HOME", "/nonexistent"),
        ("PROGRAM", program.to_str().unwrap()),
        ("EXEC_SERVER_URL", server.url()),
        ("PS1", ""),
    ];
    Terminal::start(&["/bin/sh", "-c", script], &env).await
}

#[tokio::test]
async fn a_remote_terminal_has_our_size_and_our_keys() {
    let server = TestExecutor::start().await;
    let mut terminal = around("exec \"$PROGRAM\" run -t -- sh", &server).await;
    terminal.type_keys("stty size; tty; echo TERM=$TERM\n").await;
    terminal.expect("24 80").await;
    terminal.expect("/dev/pts/").await;
    terminal.expect("TERM=xterm").await;
    terminal.resize(33, 101).await;
    terminal
        .type_keys("while [ \"$(stty size)\" != '33 101' ]; do sleep 0.05; done; echo resi''zed\n")
        .await;
    terminal.expect("resized").await;
    // Ctrl-C and Ctrl-Z are sent to the remote process.
    terminal.type_keys("sh -c 'echo star\"\"ted; exec sleep 1000'\n").await;
    terminal.expect("started").await;
    terminal.type_keys("\x03").await;
    terminal.type_keys("echo after $?\n").await;
    terminal.expect("after 130").await;
    terminal.type_keys("exit 42\n").await;
    let (code, _) = terminal.finish().await;
    assert_eq!(code, 42);
}

#[tokio::test]
async fn the_terminal_is_given_back_as_it_was() {
    let server = TestExecutor::start().await;
    for (what, script, code) in [
        ("an exit", "exec sh -c 'exit 3'", 3),
        ("a death", "kill -KILL $$", 137),
        ("a program that is not there", "exec /no/such/program", 127),
    ] {
        let script = format!(
            "before=$(stty -g); \"$PROGRAM\" run -t -- sh -c '{}'; code=$?; \
             [ \"$before\" = \"$(stty -g)\" ] && echo the same; exit $code",
            script.replace('\'', "'\\''")
        );
        let mut terminal = around(&script, &server).await;
        terminal.expect("the same").await;
        assert_eq!(terminal.finish().await.0, code, "{what}");
    }
}

#[tokio::test]
async fn a_signal_from_outside_gives_the_terminal_back() {
    let server = TestExecutor::start().await;
    for (signal, code) in [("TERM", 143), ("INT", 130), ("HUP", 129), ("QUIT", 131)] {
        let script = format!(
            "before=$(stty -g); (while [ \"$(stty -g < /dev/tty)\" = \"$before\" ]; do sleep 0.05; done; \
             pkill -{signal} -P $$ -f 'run -t') & \
             \"$PROGRAM\" run -t -- cat; code=$?; \
             [ \"$before\" = \"$(stty -g)\" ] && echo the same; exit $code"
        );
        let mut terminal = around(&script, &server).await;
        terminal.expect("the same").await;
        assert_eq!(terminal.finish().await.0, code, "{signal}");
    }
}

#[tokio::test]
async fn a_killed_server_restores_the_terminal_with_a_message() {
    let mut server = TestExecutor::start().await;
    let script = "before=$(stty -g); \"$PROGRAM\" run -t -- sh -c 'echo ready; exec cat'; code=$?; \
                  [ \"$before\" = \"$(stty -g)\" ] && echo the same; exit $code";
    let mut terminal = around(script, &server).await;
    terminal.expect("ready").await;
    server.signal(exec_server_testkit::executor::Signal::TERM);
    server.wait().await;
    terminal.expect("the same").await;
    assert_ne!(terminal.finish().await.0, 0);
}

#[tokio::test]
async fn a_shell_is_a_login_shell_at_home() {
    let server = TestExecutor::start().await;
    let mut terminal = around("exec \"$PROGRAM\" shell", &server).await;
    terminal.type_keys("[ \"$PWD\" = \"$(cd; pwd)\" ] && echo at ho''me; exit 7\n").await;
    terminal.expect("at home").await;
    assert_eq!(terminal.finish().await.0, 7);
}

#[tokio::test]
async fn a_script_that_is_piped_in_gets_no_terminal() {
    let server = TestExecutor::start().await;
    let ran = super::cli_with(&["shell", server.url()], b"tty; echo $((6 * 7)); exit 4\n").await;
    assert_eq!(ran.code, 4);
    assert_eq!(ran.out, "not a tty\n42\n");
}
