//! A small file system in its own mount namespace, which a test can fill.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::process::{Child, Command};

use crate::eventually;

/// A file system of 400 KiB; it goes with the test.
pub struct SmallDisk {
    holder: Child,
    mount_point: tempfile::TempDir,
}

impl SmallDisk {
    /// A new file system; none where this user cannot mount.
    pub async fn mount() -> Option<Self> {
        let mount_point = tempfile::tempdir().expect("there is room for a directory");
        let script = format!(
            "mount -t tmpfs -o size=400k none '{0}' && mkdir -m 700 '{0}/data' && exec sleep 1000",
            mount_point.path().display()
        );
        let holder = Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .ok()?;
        let mut disk = Self { holder, mount_point };
        let mut is_over = false;
        eventually("the disk is there, or cannot be", || {
            is_over = disk.holder.try_wait().is_ok_and(|status| status.is_some());
            is_over || disk.seen().join("data").exists()
        })
        .await;
        if is_over {
            eprintln!("skipped, a file system of its own takes root and a mount namespace");
        }
        (!is_over).then_some(disk)
    }

    /// An empty directory on it, for programs that run inside.
    pub fn data(&self) -> PathBuf {
        self.mount_point.path().join("data")
    }

    /// Path of the file system from this process.
    pub fn seen(&self) -> PathBuf {
        let inside = self.mount_point.path().strip_prefix("/").expect("it is absolute");
        Path::new("/proc").join(self.pid()).join("root").join(inside)
    }

    /// The command line that starts the program after it where the file system is.
    pub fn entrance(&self) -> [String; 5] {
        ["nsenter", "-m", "-t", &self.pid(), "--"].map(str::to_owned)
    }

    /// Leaves no room.
    pub fn fill(&self) {
        let mut file = fs::File::create(self.seen().join("fill")).expect("it can be written");
        while file.write_all(&[0; 512]).is_ok() {}
    }

    /// Makes room again.
    pub fn clear(&self) {
        fs::remove_file(self.seen().join("fill")).expect("it was filled");
    }

    fn pid(&self) -> String {
        self.holder.id().expect("it runs").to_string()
    }
}
