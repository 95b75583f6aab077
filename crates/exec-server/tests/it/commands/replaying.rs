//! Terminal queries in output that is shown again: the terminal must not answer them.

use exec_server_testkit::executor::binary;
use exec_server_testkit::{FaultProxy, Fifo, Terminal, TestExecutor};

use super::cli;

const HOME: (&str, &str) = ("HOME", "/nonexistent");

#[tokio::test]
async fn queries_are_removed_from_replayed_output_only() {
    let server = TestExecutor::start().await;
    let program = binary();
    let program = program.to_str().unwrap();
    let run = [program, "run", "-it", "--name", "shell", server.url(), "--", "sh"];
    let mut first = Terminal::start(&run, &[HOME]).await;
    let ask = r"printf 'a\033[6nb\033[>cc\033]11;?\007d\033P+q544e\033\\e\033[31mf\n'";
    first.type_keys(&format!("{ask}\n")).await;
    let seen = first.expect("\x1b[31mf").await;
    assert!(seen.contains("a\x1b[6nb\x1b[>cc\x1b]11;?\x07d\x1bP+q544e\x1b\\e"), "{seen:?}");
    first.type_keys("\x10\x11").await;
    first.expect("detached").await;
    assert_eq!(first.finish().await.0, 0);

    let attach = [program, "attach", server.url(), "shell"];
    let mut second = Terminal::start(&attach, &[HOME]).await;
    second.expect("abcde\x1b[31mf").await;
    second.type_keys(r"printf 'no''w\033[6n\n'").await;
    second.type_keys("\n").await;
    second.expect("now\x1b[6n").await;
    second.type_keys("exit 3\n").await;
    let (code, shown) = second.finish().await;
    assert_eq!(code, 3);
    assert_eq!(shown.matches("\x1b[6n").count(), 1, "{shown:?}");
}

#[tokio::test]
async fn modes_with_reports_are_set_after_what_attach_shows_again_if_they_are_still_on() {
    let server = TestExecutor::start().await;
    let program = binary();
    let program = program.to_str().unwrap();
    let script = r"stty -echo
        printf 'a\033[?1004hb\033[?1004;2048hc\033[?2048ld\033[?2048;25he\033[?1004lf\n'; read _; exit 4";
    let run = [program, "run", "-it", "--name", "job", server.url(), "--", "sh", "-c", script];
    let mut first = Terminal::start(&run, &[HOME]).await;
    first.expect("\x1b[?1004hb\x1b[?1004;2048hc\x1b[?2048ld\x1b[?2048;25he\x1b[?1004lf").await;
    first.type_keys("\x10\x11").await;
    first.expect("detached").await;
    assert_eq!(first.finish().await.0, 0);

    let attach = [program, "attach", server.url(), "job"];
    let mut second = Terminal::start(&attach, &[HOME]).await;
    second.expect("abc\x1b[?2048ld\x1b[?25he\x1b[?1004lf\r\n\x1b[?2048h").await;
    second.type_keys("\n").await;
    let (code, shown) = second.finish().await;
    assert_eq!(code, 4);
    assert!(!shown.contains("\x1b[?1004h"), "{shown:?}");
    // A log passes no reports to a process.
    let logs = [program, "logs", "-f", server.url(), "job"];
    let (_, shown) = Terminal::start(&logs, &[HOME]).await.finish().await;
    assert!(shown.contains("abc\x1b[?2048ld\x1b[?25he\x1b[?1004lf"), "{shown:?}");
    assert!(!shown.contains("2048h"), "{shown:?}");
}

#[tokio::test]
async fn queries_written_while_disconnected_are_removed() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let (mut go, mut said) = (Fifo::new(), Fifo::new());
    let script = format!(
        "stty -echo; echo ready; read _ < {}; printf 'late\\033[6nquery\\n'; echo > {}; \
         read _; printf 'now\\033[6nquery\\n'; read _",
        go.path(),
        said.path()
    );
    let program = binary();
    let run = [program.to_str().unwrap(), "run", "-it", proxy.url(), "--", "sh", "-c", &script];
    let mut terminal = Terminal::start(&run, &[HOME]).await;
    terminal.expect("ready").await;
    proxy.unplug();
    terminal.expect("lost the connection").await;
    go.open().await;
    said.line().await;
    proxy.plug_in();
    terminal.expect("latequery").await;
    terminal.type_keys("\n").await;
    terminal.expect("now\x1b[6nquery").await;
    terminal.type_keys("\n").await;
    assert_eq!(terminal.finish().await.0, 0);
}

#[tokio::test]
async fn queries_are_left_out_of_a_log_on_a_terminal_only() {
    let server = TestExecutor::start().await;
    let script = "printf 'a\\033[6nb\\n'; exit 0";
    let run = ["run", "-d", "-t", "--name", "asks", server.url(), "--", "sh", "-c", script];
    assert_eq!(cli(&run).await.code, 0);
    let logs = cli(&["logs", "-f", server.url(), "asks"]).await;
    assert_eq!(logs.out, "a\x1b[6nb\r\n");
    let program = binary();
    let logs = [program.to_str().unwrap(), "logs", "-f", server.url(), "asks"];
    let terminal = Terminal::start(&logs, &[HOME]).await;
    let (code, shown) = terminal.finish().await;
    assert_eq!((code, shown.trim_end()), (0, "ab"));
}
