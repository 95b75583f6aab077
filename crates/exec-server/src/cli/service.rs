//! `exec-server service`: installs, shows and removes services of systemd.
//!
//! | look here | for |
//! |---|---|
//! | `units` | the text of the units, shared with the packages |
//! | `files` | the files of a service, and where they are |
//! | `owned_file` | how our files are told from those of others |
//! | `environment_file` | options and addresses for a unit |
//! | `install`, `uninstall` | the commands |
//! | `systemd` | programs of systemd that are run |

mod environment_file;
mod files;
mod install;
mod owned_file;
mod systemd;
mod uninstall;
mod units;

use std::path::PathBuf;
use std::process::ExitCode;

use super::Failure;
use files::Layout;
use install::InstallArguments;
use systemd::Systemd;
use units::{Kind, Scope};

/// Subcommands of `service`.
#[derive(Debug, clap::Subcommand)]
pub enum ServiceCommand {
    /// Write the units of a service, enable it and start it; repeating it changes only what differs.
    ///
    /// A service that runs already keeps its settings until it is restarted, because its commands end with it.
    #[command(after_help = INSTALL_EXAMPLES)]
    Install(Box<InstallArguments>),
    /// Show whether services run, and their last log lines.
    #[command(after_help = STATUS_EXAMPLES)]
    Status(StatusArguments),
    /// Print the log of a service.
    #[command(after_help = LOGS_EXAMPLES)]
    Logs(LogsArguments),
    /// Stop a service and remove its files; its state is kept.
    #[command(after_help = UNINSTALL_EXAMPLES)]
    Uninstall(UninstallArguments),
}

pub const EXAMPLES: &str = "\
Examples:
  exec-server service install --user server
  exec-server service status
  exec-server service logs -f server
  exec-server service uninstall --user server";

const INSTALL_EXAMPLES: &str = "\
Examples:
  exec-server service install --user server
      for clients on this machine, as this user
  exec-server service install server --listen ws://0.0.0.0:7777 --token-file token -- \\
      --tls-cert /etc/ssl/cert.pem --tls-key /etc/ssl/key.pem
      for clients on the network that have the token, as the user exec-server
  exec-server service install executor build-1 --remote https://relay.example.org --token-file token
      this machine as env:build-1
  exec-server service install rendezvous --socket -- --public-url https://relay.example.org
      systemd listens, so that connections wait while the rendezvous restarts
  exec-server service install --dry-run server
      prints the files and the commands";

const STATUS_EXAMPLES: &str = "\
Examples:
  exec-server service status
  exec-server service status --user server";

const LOGS_EXAMPLES: &str = "\
Examples:
  exec-server service logs -n 100 server
  exec-server service logs -f executor build-1";

const UNINSTALL_EXAMPLES: &str = "\
Examples:
  exec-server service uninstall --user server
  exec-server service uninstall --dry-run executor build-1";

/// Which systemd is used.
#[derive(Debug, Clone, clap::Args)]
struct ScopeOptions {
    /// Use the systemd of this user instead of the system's.
    #[arg(long)]
    user: bool,
}

impl ScopeOptions {
    fn scope(&self) -> Scope {
        if self.user { Scope::User } else { Scope::System }
    }
}

/// The service that is meant.
#[derive(Debug, Clone, clap::Args)]
struct ServiceName {
    /// The kind of service.
    #[arg(value_name = "KIND")]
    kind: Kind,
    /// Name of an executor: the environment that this machine is at its rendezvous.
    name: Option<String>,
}

/// Arguments of `service status`.
#[derive(Debug, clap::Args)]
pub struct StatusArguments {
    #[command(flatten)]
    scope: ScopeOptions,
    /// The kind of service; without one, all of them.
    #[arg(value_name = "KIND")]
    kind: Option<Kind>,
    /// Name of an executor.
    name: Option<String>,
}

/// Arguments of `service logs`.
#[derive(Debug, clap::Args)]
pub struct LogsArguments {
    #[command(flatten)]
    scope: ScopeOptions,
    #[command(flatten)]
    service: ServiceName,
    /// Go on with new lines until Ctrl-C.
    #[arg(short, long)]
    follow: bool,
    /// Print only the last lines.
    #[arg(short = 'n', long, value_name = "COUNT")]
    lines: Option<u32>,
}

/// Arguments of `service uninstall`.
#[derive(Debug, clap::Args)]
pub struct UninstallArguments {
    #[command(flatten)]
    scope: ScopeOptions,
    #[command(flatten)]
    service: ServiceName,
    /// Remove the service from the system below this directory, such as an image, without stopping anything here.
    #[arg(long, value_name = "DIR", conflicts_with = "user")]
    root: Option<PathBuf>,
    /// Remove units also if they were changed by hand.
    #[arg(long)]
    force: bool,
    /// Print what would be done.
    #[arg(long)]
    dry_run: bool,
}

/// A service: its kind, and its name if it is an executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    pub kind: Kind,
    name: String,
}

impl Service {
    fn new(kind: Kind, name: Option<&str>) -> Result<Self, Failure> {
        let word = kind.word();
        let name = match (kind, name) {
            (Kind::Executor, Some(name)) => name,
            (Kind::Executor, None) => {
                let text = "an executor needs the name of its environment: `executor NAME`";
                return Err(Failure::Usage(text.to_owned()));
            }
            (_, None) => "",
            (_, Some(name)) => {
                let text = format!("a {word} has no name; leave out `{name}`");
                return Err(Failure::Usage(text));
            }
        };
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_.-".contains(letter);
        if !name.chars().all(is_plain) || (kind == Kind::Executor && name.is_empty()) {
            let text = format!(
                "`{name}` cannot be the name of a unit: use an environment of letters, digits, _ . and -"
            );
            return Err(Failure::Usage(text));
        }
        Ok(Self { kind, name: name.to_owned() })
    }

    /// The name of the service unit.
    fn unit(&self) -> String {
        self.kind.unit_file().replace('@', &format!("@{}", self.name))
    }

    /// The words after `service install`, `logs` and so on.
    fn words(&self) -> String {
        format!("{} {}", self.kind.word(), self.name).trim_end().to_owned()
    }
}

/// Runs a `service` command.
pub fn run(command: ServiceCommand) -> ExitCode {
    super::conclude(perform(command), false)
}

fn perform(command: ServiceCommand) -> Result<u8, Failure> {
    match command {
        ServiceCommand::Install(arguments) => install::run(&arguments),
        ServiceCommand::Status(arguments) => status(&arguments),
        ServiceCommand::Logs(arguments) => logs(&arguments),
        ServiceCommand::Uninstall(arguments) => uninstall::run(&arguments),
    }
}

fn status(arguments: &StatusArguments) -> Result<u8, Failure> {
    let scope = arguments.scope.scope();
    let units = match arguments.kind {
        Some(kind) => {
            let service = Service::new(kind, arguments.name.as_deref())?;
            let mut units = vec![service.unit()];
            units.extend(Layout::of(scope, None)?.socket_of(kind));
            units
        }
        // A name without a kind is not possible, because the kind comes first.
        None => ["exec-server.*", "exec-server-rendezvous.*", "exec-server-executor@*"]
            .map(String::from)
            .to_vec(),
    };
    let systemd = Systemd::running(scope)?;
    systemd.show(&["status", "--no-pager", "--lines=5"], &units)
}

fn logs(arguments: &LogsArguments) -> Result<u8, Failure> {
    let service = Service::new(arguments.service.kind, arguments.service.name.as_deref())?;
    let systemd = Systemd::running(arguments.scope.scope())?;
    systemd.journal(&service.unit(), arguments.follow, arguments.lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_executors_have_a_name_which_becomes_the_instance() {
        let unit = |kind, name| Service::new(kind, name).map(|service| service.unit()).ok();
        assert_eq!(unit(Kind::Server, None).as_deref(), Some("exec-server.service"));
        assert_eq!(
            unit(Kind::Executor, Some("build-1")).as_deref(),
            Some("exec-server-executor@build-1.service")
        );
        for (kind, name) in [
            (Kind::Executor, None),
            (Kind::Server, Some("x")),
            (Kind::Executor, Some("a/b")),
            (Kind::Executor, Some("a b")),
            (Kind::Executor, Some("")),
        ] {
            assert_eq!(unit(kind, name), None);
        }
    }
}
