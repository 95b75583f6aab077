//! A server embedded in another program, which is this test.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use exec_server::sandbox_command::NamedPolicy;
use exec_server::{
    DEFAULT_LISTEN_URL, ExecServerClient, ExecServerRuntimePaths, Listener, Server, ServerConfig,
};
use exec_server_testkit::executor::binary;
use exec_server_testkit::process_count::{children, warm_sandboxes};
use exec_server_testkit::{DEADLINE, eventually};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A server in this process, with a client.
struct Embedded {
    server: Arc<Server>,
    serving: JoinHandle<()>,
    client: ExecServerClient,
    work: PathBuf,
    _directory: tempfile::TempDir,
    /// Launchers are children of this process, so the tests run one at a time.
    _turn: MutexGuard<'static, ()>,
}

impl Embedded {
    async fn start(change: impl FnOnce(&mut ServerConfig)) -> Self {
        static TURN: Mutex<()> = Mutex::const_new(());
        let turn = TURN.lock().await;
        let directory = tempfile::tempdir().unwrap();
        let mut config = ServerConfig::new(DEFAULT_LISTEN_URL.parse().unwrap());
        config.runtime_paths = ExecServerRuntimePaths::new(binary()).unwrap();
        config.state_dir = Some(directory.path().join("state"));
        change(&mut config);
        let server = Server::new(config).unwrap();
        let listener = Listener::bind(&server).await.unwrap();
        let url = listener.url().unwrap();
        let serving = tokio::spawn({
            let server = server.clone();
            async move { listener.serve(&server).await }
        });
        let client = ExecServerClient::connect(url).await.unwrap();
        let work = directory.path().join("work");
        std::fs::create_dir(&work).unwrap();
        Self { server, serving, client, work, _directory: directory, _turn: turn }
    }

    /// Output of a script under a read-only policy, or the start error.
    async fn run(&self, script: &str) -> Result<String, String> {
        let policy = NamedPolicy {
            writes_workspace: false,
            has_network: false,
            writable: Vec::new(),
            cwd: self.work.clone(),
        };
        let sandbox = serde_json::from_value(policy.to_sandbox()).unwrap();
        let mut command = self.client.command("sh");
        command.args(["-c", script]);
        command.current_dir(&self.work).sandbox(&sandbox);
        let output = timeout(DEADLINE, command.output()).await.expect("it ends");
        output.map(|output| output.stdout_text().into_owned()).map_err(|error| error.to_string())
    }

    async fn end(self) {
        self.client.close().await;
        self.server.shut_down().await;
        self.serving.abort();
    }
}

#[tokio::test]
async fn a_program_that_embeds_a_server_names_the_one_that_starts_sandboxes() {
    let embedded = Embedded::start(|_| ()).await;
    let said = embedded.run("echo inside; (: > file) 2>/dev/null || echo refused").await;
    assert_eq!(said.unwrap(), "inside\nrefused\n");
    embedded.end().await;
}

/// Warm sandboxes of this process: launchers and init processes.
fn waiting() -> BTreeSet<i32> {
    let with_first = |pid: i32| [vec![pid], children(pid.cast_unsigned())].concat();
    warm_sandboxes(std::process::id()).into_iter().flat_map(with_first).collect()
}

fn send(pids: &BTreeSet<i32>, signal: Signal) {
    for pid in pids {
        let _ = kill_process(Pid::from_raw(*pid).unwrap(), signal);
    }
}

#[tokio::test]
async fn a_sandbox_that_never_gets_ready_is_given_up_with_the_reason() {
    const TIME: Duration = Duration::from_secs(3);
    let embedded = Embedded::start(|config| config.timings.sandbox_set_up = TIME).await;
    let before = waiting();
    assert_eq!(embedded.run("echo first").await.unwrap(), "first\n");
    let mut hanging = BTreeSet::new();
    let error = loop {
        eventually("two sandboxes are prepared", || {
            hanging = waiting().difference(&before).copied().collect();
            hanging.len() == 4
        })
        .await;
        // They block, as on a file system that does not answer.
        send(&hanging, Signal::STOP);
        match embedded.run("echo never").await {
            Err(error) => break error,
            // The sandboxes were replaced, because the mount table of this machine has changed.
            Ok(_) => send(&hanging, Signal::KILL),
        }
    };
    assert!(error.contains("gave up after 3s"), "{error}");
    eventually("what hung has ended", || {
        hanging.iter().any(|pid| !PathBuf::from(format!("/proc/{pid}")).exists())
    })
    .await;
    assert_eq!(embedded.run("echo next").await.unwrap(), "next\n");
    send(&hanging, Signal::KILL);
    embedded.end().await;
}
