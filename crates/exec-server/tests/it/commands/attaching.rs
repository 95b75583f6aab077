//! Detached processes: `run -d`, `ps`, `logs`, `attach`, `kill`.

use exec_server_testkit::{Terminal, TestExecutor};
use serde_json::Value;

use super::{cli, cli_with, ran};

#[tokio::test]
async fn a_detached_command_is_found_read_and_ended() {
    // The usual linger would end it at once.
    let server = TestExecutor::start_with(&["--session-linger", "0"]).await;
    let script = "echo one; echo two >&2; echo three; exec sleep 1000";
    let id = detached(&server, &["--name", "job"], script).await;
    assert_eq!(id, "job");
    wait_for_log(&server, &id, "three").await;
    let ps = cli(&["ps", "-o", "json", server.url()]).await;
    let ps: Value = serde_json::from_str(&ps.out).unwrap();
    assert_eq!(ps[0]["processId"], "job");
    assert_eq!((&ps[0]["attached"], &ps[0]["exited"]), (&Value::Bool(false), &Value::Bool(false)));
    let table = cli(&["ps", server.url()]).await.out;
    assert!(
        table.contains("job") && table.contains("running") && table.contains("detached"),
        "{table}"
    );
    assert_eq!(cli(&["ps", "-q", server.url()]).await, ran(0, "job\n", ""));

    let logs = cli(&["logs", server.url(), "jo"]).await;
    assert_eq!(logs, ran(0, "one\nthree\n", "two\n"));
    let counting = detached(&server, &[], "seq 1 1000; echo end; exec sleep 1000").await;
    wait_for_log(&server, &counting, "end").await;
    let tail = cli(&["logs", "--tail", "3", server.url(), &counting]).await;
    assert_eq!(tail, ran(0, "999\n1000\nend\n", ""));
    assert_eq!(cli(&["kill", server.url(), &counting]).await, ran(0, "", ""));

    assert_eq!(cli(&["kill", server.url(), &id]).await, ran(0, "", ""));
    // Its output and exit are retained.
    let follow = cli(&["logs", "-f", server.url(), &id]).await;
    assert_eq!(follow, ran(0, "one\nthree\n", "two\n"));
    assert_eq!(cli(&["ps", "-q", server.url()]).await.out, "");
    let all = cli(&["ps", "-a", server.url()]).await.out;
    assert!(all.contains("SIGTERM"), "{all}");
    let again = cli(&["kill", server.url(), &id]).await;
    assert_eq!((again.code, again.err.as_str()), (1, "exec-server: `job` has ended already\n"));
}

#[tokio::test]
async fn following_the_log_ends_with_the_process() {
    let server = TestExecutor::start().await;
    let mut fifo = exec_server_testkit::Fifo::new();
    let script = format!("echo first; read _ < {}; echo last", fifo.path());
    let id = detached(&server, &[], &script).await;
    let follow = super::command(&["logs", "-f", server.url(), &id]).spawn().unwrap();
    wait_for_log(&server, &id, "first").await;
    fifo.open().await;
    assert_eq!(super::finish(follow).await, ran(0, "first\nlast\n", ""));
}

#[tokio::test]
async fn a_signal_is_sent_by_its_name() {
    let server = TestExecutor::start().await;
    let script = "trap 'echo usr1; exit 5' USR1; echo ready; while :; do sleep 0.01; done";
    let id = detached(&server, &[], script).await;
    wait_for_log(&server, &id, "ready").await;
    assert_eq!(cli(&["kill", "-s", "SIGUSR1", server.url(), &id]).await, ran(0, "", ""));
    wait_for_log(&server, &id, "usr1").await;
    let attach = cli(&["attach", "-n", server.url(), &id]).await;
    // The shell reports its child, which got the signal as well.
    assert_eq!((attach.code, attach.out.as_str()), (5, "ready\nusr1\n"));
}

#[tokio::test]
async fn attaching_replays_and_passes_input_on() {
    let server = TestExecutor::start().await;
    let run =
        ["run", "-d", "--name", "cat", server.url(), "--", "sh", "-c", "echo before; sleep 1000"];
    assert_eq!(cli(&run).await, ran(0, "cat\n", ""));
    wait_for_log(&server, "cat", "before").await;
    let mut attached = super::command(&["attach", "-n", server.url(), "cat"]).spawn().unwrap();
    let mut lines = {
        use tokio::io::AsyncBufReadExt;
        tokio::io::BufReader::new(attached.stdout.take().unwrap()).lines()
    };
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "before");
    // The process is attached, so the next attach is refused unless it takes over.
    let refused = cli(&["attach", "-n", server.url(), "cat"]).await;
    assert_eq!(refused.code, 125);
    assert!(refused.err.contains("--take-over"), "{}", refused.err);
    let taker =
        super::command(&["attach", "-n", "--take-over", server.url(), "cat"]).spawn().unwrap();
    let kill = async {
        // The take-over may not be complete yet; the process exits for both clients.
        cli(&["kill", server.url(), "cat"]).await
    };
    assert_eq!(kill.await.code, 0);
    assert_eq!(super::finish(taker).await, ran(143, "before\n", ""));
    drop(attached);
}

#[tokio::test]
async fn missing_processes_are_reported() {
    let server = TestExecutor::start().await;
    for command in ["logs", "kill"] {
        let missing = cli(&[command, server.url(), "nobody"]).await;
        assert_eq!(missing.code, 1);
        assert!(
            missing.err.contains("no process `nobody`") && missing.err.contains("ps -a"),
            "{}",
            missing.err
        );
    }
    assert_eq!(cli_with(&["attach", server.url(), "nobody"], b"").await.code, 125);
}

#[tokio::test]
async fn a_terminal_is_detached_and_attached_again() {
    let server = TestExecutor::start().await;
    let program = exec_server_testkit::executor::binary();
    let program = program.to_str().unwrap();
    let run = [program, "run", "-it", "--name", "shell", server.url(), "--", "sh"];
    let mut first = Terminal::start(&run, &[("HOME", "/nonexistent")]).await;
    first.type_keys("PS1=; X=remembered; echo rea''dy\n").await;
    first.expect("ready").await;
    first.type_keys("\x10\x11").await;
    first.expect("exec-server: detached; `exec-server attach").await;
    let (code, _) = first.finish().await;
    assert_eq!(code, 0);

    let attach = [program, "attach", server.url(), "shell"];
    let mut second = Terminal::start(&attach, &[("HOME", "/nonexistent")]).await;
    second.expect("ready").await;
    second.type_keys("echo still $X; exit 6\n").await;
    second.expect("still remembered").await;
    let (code, _) = second.finish().await;
    assert_eq!(code, 6);
}

/// Starts a detached script and returns its id.
pub async fn detached(server: &TestExecutor, more: &[&str], script: &str) -> String {
    let run = [&["run", "-d"], more, &[server.url(), "--", "sh", "-c", script]].concat();
    let ran = cli(&run).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    ran.out.trim_end().to_owned()
}

/// Waits until a process has written the text; `logs` itself does not wait.
pub async fn wait_for_log(server: &TestExecutor, id: &str, text: &str) {
    let said = async {
        loop {
            let logs = cli(&["logs", server.url(), id]).await;
            if logs.out.contains(text) {
                return;
            }
        }
    };
    tokio::time::timeout(exec_server_testkit::DEADLINE, said).await.expect("it is said in time");
}
