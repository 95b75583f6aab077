//! Servers that see accounts of their own: `ann` with two more groups, and a home directory.

use std::os::unix::fs::lchown;
use std::path::{Path, PathBuf};

use exec_server_testkit::TestExecutor;
use exec_server_testkit::executor::ExecutorBuilder;
use tempfile::TempDir;

use crate::files::host::{is_root, set_mode, skip};

/// The user id and the group id of `ann`.
pub const ANN: u32 = 54321;

/// Account files, and a directory that every user can enter.
pub struct Accounts {
    root: TempDir,
}

impl Accounts {
    /// None if this machine cannot show account files to one process alone.
    pub fn new() -> Option<Self> {
        let mut probe = std::process::Command::new("unshare");
        let works = probe.args(["-m", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
        if !is_root() || !works.is_ok_and(|output| output.status.success()) {
            skip("accounts of a test need root and mounts");
            return None;
        }
        let root = tempfile::Builder::new().prefix("exec-server-users-").tempdir().unwrap();
        set_mode(root.path(), 0o755);
        let accounts = Self { root };
        let home = accounts.home();
        std::fs::create_dir(&home).unwrap();
        accounts.give(&home);
        set_mode(&home, 0o700);
        let users = format!(
            "root:x:0:0:root:/root:/bin/bash\nann:x:{ANN}:{ANN}:Ann:{}:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
            home.display()
        );
        let groups = format!("root:x:0:\nann:x:{ANN}:\nred:x:54400:ann\nblue:x:54500:bob,ann\n");
        std::fs::write(accounts.path("passwd"), users).unwrap();
        std::fs::write(accounts.path("group"), groups).unwrap();
        Some(accounts)
    }

    /// A path beside the home directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The home directory of `ann`, which no other user may enter.
    pub fn home(&self) -> PathBuf {
        self.path("ann")
    }

    /// Makes `ann` the owner.
    pub fn give(&self, path: &Path) {
        lchown(path, Some(ANN), Some(ANN)).unwrap();
    }

    /// A directory of root with this mode.
    pub fn make_dir(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir(&path).unwrap();
        set_mode(&path, mode);
        path
    }

    /// A server of root that sees the accounts.
    pub fn server(&self) -> ExecutorBuilder {
        self.server_through("")
    }

    /// The same, started by the words of `through`, such as `setpriv …`.
    pub fn server_through(&self, through: &str) -> ExecutorBuilder {
        let bind = |name: &str| format!("mount --bind {} /etc/{name}\n", self.path(name).display());
        let setup = bind("passwd") + &bind("group");
        let script = format!(
            "exec unshare -m /bin/sh -ec '{setup}exec {through} \"$0\" \"$@\"' \"$0\" \"$@\""
        );
        TestExecutor::builder().after(&script).args(&["--allow-other-users"])
    }
}
