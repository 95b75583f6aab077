//! Processes with a terminal.

use exec_server_testkit::client::chunk;
use exec_server_testkit::{ProcessMarker, TestClient, TestExecutor, eventually};
use serde_json::{Value, json};

#[tokio::test]
async fn a_terminal_has_a_size_from_the_start() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    assert_eq!(stty_size(&mut client, "default", json!(null)).await, "24 80\r\n");
    let size = json!({"rows": 40, "cols": 123});
    assert_eq!(stty_size(&mut client, "chosen", size).await, "40 123\r\n");
}

async fn stty_size(client: &mut TestClient, id: &str, size: Value) -> String {
    client.run(id, &["stty", "size"], json!({"tty": true, "size": size})).await.pty_text()
}

#[tokio::test]
async fn a_resize_is_seen_and_announced() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let script = "trap 'stty size; exit 0' WINCH; sleep 1000 & echo ready; wait";
    client.start("p", &["/bin/sh", "-c", script], json!({"tty": true})).await.unwrap();
    client.wait_output("p", "ready\r\n").await;
    let params = json!({"processId": "p", "rows": 50, "cols": 132});
    assert_eq!(client.call("process/resize", params).await.unwrap(), json!({}));
    assert_eq!(client.finish("p").await.pty_text(), "50 132\r\n");
}

#[tokio::test]
async fn a_resize_takes_a_size_as_a_start_does() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let script = "trap 'stty size; exit 0' WINCH; sleep 1000 & echo ready; wait";
    client.start("p", &["/bin/sh", "-c", script], json!({"tty": true})).await.unwrap();
    client.wait_output("p", "ready\r\n").await;
    for (wrong, text) in [
        (json!({"processId": "p"}), "missing field `rows`"),
        (json!({"processId": "p", "rows": 1}), "missing field `cols`"),
        (json!({"processId": "p", "size": {"rows": 1}}), "missing field `cols`"),
        (
            json!({"processId": "p", "rows": 1, "cols": 1, "size": {"rows": 1, "cols": 1}}),
            "the size is either `size` or `rows` and `cols`, not both",
        ),
    ] {
        let error = client.call("process/resize", wrong).await.unwrap_err();
        assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!(text)));
    }
    let params = json!({"processId": "p", "size": {"rows": 50, "cols": 132}});
    assert_eq!(client.call("process/resize", params).await.unwrap(), json!({}));
    assert_eq!(client.finish("p").await.pty_text(), "50 132\r\n");
}

#[tokio::test]
async fn only_a_terminal_can_be_resized() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.start("p", &["/bin/cat"], json!({"pipeStdin": true})).await.unwrap();
    let params = |id| json!({"processId": id, "rows": 1, "cols": 1});
    let error = client.call("process/resize", params("p")).await.unwrap_err();
    assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32600), &json!("no_terminal")));
    let error = client.call("process/resize", params("gone")).await.unwrap_err();
    assert_eq!(error["message"], "unknown process id gone");
    let params = json!({"processId": "p", "rows": 1});
    assert_eq!(client.call("process/resize", params).await.unwrap_err()["code"], -32602);
}

#[tokio::test]
async fn a_terminal_echoes_and_gives_lines_to_its_reader() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    start(&mut client, "p", "cat").await;
    client.write("p", "1", "hello\n").await.unwrap();
    assert_eq!(client.wait_output("p", "hello\r\nhello\r\n").await, "hello\r\nhello\r\n");
    // A line that is not ended yet is only echoed.
    client.write("p", "2", "half").await.unwrap();
    assert_eq!(client.wait_output("p", "half").await, "half");
    client.write("p", "3", "\n").await.unwrap();
    assert_eq!(client.wait_output("p", "half\r\n").await, "\r\nhalf\r\n");
    client.terminate("p", None).await;
    client.finish("p").await;
}

#[tokio::test]
async fn control_c_interrupts_and_control_d_ends_the_input() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    start(&mut client, "c", "echo ready; exec cat").await;
    client.wait_output("c", "ready\r\n").await;
    client.write("c", "1", "\u{3}").await.unwrap();
    let finished = client.finish("c").await;
    assert_eq!((finished.exit_code, &finished.exited["signal"]), (130, &json!("SIGINT")));
    assert_eq!(finished.exited["reason"], "signaled");

    for (id, close) in [("d", false), ("close", true)] {
        start(&mut client, id, "cat; echo end of input; exit 4").await;
        client.write(id, "1", "line\n").await.unwrap();
        client.wait_output(id, "line\r\nline\r\n").await;
        let reply = if close {
            client.call("process/closeStdin", json!({"processId": id})).await.unwrap()
        } else {
            client.write(id, "2", "\u{4}").await.unwrap()
        };
        assert_eq!(reply, json!({"status": "accepted"}));
        let finished = client.finish(id).await;
        assert!(finished.pty_text().ends_with("end of input\r\n"), "{finished:?}");
        assert_eq!(finished.exit_code, 4);
    }
}

#[tokio::test]
async fn the_end_of_terminal_input_follows_the_written_data() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    start(&mut client, "p", "stty -echo; echo ready; wc -l").await;
    client.wait_output("p", "ready\r\n").await;
    let lines = "line\n".repeat(20_000);
    client.write("p", "1", &lines).await.unwrap();
    client.call("process/closeStdin", json!({"processId": "p"})).await.unwrap();
    assert_eq!(client.finish("p").await.pty_text().trim(), "20000");
}

#[tokio::test]
async fn an_interactive_shell_has_job_control() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let process_count = ProcessMarker::new();
    let mut more = process_count.params();
    more["tty"] = json!(true);
    more["env"]["PS1"] = json!("prompt> ");
    client.start("p", &["/bin/sh", "-i"], more).await.unwrap();
    client.wait_output("p", "prompt> ").await;
    let job = "sh -c 'while read line; do echo got:$line; done'\nping\n";
    client.write("p", "1", job).await.unwrap();
    client.wait_output("p", "got:ping\r\n").await;
    client.write("p", "2", "\u{1a}").await.unwrap();
    client.wait_output("p", "prompt> ").await;
    client.write("p", "3", "jobs; echo do''ne\n").await.unwrap();
    let jobs = client.wait_output("p", "done\r\n").await;
    assert!(jobs.contains("Stopped"), "{jobs:?}");
    // In the foreground again, the job reads input and gets the interrupt, and the shell continues.
    client.write("p", "4", "fg\npong\n").await.unwrap();
    client.wait_output("p", "got:pong\r\n").await;
    client.write("p", "5", "\u{3}").await.unwrap();
    client.wait_output("p", "prompt> ").await;
    client.write("p", "6", "echo status=$?\n").await.unwrap();
    client.wait_output("p", "status=130\r\n").await;
    // A signal reaches the foreground job although it has its own process group.
    client.write("p", "7", job).await.unwrap();
    client.wait_output("p", "got:ping\r\n").await;
    client.signal("p", "interrupt").await;
    client.wait_output("p", "prompt> ").await;
    client.write("p", "8", "echo status=$?; exit 9\n").await.unwrap();
    let finished = client.finish("p").await;
    assert!(finished.pty_text().contains("status=130\r\n"), "{finished:?}");
    assert_eq!(finished.exit_code, 9);
    process_count.gone().await;
}

#[tokio::test]
async fn an_exit_by_signal_is_reported_as_without_a_terminal() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for (name, code) in [("HUP", 129), ("KILL", 137), ("TERM", 143)] {
        let finished = tty(&mut client, name, &format!("kill -{name} $$")).await;
        assert_eq!(finished.exit_code, code);
        assert_eq!(finished.exited["signal"], format!("SIG{name}"));
        assert_eq!(finished.exited["reason"], "signaled");
    }
}

#[tokio::test]
async fn the_child_leads_its_session_in_front_of_its_controlling_terminal() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let name = client.run("tty", &["tty"], json!({"tty": true})).await.pty_text();
    assert!(name.starts_with("/dev/pts/"), "{name:?}");
    let script = "test -t 0 && test -t 1 && test -t 2 && echo all three >/dev/tty";
    assert_eq!(tty(&mut client, "fds", script).await.pty_text(), "all three\r\n");
    let argv = ["/bin/cat", "/proc/self/stat"];
    let stat = client.run("stat", &argv, json!({"tty": true})).await.pty_text();
    let (start, rest) = stat.rsplit_once(')').unwrap();
    let pid = start.split(' ').next().unwrap();
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let (group, session, terminal, front) = (fields[2], fields[3], fields[4], fields[5]);
    assert_eq!((group, session, front), (pid, pid, pid));
    assert_ne!(terminal, "0");
}

#[tokio::test]
async fn a_terminal_is_in_cooked_mode_without_term() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let modes = tty(&mut client, "stty", "stty -a").await.pty_text();
    for mode in ["icanon", "echo", "isig", "icrnl", "opost", "onlcr"] {
        assert!(modes.split_ascii_whitespace().any(|word| word == mode), "{mode}: {modes}");
    }
    let env = client.run("env", &["/usr/bin/env"], json!({"tty": true, "env": {}})).await;
    assert_eq!(env.pty_text(), "");
}

#[tokio::test]
async fn a_terminal_does_not_change_where_and_as_what_a_program_runs() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for (cwd, kind) in
        [("file:///no/such", "cwd_not_found"), ("file:///etc/passwd", "cwd_unusable")]
    {
        let more = json!({"tty": true, "cwd": cwd, "env": {"HOME": "/"}});
        let error = client.start("p", &["/bin/pwd"], more).await.unwrap_err();
        assert_eq!((&error["code"], &error["data"]["kind"]), (&json!(-32603), &json!(kind)));
    }
    let more = json!({"tty": true, "arg0": "another name"});
    let finished = client.run("p", &["/bin/cat", "/proc/self/cmdline"], more).await;
    assert_eq!(finished.pty_text(), "another name\0/proc/self/cmdline\0");
}

#[tokio::test]
async fn all_output_arrives_on_one_stream() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let finished = tty(&mut client, "p", "echo out; echo err >&2; seq 1 100000; exit 3").await;
    let expected: String = (1..=100_000).map(|number| format!("{number}\r\n")).collect();
    assert!(finished.pty_text() == format!("out\r\nerr\r\n{expected}"), "the output has holes");
    assert_eq!((finished.stdout.len(), finished.stderr.len()), (0, 0));
    assert_eq!(finished.exit_code, 3);
    assert_eq!(finished.order.last().unwrap(), "closed");
}

#[tokio::test]
async fn the_last_words_before_the_exit_are_never_lost() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for round in 0..50 {
        let finished = tty(&mut client, &format!("p{round}"), "seq 1 1000").await;
        assert!(finished.pty_text().ends_with("999\r\n1000\r\n"), "round {round}: {finished:?}");
    }
}

#[tokio::test]
async fn a_background_process_keeps_the_terminal_open_until_it_is_ended() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let process_count = ProcessMarker::new();
    let mut more = process_count.params();
    more["tty"] = json!(true);
    let script = "trap '' HUP; sleep 1000 & echo started; exit 6";
    client.start("p", &["/bin/sh", "-c", script], more).await.unwrap();
    // Terminal output arrives asynchronously, so the exit may be reported first.
    let (mut text, mut exit_code) = (Vec::new(), Value::Null);
    while text != b"started\r\n" || exit_code.is_null() {
        let event = client.process_event("p").await;
        match event["method"].as_str().unwrap() {
            "process/output" => text.extend(chunk(&event["params"])),
            _ => exit_code = event["params"]["exitCode"].clone(),
        }
    }
    assert_eq!(exit_code, 6);
    assert_eq!(client.read("p", 0, 0).await["closed"], false);
    eventually("the process in the background runs", || process_count.living().len() == 1).await;
    assert!(!client.terminate("p", None).await);
    assert_eq!(client.finish("p").await.order, ["closed"]);
    process_count.gone().await;
}

#[tokio::test]
async fn a_terminal_whose_child_does_not_read_blocks_its_own_writes_only() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    start(&mut client, "p", "stty raw -echo; echo ready; exec sleep 1000").await;
    client.wait_output("p", "ready").await;
    let mut writes = Vec::new();
    for number in 0..8 {
        let chunk = exec_server_protocol::base64::encode(&vec![b'x'; 256 * 1024]);
        let params = json!({"processId": "p", "writeId": number.to_string(), "chunk": chunk});
        writes.push(client.send("process/write", params).await);
    }
    client.call("environment/status", json!({})).await.unwrap();
    client.call("process/resize", json!({"processId": "p", "rows": 9, "cols": 9})).await.unwrap();
    assert!(client.terminate("p", None).await);
    assert_eq!(client.finish("p").await.exit_code, 137);
    let last = *writes.last().unwrap();
    assert_eq!(client.reply(last).await.unwrap(), json!({"status": "stdinClosed"}));
}

async fn start(client: &mut TestClient, id: &str, script: &str) {
    client.start(id, &["/bin/sh", "-c", script], json!({"tty": true})).await.unwrap();
}

async fn tty(client: &mut TestClient, id: &str, script: &str) -> exec_server_testkit::Finished {
    start(client, id, script).await;
    client.finish(id).await
}
