//! The temporary directory of a demo and the servers in it; both end with the demo.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::cli::Failure;

/// A server starts within milliseconds, also on a loaded machine.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// Servers end their processes first.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Where a demo happens.
pub struct Stage {
    directory: PathBuf,
    program: PathBuf,
    /// Servers that end with the demo; `None` for those that were killed.
    servers: RefCell<Vec<Option<Child>>>,
}

impl Stage {
    /// Makes the directory.
    pub fn set() -> Result<Self, Failure> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::local("could not find the path of this program", error))?;
        let directory =
            std::env::temp_dir().join(format!("exec-server-demo-{}", std::process::id()));
        let failed =
            |error| Failure::local(format!("could not make {}", directory.display()), error);
        make_private(&directory).map_err(failed)?;
        for name in ["home", "state"] {
            make_private(&directory.join(name)).map_err(failed)?;
        }
        Ok(Self { directory, program, servers: RefCell::default() })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf, Failure> {
        let path = self.path(name);
        std::fs::write(&path, text).map_err(|error| {
            Failure::local(format!("could not write {}", path.display()), error)
        })?;
        Ok(path)
    }

    /// This program, without the settings of its user.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().to_ascii_uppercase();
            let is_setting = text.starts_with("EXEC_SERVER_") || text.starts_with("CODEX_");
            let is_proxy = text.ends_with("_PROXY");
            if is_setting || is_proxy || text.starts_with("XDG_") || text == "RUST_LOG" {
                command.env_remove(&name);
            }
        }
        command
            .args(words)
            .env("HOME", self.path("home"))
            .env("XDG_STATE_HOME", self.path("state"))
            .env("XDG_CONFIG_HOME", self.path("home"))
            .env("EXEC_SERVER_CONFIG", "")
            .env("RUST_LOG", "warn")
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Starts a server and returns the URL that it prints.
    pub async fn serve(&self, words: &[&str]) -> Result<(String, usize), Failure> {
        let mut command = self.command(words);
        command.stdout(Stdio::piped()).stderr(self.log()?);
        let mut child = command.spawn().map_err(cannot_start)?;
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut lines = BufReader::new(stdout).lines();
        let first = timeout(STARTS_WITHIN, lines.next_line()).await;
        let url = first.ok().and_then(Result::ok).flatten();
        let url = url.ok_or_else(|| self.broken("a server of the demo did not start"))?;
        Ok((url, self.keep(child)))
    }

    /// Starts a server that prints nothing.
    pub fn start(&self, mut command: Command) -> Result<usize, Failure> {
        command.stdout(Stdio::null()).stderr(self.log()?);
        let child = command.spawn().map_err(cannot_start)?;
        Ok(self.keep(child))
    }

    /// Kills a server with SIGKILL and waits for its end.
    pub async fn kill(&self, server: usize) -> Result<u32, Failure> {
        let child = self.servers.borrow_mut()[server].take();
        let mut child = child.expect("a server is killed once");
        let pid = child.id().unwrap_or_default();
        child.kill().await.map_err(|error| Failure::local("could not kill a server", error))?;
        Ok(pid)
    }

    /// The pid of a server.
    pub fn pid(&self, server: usize) -> u32 {
        self.servers.borrow()[server].as_ref().and_then(Child::id).unwrap_or_default()
    }

    /// Ends all servers and removes the directory.
    pub async fn strike(&self) {
        let servers: Vec<Child> = self.servers.borrow_mut().drain(..).flatten().collect();
        servers.iter().for_each(terminate);
        for mut server in servers {
            if timeout(ENDS_WITHIN, server.wait()).await.is_err() {
                let _ = server.kill().await;
            }
        }
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            eprintln!("exec-server: could not remove {}: {error}", self.directory.display());
        }
    }

    /// A failure of the demo itself, with the end of the log of its servers.
    pub fn broken(&self, what: &str) -> Failure {
        let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        let last: Vec<&str> = lines.into_iter().rev().collect();
        Failure::Usage(format!("{what}; the log of its servers ends with:\n{}", last.join("\n")))
    }

    fn keep(&self, child: Child) -> usize {
        let mut servers = self.servers.borrow_mut();
        servers.push(Some(child));
        servers.len() - 1
    }

    fn log(&self) -> Result<std::fs::File, Failure> {
        let opened = std::fs::OpenOptions::new().create(true).append(true).open(self.path("log"));
        opened.map_err(|error| Failure::local("could not make the log of the demo", error))
    }
}

fn cannot_start(error: io::Error) -> Failure {
    Failure::local("could not start this program once more", error)
}

fn terminate(child: &Child) {
    #[cfg(unix)]
    if let Some(pid) = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed()))
    {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    #[cfg(not(unix))]
    let _ = child;
}

fn make_private(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}
