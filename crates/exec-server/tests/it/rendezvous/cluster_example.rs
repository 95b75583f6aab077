//! The example of docs/cluster.md: `deploy/cluster/up` starts a cluster, and a shell through it survives its parts.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use exec_server_testkit::executor::binary;
use exec_server_testkit::http::request_with_body;
use exec_server_testkit::remote::{join, wait_for_presence};
use exec_server_testkit::{DEADLINE, Terminal};
use serde_json::{Value, json};

/// A cluster that the script has started; it ends with its value.
struct Example {
    place: tempfile::TempDir,
    url: String,
    admin: String,
}

impl Example {
    /// Starts it; none if a program is not installed.
    fn start() -> Option<Self> {
        let place = tempfile::tempdir().unwrap();
        // Above the ports that other tests take, and below those that the kernel gives out; the script says if one of
        // them is in use.
        for attempt in 0..20 {
            let number = (std::process::id() + 7 * attempt) % 220;
            let port = u16::try_from(30_000 + 12 * number).expect("it is below 32,768");
            // Nothing names the program, as in the docs; the checkout's is built by a stub, and not used from PATH.
            let build = StubBuild::new();
            let mut command = script("up", &[place.path()]);
            build.arrange(&mut command);
            let up = command.env("BASE_PORT", port.to_string()).output().unwrap();
            let said = String::from_utf8_lossy(&up.stderr).into_owned();
            if up.status.success() {
                let admin = std::fs::read_to_string(place.path().join("admin-token")).unwrap();
                let (url, admin) = (format!("http://127.0.0.1:{port}"), admin.trim().to_owned());
                build.assert_built(&up);
                assert!(String::from_utf8_lossy(&up.stdout).contains(&url));
                return Some(Self { place, url, admin });
            }
            if said.contains("not installed") {
                // Past the capture of the test harness: a skipped test must be noticed.
                let _ = writeln!(
                    std::io::stderr(),
                    "the test of the cluster example is skipped: {said}"
                );
                return None;
            }
            assert!(said.contains("is in use"), "{said}");
        }
        panic!("no ports are free");
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> Value {
        let authorization = format!("Bearer {}", self.admin);
        let headers = [("Authorization", authorization.as_str())];
        let reply = request_with_body(&self.url, method, path, &headers, body.as_bytes()).await;
        serde_json::from_str(&reply.body).unwrap_or_default()
    }

    async fn token(&self, role: &str) -> String {
        let wanted = json!({"role": role, "environment": "env"}).to_string();
        let made = self.ask("POST", "/admin/tokens", &wanted).await;
        made["secret"].as_str().expect("a token").to_owned()
    }

    /// The node that the executor is attached to.
    async fn home(&self) -> String {
        let asking = async {
            loop {
                let list = self.ask("GET", "/admin/nodes", "").await;
                let nodes = list["nodes"].as_array().cloned().unwrap_or_default();
                let is_home = |it: &&Value| it["executors"] == 1 && it["state"] == "ready";
                if let Some(node) = nodes.iter().find(is_home) {
                    return node["id"].as_str().unwrap().to_owned();
                }
            }
        };
        tokio::time::timeout(DEADLINE, asking).await.expect("the executor is at a node")
    }

    /// Signals a part of the cluster.
    fn signal(&self, part: &str, signal: &str) {
        let pid = std::fs::read_to_string(self.place.path().join(format!("run/{part}.pid")));
        let done = Command::new("kill").args([signal, pid.unwrap().trim()]).status().unwrap();
        assert!(done.success(), "{part} was running");
    }

    /// Starts a part again that has ended.
    async fn restart(&self, part: &str) {
        let (place, part) = (self.place.path().to_owned(), part.to_owned());
        let restarting = tokio::task::spawn_blocking(move || {
            let deadline = std::time::Instant::now() + DEADLINE;
            // A killed part may still be there for a moment.
            while !run(&mut script("up", &[&place, Path::new(&part)])).status.success() {
                assert!(std::time::Instant::now() < deadline, "{part} starts again");
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
        });
        restarting.await.unwrap();
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let down = run(&mut script("down", &[self.place.path()]));
        if !std::thread::panicking() {
            assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
        }
    }
}

/// Tools in front of PATH: a compiler that only copies the program of the tests, and an installed program that fails.
struct StubBuild {
    place: tempfile::TempDir,
}

impl StubBuild {
    fn new() -> Self {
        let stub = Self { place: tempfile::tempdir().unwrap() };
        let (arguments, program) = (stub.arguments(), stub.program());
        let folder = program.parent().unwrap().display();
        let cargo = format!(
            "echo \"$@\" >{}; mkdir -p {folder}; cp {} {folder}/",
            arguments.display(),
            binary().display()
        );
        for (name, script) in [("cargo", cargo.as_str()), ("cc", ""), ("exec-server", "exit 9")] {
            let path = stub.place.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        stub
    }

    fn arguments(&self) -> PathBuf {
        self.place.path().join("arguments")
    }

    fn program(&self) -> PathBuf {
        self.place.path().join("target/release/exec-server")
    }

    fn arrange(&self, command: &mut Command) {
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .env("PATH", format!("{}:{path}", self.place.path().display()))
            .env("CARGO_TARGET_DIR", self.place.path().join("target"));
    }

    fn assert_built(&self, up: &Output) {
        let arguments = fs::read_to_string(self.arguments()).unwrap();
        assert!(arguments.starts_with("build --release --locked "), "{arguments}");
        let said = String::from_utf8_lossy(&up.stderr);
        assert!(said.contains("building") && said.contains("EXEC_SERVER_BIN"), "{said}");
        let next = format!("{} nodes --remote", self.program().display());
        assert!(String::from_utf8_lossy(&up.stdout).contains(&next), "{up:?}");
    }
}

/// A script of the example that installs nothing and gets no settings of the user.
fn script(name: &str, arguments: &[&Path]) -> Command {
    let place = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy/cluster");
    let mut command = Command::new(place.join(name));
    command.args(arguments).env("INSTALL", "no");
    for name in ["EXEC_SERVER_BIN", "EXEC_SERVER_STORE", "BASE_PORT"] {
        command.env_remove(name);
    }
    command
}

fn run(command: &mut Command) -> Output {
    command.output().expect("the script can be started")
}

#[test]
fn a_program_that_is_named_and_missing_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let mut command = script("up", &[place.path()]);
    let up = run(command.env("EXEC_SERVER_BIN", "/nowhere/exec-server"));
    let said = String::from_utf8_lossy(&up.stderr);
    assert!(!up.status.success() && said.contains("no program /nowhere/exec-server"), "{said}");
}

#[tokio::test]
async fn a_shell_through_the_example_survives_the_parts_of_the_cluster() {
    let Some(example) = tokio::task::spawn_blocking(Example::start).await.unwrap() else { return };
    let (executor_state, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (executor, harness) = (example.token("executor").await, example.token("harness").await);
    let _executor = join(&example.url, executor_state.path(), &executor).spawn();
    wait_for_presence(&example.url, &example.admin, true).await;
    let program = binary().display().to_string();
    // The terminal comes from a server of ours, which passes no token on.
    let token = state.path().join("token");
    std::fs::write(&token, &harness).unwrap();
    let environment = [
        ("EXEC_SERVER_REMOTE_URL", example.url.as_str()),
        ("EXEC_SERVER_REMOTE_TOKEN_FILE", token.to_str().unwrap()),
        ("EXEC_SERVER_STATE_DIR", state.path().to_str().unwrap()),
    ];
    let mut shell = Terminal::start(&[&program, "shell", "env:env"], &environment).await;
    shell.expect("for the first time").await;
    shell.type_keys("X=kept; echo $((1000 + 1))\n").await;
    shell.expect("1001").await;
    let mut number = 1;
    let home = example.home().await;
    for part in [home.as_str(), "nats-1", "nats-2", "nats-3", "postgres", "haproxy"] {
        example.signal(part, "-KILL");
        number += 1;
        shell.type_keys(&format!("echo $X $((1000 + {number}))\n")).await;
        // Nothing takes the place of the only balancer.
        if part == "haproxy" {
            example.restart(part).await;
        }
        shell.expect(&format!("kept {}", 1000 + number)).await;
        if part != "haproxy" {
            example.restart(part).await;
        }
    }
    // A node that hangs is cut off by the balancer, and the shell goes on through another.
    let home = example.home().await;
    example.signal(&home, "-STOP");
    shell.type_keys("echo $X hanging $((1000 + 99))\n").await;
    shell.expect("kept hanging 1099").await;
    example.signal(&home, "-CONT");
    shell.type_keys("echo $X back $((1000 + 98))\n").await;
    shell.expect("kept back 1098").await;
    shell.type_keys("exit 5\n").await;
    assert_eq!(shell.finish().await.0, 5);
    tokio::task::spawn_blocking(move || drop(example)).await.unwrap();
}
