//! An ssh server on loopback with its own keys, for comparison.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::failure::{Failure, Result};
use super::warden::Warden;

const START_TIME: Duration = Duration::from_secs(10);

/// A running ssh server, stopped on drop.
pub struct Ssh<'a> {
    child: Child,
    directory: PathBuf,
    port: u16,
    warden: &'a Warden,
}

/// Whether each command opens a new connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// A new connection.
    New,
    /// A shared connection through a control socket.
    Shared,
}

impl<'a> Ssh<'a> {
    /// Starts a server; the error says why if sshd is missing.
    pub fn start(directory: &Path, warden: &'a Warden) -> Result<Ssh<'a>> {
        let sshd = ["/usr/sbin/sshd", "/usr/local/sbin/sshd"];
        let sshd = sshd.iter().find(|path| Path::new(path).exists());
        let sshd = sshd.ok_or_else(|| Failure::new("there is no sshd on this machine"))?;
        let directory = directory.to_owned();
        fs::create_dir_all(&directory)?;
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
        for key in ["host", "user"] {
            let file = directory.join(key);
            if !file.exists() {
                run(Command::new("ssh-keygen")
                    .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                    .arg(&file))?;
            }
        }
        fs::copy(directory.join("user.pub"), directory.join("authorized"))?;
        // Required by sshd.
        fs::create_dir_all("/run/sshd")?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let text = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {0}/host\nAuthorizedKeysFile {0}/authorized\n\
             PidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n\
             Subsystem sftp internal-sftp\n",
            directory.display()
        );
        fs::write(directory.join("config"), text)?;
        let child = Command::new(sshd)
            .args(["-D", "-e", "-f"])
            .arg(directory.join("config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        warden.watch(child.id());
        let ssh = Ssh { child, directory, port, warden };
        let begun = Instant::now();
        while let Err(error) = run(&mut ssh.command(Link::New, &["true"])) {
            if begun.elapsed() > START_TIME {
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(ssh)
    }

    /// A command on the server.
    pub fn command(&self, link: Link, words: &[&str]) -> Command {
        let mut command = Command::new("ssh");
        command.args(self.options(link)).arg("-p").arg(self.port.to_string());
        command.arg("127.0.0.1").args(words);
        command
    }

    /// Copies a file to the server.
    pub fn scp(&self, from: &Path, to: &Path) -> Command {
        let mut command = Command::new("scp");
        command.arg("-q").args(self.options(Link::New)).arg("-P").arg(self.port.to_string());
        command.arg(from).arg(format!("127.0.0.1:{}", to.display()));
        command
    }

    /// Copies a tree to the server; `None` without rsync.
    pub fn rsync(&self, from: &Path, to: &Path) -> Option<Command> {
        Command::new("rsync").arg("--version").stdout(Stdio::null()).status().ok()?;
        let mut shell = vec!["ssh".to_owned(), "-p".to_owned(), self.port.to_string()];
        shell.extend(self.options(Link::New));
        let mut command = Command::new("rsync");
        command.arg("-r").arg("-e").arg(shell.join(" ")).arg(format!("{}/", from.display()));
        command.arg(format!("127.0.0.1:{}", to.display()));
        Some(command)
    }

    /// Opens the connection for [`Link::Shared`].
    pub fn share(&self) -> Result<()> {
        let mut command = self.command(Link::Shared, &[]);
        run(command.args(["-o", "ControlMaster=yes", "-o", "ControlPersist=600", "-f", "-N"]))
    }

    fn options(&self, link: Link) -> Vec<String> {
        let directory = self.directory.display();
        let mut options = vec![
            "-F/dev/null".to_owned(),
            format!("-i{directory}/user"),
            "-oBatchMode=yes".to_owned(),
            "-oStrictHostKeyChecking=no".to_owned(),
            "-oUserKnownHostsFile=/dev/null".to_owned(),
            "-oLogLevel=ERROR".to_owned(),
        ];
        if link == Link::Shared {
            options.push(format!("-oControlPath={directory}/control"));
        }
        options
    }
}

impl Drop for Ssh<'_> {
    fn drop(&mut self) {
        let mut exit = self.command(Link::Shared, &[]);
        // There may be no shared connection.
        let _ = run(exit.args(["-O", "exit"]));
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.warden.forget(self.child.id());
    }
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Result<()> {
    let status =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::new(format!("{} ended with {status}", command.get_program().display())))
    }
}
