//! The Rust client against the reference server.

use std::process::Stdio;

use exec_server::{
    ExecServerClient, ExecServerError, Parents, ProcessSignal, Removal, Stdin, TerminalSize,
};
use exec_server_testkit::isolation::isolate;
use exec_server_testkit::reference::{ReferenceClient, ReferenceVersion};
use exec_server_testkit::{DEADLINE, FaultProxy, eventually};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// A reference server; killed when the test ends.
pub struct ReferenceServer {
    _child: Child,
    pub url: String,
    _home: tempfile::TempDir,
}

impl ReferenceServer {
    /// `None`, after a message, where the reference is not available.
    pub async fn start() -> Option<Self> {
        let program = ReferenceClient::find(ReferenceVersion::V0_169)?;
        let home = tempfile::tempdir().unwrap();
        let mut command = Command::new(program.binary());
        isolate(command.as_std_mut());
        let mut child = command
            .args(["exec-server", "--listen", "ws://127.0.0.1:0"])
            .env("CODEX_HOME", home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("the reference can be started");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = timeout(DEADLINE, lines.next_line()).await.expect("it starts in time");
        let url = line.unwrap().expect("the first line is the URL");
        Some(Self { _child: child, url, _home: home })
    }
}

#[tokio::test]
async fn commands_input_terminals_and_signals() {
    let Some(server) = ReferenceServer::start().await else { return };
    let client = ExecServerClient::connect(server.url.as_str()).await.unwrap();
    let mut command = client.command("/bin/sh");
    command.args(["-c", "printf out; printf err >&2; pwd; exit 3"]).current_dir("/usr");
    let output = command.output().await.unwrap();
    assert_eq!((output.stdout_text().as_ref(), output.status.code()), ("out/usr\n", 3));
    assert_eq!(output.stderr_text(), "err");
    let output = client.command("seq").arg("200000").output().await.unwrap();
    assert_eq!(output.stdout_text().lines().count(), 200_000);

    let mut child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    child.session().write(b"hello\n").await.unwrap();
    let mut line = String::new();
    timeout(DEADLINE, stdout.read_line(&mut line)).await.unwrap().unwrap();
    assert_eq!(line, "hello\n");
    let error = child.session().close_stdin().await.unwrap_err();
    assert!(matches!(error, ExecServerError::Unsupported(_)), "{error}");
    child.signal(ProcessSignal::Interrupt).await.unwrap();
    assert_eq!(child.wait().await.unwrap().code(), 130);

    let mut child = client.command("cat").tty(TerminalSize::default()).spawn().await.unwrap();
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(b"typed\n\x04").await.unwrap();
    stdin.flush().await.unwrap();
    let mut text = String::new();
    timeout(DEADLINE, child.stdout.take().unwrap().read_to_string(&mut text))
        .await
        .unwrap()
        .unwrap();
    assert!(text.matches("typed").count() >= 2, "{text}");
}

#[tokio::test]
async fn cuts_lose_nothing() {
    let Some(server) = ReferenceServer::start().await else { return };
    let proxy = FaultProxy::to(&server.url).await;
    let client = ExecServerClient::connect(proxy.url()).await.unwrap();
    let mut child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    for number in 0..60 {
        if number % 3 == 1 {
            proxy.cut();
        }
        stdin.write_all(format!("line {number}\n").as_bytes()).await.unwrap();
        let mut line = String::new();
        timeout(DEADLINE, stdout.read_line(&mut line)).await.unwrap().unwrap();
        assert_eq!(line, format!("line {number}\n"));
    }
    child.kill().await.unwrap();
    assert_eq!(child.try_wait().unwrap().code(), 137);
}

#[tokio::test]
async fn missed_output_is_read_in_pages_to_the_end() {
    let Some(server) = ReferenceServer::start().await else { return };
    let proxy = FaultProxy::to(&server.url).await;
    let client = ExecServerClient::connect(proxy.url()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (go, done) = (folder.path().join("go"), folder.path().join("done"));
    let script = format!(
        "echo ready; until [ -e {} ]; do sleep 0.01; done; seq 100000; : > {}; exit 4",
        go.display(),
        done.display()
    );
    let mut child = client.command("sh").args(["-c", &script]).spawn().await.unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    timeout(DEADLINE, stdout.read_line(&mut line)).await.unwrap().unwrap();
    proxy.unplug();
    proxy.wait_for_refused(1).await;
    std::fs::write(&go, "").unwrap();
    eventually("the process has written everything", || done.exists()).await;
    proxy.plug_in();
    let mut rest = String::new();
    timeout(DEADLINE, stdout.read_to_string(&mut rest)).await.unwrap().unwrap();
    let expected: String = (1..=100_000).map(|number| format!("{number}\n")).collect();
    assert!(rest == expected, "{} of {} bytes", rest.len(), expected.len());
    assert_eq!(child.wait().await.unwrap().code(), 4);
}

#[tokio::test]
async fn files() {
    let Some(server) = ReferenceServer::start().await else { return };
    let client = ExecServerClient::connect(server.url.as_str()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let fs = client.fs();
    fs.create_directory(at("a/b"), Parents::Create).await.unwrap();
    fs.write_file(at("a/b/c"), "hello").await.unwrap();
    assert_eq!(fs.read_file(at("a/b/c")).await.unwrap(), b"hello");
    assert_eq!(fs.metadata(at("a/b/c")).await.unwrap().size, 5);
    fs.copy(at("a"), at("copy")).await.unwrap();
    assert_eq!(fs.read_directory(at("copy")).await.unwrap().len(), 1);
    std::fs::write(at("large"), vec![9; 3_500_000]).unwrap();
    let mut back = Vec::new();
    fs.read_file_stream(at("large")).await.unwrap().read_to_end(&mut back).await.unwrap();
    assert_eq!(back, vec![9; 3_500_000]);
    fs.remove(at("copy"), Removal::Tree).await.unwrap();
    assert!(!fs.exists(at("copy")).await.unwrap());
    let error = fs.rename(at("a"), at("b")).await.unwrap_err();
    assert!(matches!(error, ExecServerError::Unsupported(_)), "{error}");
}
