//! Fixture of the attack tests: a workspace, a directory outside with canaries, and a server per kind of user.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use exec_server_testkit::executor::ExecutorBuilder;
use exec_server_testkit::{Finished, TestClient, TestExecutor};
use tempfile::TempDir;

use super::*;
use crate::files::host::{NOBODY, as_nobody};

/// A workspace and a directory outside of it. Both belong to the server's user, so only the sandbox protects them.
pub struct SandboxFixture {
    /// The server.
    pub server: TestExecutor,
    /// A client of the server.
    pub client: TestClient,
    root: TempDir,
    user: Option<u32>,
    runs: u32,
    /// Additional variables for processes.
    pub env: BTreeMap<String, String>,
}

/// The users that a server can run as: the tests' user, and as root also an unprivileged one.
pub fn users() -> Vec<Option<u32>> {
    let ordinary = rustix::process::geteuid().is_root().then_some(Some(NOBODY));
    std::iter::once(None).chain(ordinary).collect()
}

/// Runs a test with a server of the tests' user, and as root also with one of an unprivileged user.
pub async fn as_each_user(test: impl AsyncFn(&mut SandboxFixture)) {
    as_each_user_of(TestExecutor::builder, test).await;
}

/// The same with servers from `builder`.
pub async fn as_each_user_of(
    builder: impl Fn() -> ExecutorBuilder,
    test: impl AsyncFn(&mut SandboxFixture),
) {
    let mut own = SandboxFixture::new(builder().start().await, None).await;
    test(&mut own).await;
    drop(own);
    if rustix::process::geteuid().is_root()
        && let Some(builder) = as_nobody(builder())
    {
        test(&mut SandboxFixture::new(builder.start().await, Some(NOBODY)).await).await;
    }
}

impl SandboxFixture {
    /// A fixture for a running server.
    pub async fn new(server: TestExecutor, user: Option<u32>) -> Self {
        let root = tempfile::Builder::new().prefix("exec-server-ground-").tempdir();
        let root = root.expect("a temporary directory can be made");
        let client = server.client().await;
        let fixture = Self { server, client, root, user, runs: 0, env: BTreeMap::new() };
        fixture.give(fixture.root.path());
        fixture.reset();
        fixture
    }

    /// Another server of the same user.
    pub async fn another_server(&self, arguments: &[&str]) -> TestExecutor {
        let builder = TestExecutor::builder().args(arguments);
        let builder = match self.user {
            Some(_) => as_nobody(builder).expect("there is one already"),
            None => builder,
        };
        builder.start().await
    }

    /// Recreates both directories.
    pub fn reset(&self) {
        for dir in [self.work(), self.outside()] {
            // Attacks may leave directories that an ordinary user must make accessible first.
            let open = ["-R", "u+rwX"].map(OsStr::new).into_iter().chain([dir.as_os_str()]);
            let _ = Command::new("chmod").args(open).stderr(Stdio::null()).status();
            let _ = std::fs::remove_dir_all(&dir);
            std::fs::create_dir(&dir).expect("the name is free");
            self.give(&dir);
        }
        self.put(&self.outside().join("file"), "safe\n");
        self.put(&self.outside().join("other"), "other\n");
        self.make_dir(&self.outside().join("dir"));
    }

    /// Whether the server is root.
    pub fn is_root(&self) -> bool {
        self.user.is_none() && rustix::process::geteuid().is_root()
    }

    /// Whether the server's user is the one of the tests.
    pub fn is_own_user(&self) -> bool {
        self.user.is_none()
    }

    /// Parent of both directories.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// The directory that a sandbox may write.
    pub fn work(&self) -> PathBuf {
        self.root().join("work")
    }

    /// The directory that a sandbox must not write.
    pub fn outside(&self) -> PathBuf {
        self.root().join("outside")
    }

    /// Makes a file that belongs to the server's user.
    pub fn put(&self, path: &Path, content: &str) {
        std::fs::write(path, content).expect("the file can be written");
        self.give(path);
    }

    /// Makes directories that belong to the server's user.
    pub fn make_dir(&self, path: &Path) {
        let missing: Vec<_> = path.ancestors().take_while(|dir| !dir.exists()).collect();
        for dir in missing.into_iter().rev() {
            std::fs::create_dir(dir).expect("the directory can be made");
            self.give(dir);
        }
    }

    /// Changes the owner to the server's user.
    pub fn give(&self, path: &Path) {
        if let Some(user) = self.user {
            lchown(path, Some(user), Some(user)).expect("root may give things away");
        }
    }

    /// Writes the workspace, reads everything.
    pub fn workspace(&self, network: &str) -> Value {
        workspace_write(&[&self.work()], network)
    }

    /// Params of a start in the workspace; no `sandbox` is no sandbox.
    pub fn params(&self, sandbox: &Value) -> Value {
        let mut env = json!({
            "PATH": "/usr/bin:/bin", "LC_ALL": "C", "WORK": self.work(), "OUT": self.outside(),
            "ATTEMPT_PROGRAM": attempt::program(),
        });
        for (name, value) in &self.env {
            env[name] = json!(value);
        }
        json!({"sandbox": sandbox, "cwd": uri(&self.work()), "env": env})
    }

    /// A process id that was not used yet.
    pub fn next_id(&mut self) -> String {
        self.runs += 1;
        format!("run-{}", self.runs)
    }

    /// How many processes were started.
    pub fn runs(&self) -> u32 {
        self.runs
    }

    /// Runs a script in the workspace to its end.
    pub async fn run(&mut self, sandbox: &Value, script: &str) -> Finished {
        let (id, params) = (self.next_id(), self.params(sandbox));
        self.client.run(&id, &["/bin/sh", "-c", script], params).await
    }

    /// Runs a script in the workspace with the sandbox off.
    pub async fn run_free(&mut self, script: &str) -> Finished {
        self.run(&Value::Null, script).await
    }

    /// Asserts that the script changes the outside directory only without a sandbox.
    pub async fn cannot_change_outside(&mut self, sandbox: &Value, name: &str, script: &str) {
        self.reset();
        let before = snapshot(&self.outside());
        let free = self.run_free(script).await;
        let after = snapshot(&self.outside());
        assert_ne!(before, after, "{name} changes nothing even when it may: {free:?}");
        self.reset();
        let before = snapshot(&self.outside());
        let held = self.run(sandbox, script).await;
        let after = snapshot(&self.outside());
        assert_eq!(before, after, "{name} escaped: {held:?}");
    }
}

/// All attributes of a tree that an attack could change.
pub fn snapshot(dir: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    add(dir, &mut all);
    all
}

fn add(path: &Path, all: &mut BTreeMap<PathBuf, String>) {
    let stat = path.symlink_metadata().expect("it is there");
    let content = if stat.is_file() { std::fs::read(path).unwrap_or_default() } else { Vec::new() };
    let facts = (stat.mode(), stat.uid(), stat.gid(), stat.ino(), stat.nlink(), stat.mtime());
    let mut names = vec![0; 1024];
    let attributes = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    all.insert(path.to_owned(), format!("{facts:?} {attributes} {content:?}"));
    if stat.is_dir() {
        for entry in path.read_dir().expect("it can be listed").flatten() {
            add(&entry.path(), all);
        }
    }
}
