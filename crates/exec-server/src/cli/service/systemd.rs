//! Runs the programs of systemd.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use super::files::Layout;
use super::units::Scope;
use crate::cli::Failure;

/// A systemd that can be asked to do something.
#[derive(Debug)]
pub struct Systemd {
    scope: Scope,
    /// Changes units below this directory instead of those of this machine.
    root: Option<PathBuf>,
}

/// Whether a unit runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    Stopped,
    /// Starts, stops, or waits for the next try after a failure.
    Changing,
    Running,
}

impl Systemd {
    /// The systemd whose units a command changes: below a directory, or the running one if this user may.
    pub fn to_change(layout: &Layout, root: Option<&Path>) -> Result<Self, Failure> {
        let systemd = match root {
            Some(root) => Self::below(root),
            None => Self::running(layout.scope)?,
        };
        if layout.scope == Scope::System && !layout.is_image() && !is_root() {
            let text = "a service of the system needs root: run it with sudo, or use --user for a service of this user";
            return Err(Failure::Usage(text.to_owned()));
        }
        Ok(systemd)
    }

    /// The systemd that runs this machine, or this user's session.
    pub fn running(scope: Scope) -> Result<Self, Failure> {
        match scope {
            Scope::System if !Path::new("/run/systemd/system").is_dir() => Err(Failure::Usage(
                "systemd does not run this machine (there is no /run/systemd/system; is it a container?): start \
                 `exec-server` by what does, or print the units with `service install --dry-run`"
                    .to_owned(),
            )),
            Scope::User if !user_runtime().is_some_and(|dir| dir.join("systemd").is_dir()) => Err(Failure::Usage(
                "systemd does not run for this user (there is no $XDG_RUNTIME_DIR/systemd): log in with a session of \
                 its own instead of su or sudo, or leave out --user and run as root"
                    .to_owned(),
            )),
            _ => Ok(Self { scope, root: None }),
        }
    }

    /// One that is only named, to print commands.
    pub fn assumed(scope: Scope) -> Self {
        Self { scope, root: None }
    }

    /// The units below a directory, such as an image.
    pub fn below(root: &Path) -> Self {
        Self { scope: Scope::System, root: Some(root.to_owned()) }
    }

    /// The command line of `systemctl`.
    pub fn control_words(&self, words: &[&str]) -> Vec<String> {
        let mut all = vec!["systemctl".to_owned()];
        if self.scope == Scope::User {
            all.push("--user".to_owned());
        }
        if let Some(root) = &self.root {
            all.push(format!("--root={}", root.display()));
        }
        all.extend(words.iter().map(|word| (*word).to_owned()));
        all
    }

    /// Runs `systemctl`, which prints its own errors.
    pub fn control(&self, words: &[&str]) -> Result<(), Failure> {
        let line = self.control_words(words);
        let status = run(&line)?;
        if status.success() {
            return Ok(());
        }
        Err(Failure::Usage(format!("`{}` failed ({status})", line.join(" "))))
    }

    /// Runs `systemctl` for its output; returns its exit code.
    pub fn show(&self, words: &[&str], units: &[String]) -> Result<u8, Failure> {
        let mut line = self.control_words(words);
        line.extend(units.iter().cloned());
        Ok(exit_code(run(&line)?))
    }

    /// Whether a unit runs; no if that is not known.
    pub fn activity(&self, unit: &str) -> Activity {
        let line = self.control_words(&["is-active", unit]);
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).stdin(Stdio::null()).stderr(Stdio::null());
        let output = self.root.is_none().then(|| command.output());
        let word = output.and_then(Result::ok).map(|output| output.stdout).unwrap_or_default();
        match word.trim_ascii() {
            b"active" | b"reloading" => Activity::Running,
            b"activating" | b"deactivating" => Activity::Changing,
            _ => Activity::Stopped,
        }
    }

    /// Removes units from the list of those that failed; most are not in it, which is no error.
    pub fn forget_failures(&self, units: &[String]) {
        let mut line = self.control_words(&["reset-failed"]);
        line.extend(units.iter().cloned());
        let mut command = Command::new(&line[0]);
        let _ = command.args(&line[1..]).stdin(Stdio::null()).stderr(Stdio::null()).status();
    }

    /// Prints the log of a unit; returns the exit code of `journalctl`.
    pub fn journal(&self, unit: &str, follow: bool, lines: Option<u32>) -> Result<u8, Failure> {
        let mut line = vec!["journalctl".to_owned()];
        if self.scope == Scope::User {
            line.push("--user".to_owned());
        }
        line.push(format!("--unit={unit}"));
        line.extend(follow.then(|| "--follow".to_owned()));
        line.extend(lines.map(|count| format!("--lines={count}")));
        Ok(exit_code(run(&line)?))
    }

    /// Makes the user of the services, if there is none.
    pub fn make_user(&self, line: &str) -> Result<(), Failure> {
        let mut words = vec!["systemd-sysusers".to_owned()];
        words.extend(self.root.iter().map(|root| format!("--root={}", root.display())));
        words.extend(["--inline".to_owned(), line.to_owned()]);
        let status = run(&words)?;
        if status.success() {
            return Ok(());
        }
        Err(Failure::Usage(format!(
            "systemd-sysusers could not make the user of the service ({status})"
        )))
    }
}

/// Encrypts a token so that only the systemd of this machine can read it.
pub fn encrypt(token: &[u8]) -> Result<Vec<u8>, Failure> {
    let mut child = Command::new("systemd-creds")
        .args(["encrypt", "--name=token", "-", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| cannot_run("systemd-creds", error))?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let written = stdin.write_all(token);
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| cannot_run("systemd-creds", error))?;
    if !output.status.success() {
        let text = format!("systemd-creds could not encrypt the token ({})", output.status);
        return Err(Failure::Usage(text));
    }
    written.map_err(|error| Failure::local("could not pass the token to systemd-creds", error))?;
    Ok(output.stdout)
}

/// Whether this process may change the system's units.
pub fn is_root() -> bool {
    #[cfg(unix)]
    return rustix::process::geteuid().is_root();
    #[cfg(not(unix))]
    false
}

fn user_runtime() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

fn run(line: &[String]) -> Result<ExitStatus, Failure> {
    let mut command = Command::new(OsStr::new(&line[0]));
    command.args(&line[1..]);
    command.status().map_err(|error| cannot_run(&line[0], error))
}

fn cannot_run(program: &str, error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::NotFound {
        return Failure::Usage(format!(
            "{program} was not found: it is part of systemd, which this machine does not seem to have"
        ));
    }
    Failure::local(format!("could not run {program}"), error)
}

fn exit_code(status: ExitStatus) -> u8 {
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}
