//! Host fixtures of the file tests: other users, mounts, special files, directory listings.

use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;
use std::process::{Command, Stdio};

use exec_server_protocol::base64;
use exec_server_testkit::executor::{ExecutorBuilder, binary};
use exec_server_testkit::fs_fixture::uri;
use exec_server_testkit::{TestClient, TestExecutor};
use rustix::fs::{CWD, FileType, IFlags, Mode, ioctl_getflags, ioctl_setflags, mknodat};
use serde_json::{Value, json};

/// The names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("the directory is readable");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.expect("it stays readable").file_name().to_string_lossy().into_owned()
    };
    let mut names: Vec<_> = entries.map(name).collect();
    names.sort();
    names
}

/// The permission bits of a file.
pub fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).expect("it is there").permissions().mode() & 0o7777
}

/// Sets the permission bits of a file.
pub fn set_mode(path: &Path, mode: u32) {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, permissions).expect("the file is ours");
}

/// Makes a named pipe.
pub fn make_fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("it can be made");
}

/// Uid of an unprivileged user.
pub const NOBODY: u32 = 65534;

/// Whether these tests run as root, which ignores permissions.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Skips a test that needs root, with a message.
pub fn needs_root() -> bool {
    if !is_root() {
        skip("only root can give files away");
    }
    is_root()
}

/// A server that is not root, if there can be one, and that serves the tests although they are of another user.
pub fn as_nobody(mut builder: ExecutorBuilder) -> Option<ExecutorBuilder> {
    if is_root() {
        builder.command().arg("--allow-other-users");
    }
    for_the_nobody_user_alone(builder)
}

/// A server that is not root, if there can be one.
pub fn for_the_nobody_user_alone(mut builder: ExecutorBuilder) -> Option<ExecutorBuilder> {
    if !is_root() {
        return Some(builder);
    }
    let program = binary();
    let is_open = |path: &Path| path.metadata().is_ok_and(|found| found.mode() & 0o005 == 0o005);
    if !program.ancestors().all(is_open) {
        skip("only root can run the server here");
        return None;
    }
    let state = program.with_file_name("state-of-nobody");
    std::fs::create_dir_all(&state).expect("it is beside the program");
    lchown(&state, Some(NOBODY), Some(NOBODY)).expect("root may give things away");
    builder.command().uid(NOBODY).gid(NOBODY).env("XDG_STATE_HOME", state);
    Some(builder)
}

/// A server that is not root, if there can be one.
pub async fn server_as_nobody() -> Option<TestExecutor> {
    Some(as_nobody(TestExecutor::builder())?.start().await)
}

/// A server that sees mounts of its own, which `setup` makes, if there can be one.
pub async fn server_with_mounts(setup: &str) -> Option<TestExecutor> {
    if !succeeds("unshare -m mount -t tmpfs none /mnt") {
        skip("nothing can be mounted here");
        return None;
    }
    let preparation =
        format!("exec unshare -m /bin/sh -ec '{setup}\nexec \"$0\" \"$@\"' \"$0\" \"$@\"");
    // Without /proc the server cannot identify clients.
    let builder = TestExecutor::builder().after(&preparation).args(&["--allow-other-users"]);
    Some(builder.start().await)
}

/// Whether a script of the shell succeeds.
pub fn succeeds(script: &str) -> bool {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Prints why a test is skipped, even if output is captured.
pub fn skip(why: &str) {
    writeln!(std::io::stderr(), "skipped: {why}").expect("stderr is open");
}

/// A file or directory with an inode flag that binds even root; cleared on drop.
pub struct Flagged {
    file: std::fs::File,
    before: IFlags,
}

impl Flagged {
    /// Sets the flag, if that is possible here.
    pub fn new(path: &Path, flag: IFlags) -> Option<Self> {
        let file = std::fs::File::open(path).expect("it is there");
        let before = ioctl_getflags(&file).ok();
        let set = before.filter(|before| ioctl_setflags(&file, *before | flag).is_ok());
        if set.is_none() {
            skip("files cannot be flagged here");
        }
        set.map(|before| Self { file, before })
    }
}

impl Drop for Flagged {
    fn drop(&mut self) {
        // If even this fails, the directory of the test cannot be removed.
        let _ = ioctl_setflags(&self.file, self.before);
    }
}

/// Write methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// By `fs/writeFile`.
    Whole,
    /// By `fs/open`, `fs/writeBlock` and `fs/close`.
    Blocks,
}

impl How {
    pub const ALL: [Self; 2] = [Self::Whole, Self::Blocks];

    /// Gives a file new content.
    pub async fn write(
        self,
        client: &mut TestClient,
        path: &Path,
        content: &[u8],
    ) -> Result<Value, Value> {
        if self == Self::Blocks {
            let opened = self.open(client, path).await;
            client.reply(opened).await?;
        }
        let mut answer = Ok(json!({}));
        for id in self.send(client, path, content).await {
            let next = client.reply(id).await;
            answer = answer.and(next);
        }
        answer
    }

    /// Opens a handle, if one is needed; its id is the file name.
    pub async fn open(self, client: &mut TestClient, path: &Path) -> i64 {
        let params = json!({"handleId": handle(path), "path": uri(path), "mode": "replace"});
        client.send("fs/open", params).await
    }

    /// Sends all other requests at once; the last reply is about the whole write.
    pub async fn send(self, client: &mut TestClient, path: &Path, content: &[u8]) -> Vec<i64> {
        const BLOCK_BYTES: usize = 300_000;
        if self == Self::Whole {
            let params = json!({"path": uri(path), "dataBase64": base64::encode(content)});
            return vec![client.send("fs/writeFile", params).await];
        }
        let mut asked = Vec::new();
        for (number, block) in content.chunks(BLOCK_BYTES).enumerate() {
            let (offset, chunk) = (number * BLOCK_BYTES, base64::encode(block));
            let params = json!({"handleId": handle(path), "offset": offset, "chunk": chunk});
            asked.push(client.send("fs/writeBlock", params).await);
        }
        asked.push(client.send("fs/close", json!({"handleId": handle(path)})).await);
        asked
    }
}

fn handle(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("tests use plain names")
}

/// Asserts that the reply reports a replaced file.
#[track_caller]
pub fn replaces(answer: Result<Value, Value>) {
    assert_eq!(answer, Ok(json!({})));
}

/// Asserts that the reply reports an in-place write.
#[track_caller]
pub fn keeps(answer: Result<Value, Value>) {
    assert_eq!(answer, Ok(json!({"inPlace": true})));
}
