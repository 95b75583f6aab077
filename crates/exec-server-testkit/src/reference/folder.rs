//! Directories of one run; the client's view of the workspace is empty.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::install::reference_folder;

/// The directory of one run, removed on drop.
#[derive(Debug)]
pub(super) struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Below the target directory, because the client stores no helpers in a home below the temporary directory.
    pub fn create() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = loop {
            let name =
                format!("run-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = reference_folder().join(name);
            match fs::create_dir(&path) {
                Ok(()) => break Self { path },
                // Left by a killed test whose process id is reused.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("could not create `{}`: {error}", path.display()),
            }
        };
        for subfolder in [folder.home(), folder.workspace()] {
            fs::create_dir(subfolder).expect("the run's folder is new and ours");
        }
        folder
    }

    pub fn home(&self) -> PathBuf {
        self.path.join("home")
    }

    pub fn workspace(&self) -> PathBuf {
        self.path.join("workspace")
    }

    /// Writes a file into the workspace and creates its parents.
    pub fn write(&self, name: &str, content: &[u8]) {
        let path = self.workspace().join(name);
        let parent = path.parent().expect("a name was joined");
        fs::create_dir_all(parent).expect("the workspace is ours");
        fs::write(path, content).expect("the workspace is ours");
    }

    /// The program with the workspace as its directory; an empty directory is mounted over it where allowed.
    pub fn command_without_workspace(&self, program: &Path) -> Command {
        let mut command = if can_mount() {
            let mut command = Command::new("unshare");
            let script = r#"mount -t tmpfs none "$PWD" && cd "$PWD" && exec "$0" "$@""#;
            command.args(["-Urm", "sh", "-c", script]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir(self.workspace());
        command
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("could not remove `{}`: {error}", self.path.display());
        }
    }
}

/// Whether this user may create a private mount namespace.
fn can_mount() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let mut command = Command::new("unshare");
        command.args(["-Urm", "mount", "-t", "tmpfs", "none", "/tmp"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let can = command.status().is_ok_and(|status| status.success());
        if !can {
            eprintln!("the reference client sees its workspace, for nothing can be mounted here");
        }
        can
    })
}
