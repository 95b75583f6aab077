//! Shell snapshots: login shells whose profile is evaluated once.

use std::path::Path;

use exec_server_testkit::{Fifo, ProcessMarker, TestClient, TestExecutor};
use serde_json::{Value, json};
use tempfile::TempDir;

#[tokio::test]
async fn a_profile_runs_once_per_scope() {
    let Some(home) = Home::with_profile(
        "echo ran >>\"$HOME/count\"; echo noise; greet() { echo \"hello $1\"; }; export COLOUR=blue",
    ) else {
        return;
    };
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let script = "greet \"$1\"; echo $COLOUR";
    for (number, scope) in ["one", "one", "two", "one", "two"].into_iter().enumerate() {
        let finished = home.run(&mut client, &number.to_string(), scope, script, json!({})).await;
        assert_eq!(finished.text(), "hello world\nblue\n", "{finished:?}");
        assert_eq!(finished.exit_code, 0);
    }
    assert_eq!(home.read("count"), "ran\nran\n");
    // Variables of the request override those of the profile.
    let finished = home.run(&mut client, "env", "one", script, json!({"COLOUR": "red"})).await;
    assert_eq!(finished.text(), "hello world\nred\n");
    // The command finds no more files open than without a snapshot.
    let finished = home.run(&mut client, "fds", "one", "ls /proc/self/fd", json!({})).await;
    assert_eq!(finished.text(), "0\n1\n2\n3\n");
    // Another session has snapshots of its own.
    let mut other = server.client().await;
    home.run(&mut other, "p", "one", script, json!({})).await;
    assert_eq!(home.read("count"), "ran\nran\nran\n");
}

#[tokio::test]
async fn starts_at_the_same_time_share_one_run_of_the_profile() {
    let Some(home) = Home::with_profile("echo ran >>\"$HOME/count\"; greet() { echo hello; }")
    else {
        return;
    };
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let mut sent = Vec::new();
    for number in 0..8 {
        let params = home.params(&number.to_string(), "scope", "greet", json!({}));
        sent.push(client.send("process/start", params).await);
    }
    for (number, id) in sent.into_iter().enumerate() {
        client.reply(id).await.unwrap();
        assert_eq!(client.finish(&number.to_string()).await.text(), "hello\n");
    }
    assert_eq!(home.read("count"), "ran\n");
}

#[tokio::test]
async fn a_profile_that_cannot_be_captured_runs_with_every_command() {
    // The first run of this one ends its shell.
    let Some(home) = Home::with_profile(
        "echo ran >>\"$HOME/count\"; [ $(wc -l <\"$HOME/count\") -gt 1 ] || exit 1; greet() { echo hello; }",
    ) else {
        return;
    };
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for id in ["a", "b"] {
        let finished = home.run(&mut client, id, "scope", "greet", json!({})).await;
        assert_eq!((finished.text().as_str(), finished.exit_code), ("hello\n", 0), "{finished:?}");
    }
    assert_eq!(home.read("count"), "ran\nran\nran\n");
}

#[tokio::test]
async fn a_start_that_waits_for_a_profile_can_be_terminated() {
    let mut gate = Fifo::new();
    let mut up = Fifo::new();
    let profile = format!("echo up >{}; read _ <{}", up.path(), gate.path());
    let Some(home) = Home::with_profile(&profile) else {
        return;
    };
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let process_count = ProcessMarker::new();
    let env = process_count.params()["env"].take();
    let params = home.params("p", "scope", "echo never", env);
    let start = client.send("process/start", params).await;
    assert_eq!(up.line().await, "up");
    assert!(client.terminate("p", None).await);
    // The profile still waits at its gate when the reply arrives.
    process_count.counts(1).await;
    gate.open().await;
    let error = client.reply(start).await.unwrap_err();
    assert_eq!(error["message"], "process p start was cancelled");
    assert_eq!(error["code"], -32600);
    process_count.gone().await;
}

#[tokio::test]
async fn a_snapshot_only_speaks_about_the_login_commands_of_its_shell() {
    let Some(home) = Home::with_profile("echo ran >>\"$HOME/count\"") else {
        return;
    };
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    for (id, argv) in [("flags", ["/bin/bash", "-c", "true"]), ("shell", ["/bin/sh", "-c", "true"])]
    {
        let mut params = home.params(id, "scope", "true", json!({}));
        params["argv"] = json!(argv);
        client.call("process/start", params).await.unwrap();
        assert_eq!(client.finish(id).await.exit_code, 0);
    }
    assert!(!home.folder.path().join("count").exists());
    let scope = "shell snapshot scope must be non-empty and at most 256 bytes";
    let long = "x".repeat(257);
    for (scope_id, name, message) in [
        ("", "bash", scope),
        (long.as_str(), "bash", scope),
        ("s", "fish", "shell snapshots are unsupported for shell `fish`"),
    ] {
        let shell = json!({"name": name, "path": "/bin/bash"});
        let more = json!({"shellSnapshot": {"scopeId": scope_id, "shell": shell}});
        let error = client.start("p", &["/bin/true"], more).await.unwrap_err();
        assert_eq!((&error["code"], &error["message"]), (&json!(-32602), &json!(message)));
    }
}

/// A home directory with a profile that the test controls.
struct Home {
    folder: TempDir,
}

impl Home {
    /// `None`, with a message, where bash is missing.
    fn with_profile(profile: &str) -> Option<Self> {
        if !Path::new("/bin/bash").exists() {
            eprintln!("skipped, no /bin/bash");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(".bash_profile"), profile).unwrap();
        Some(Self { folder })
    }

    fn params(&self, id: &str, scope: &str, script: &str, env: Value) -> Value {
        let argv = ["/bin/bash", "-lc", script, "bash", "world"];
        let shell = json!({"name": "bash", "path": "/bin/bash"});
        let more = json!({"shellSnapshot": {"scopeId": scope, "shell": shell}});
        let mut params = exec_server_testkit::client::start_params(id, &argv, more);
        params["env"]["HOME"] = json!(self.folder.path().to_str().unwrap());
        params["env"].as_object_mut().unwrap().extend(env.as_object().unwrap().clone());
        params
    }

    async fn run(
        &self,
        client: &mut TestClient,
        id: &str,
        scope: &str,
        script: &str,
        env: Value,
    ) -> exec_server_testkit::Finished {
        client.call("process/start", self.params(id, scope, script, env)).await.unwrap();
        client.finish(id).await
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join(name)).unwrap()
    }
}
