//! The units of a service: the files that packages install, adapted to this program and to a user's systemd.

use std::path::Path;

use crate::cli::Failure;

const SERVER: &str = include_str!("../../../systemd/exec-server.service");
const SERVER_SOCKET: &str = include_str!("../../../systemd/exec-server.socket");
const EXECUTOR: &str = include_str!("../../../systemd/exec-server-executor@.service");
const RENDEZVOUS: &str = include_str!("../../../systemd/exec-server-rendezvous.service");
const RENDEZVOUS_SOCKET: &str = include_str!("../../../systemd/exec-server-rendezvous.socket");
const USERS: &str = include_str!("../../../systemd/exec-server.sysusers");

/// The program in `ExecStart=` of the packages.
const PACKAGED_PROGRAM: &str = "/usr/bin/exec-server";

/// What a service does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Serves this machine to clients that connect to it.
    Server,
    /// Offers this machine at a rendezvous.
    Executor,
    /// Hosts a registry and relay.
    Rendezvous,
}

/// Whose systemd runs a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    System,
    User,
}

impl Kind {
    /// The word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Executor => "executor",
            Self::Rendezvous => "rendezvous",
        }
    }

    /// The file with the service unit.
    pub fn unit_file(self) -> &'static str {
        match self {
            Self::Server => "exec-server.service",
            Self::Executor => "exec-server-executor@.service",
            Self::Rendezvous => "exec-server-rendezvous.service",
        }
    }

    /// The file with the socket unit; an executor does not listen.
    pub fn socket_file(self) -> Option<&'static str> {
        match self {
            Self::Server => Some("exec-server.socket"),
            Self::Executor => None,
            Self::Rendezvous => Some("exec-server-rendezvous.socket"),
        }
    }

    /// The user that runs the service of the system, unless systemd makes one for each start.
    pub fn user(self) -> Option<&'static str> {
        (self != Self::Rendezvous).then_some("exec-server")
    }

    /// Where the service of the system keeps its state.
    pub fn state_dir(self, scope: Scope) -> &'static str {
        match (self, scope) {
            (Self::Server, Scope::System) => "/var/lib/exec-server",
            (Self::Server, Scope::User) => "~/.local/state/exec-server",
            (Self::Executor, Scope::System) => "/var/lib/exec-server-executor",
            (Self::Executor, Scope::User) => "~/.local/state/exec-server-executor",
            (Self::Rendezvous, Scope::System) => "/var/lib/exec-server-rendezvous",
            (Self::Rendezvous, Scope::User) => "~/.local/state/exec-server-rendezvous",
        }
    }

    /// The service unit that starts this program.
    pub fn unit(self, scope: Scope, program: &Path) -> Result<String, Failure> {
        let text = match self {
            Self::Server => SERVER,
            Self::Executor => EXECUTOR,
            Self::Rendezvous => RENDEZVOUS,
        };
        let text = text.replace(PACKAGED_PROGRAM, plain_path(program)?);
        Ok(match scope {
            Scope::System => text,
            Scope::User => for_user(&text),
        })
    }

    /// The socket unit that listens at this place: `IP:PORT`, or a path.
    pub fn socket(self, scope: Scope, place: &str) -> Option<String> {
        let text = match self {
            Self::Server => SERVER_SOCKET,
            Self::Executor => return None,
            Self::Rendezvous => RENDEZVOUS_SOCKET,
        };
        let mut lines: Vec<String> = Vec::new();
        for line in text.lines() {
            if line.starts_with("ListenStream=") {
                lines.push(format!("ListenStream={place}"));
                if place.starts_with('/') {
                    lines.push("SocketMode=0600".to_owned());
                    let user = self.user().filter(|_| scope == Scope::System);
                    lines.extend(user.map(|user| format!("SocketUser={user}")));
                }
            } else {
                lines.push(line.to_owned());
            }
        }
        Some(lines.join("\n") + "\n")
    }
}

/// The line of `sysusers.d` that makes the user of the services.
pub fn user_line() -> &'static str {
    USERS.lines().find(|line| line.starts_with("u ")).unwrap_or_default()
}

/// A path that systemd reads as one word and without escapes.
fn plain_path(program: &Path) -> Result<&str, Failure> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._+-@:,=~".contains(letter);
    let text = program.to_str().filter(|text| text.starts_with('/') && text.chars().all(is_plain));
    text.ok_or_else(|| {
        Failure::Usage(format!(
            "a unit cannot start {}: install the program at an absolute path of letters, digits and /._+-",
            program.display()
        ))
    })
}

/// Settings that a user's systemd refuses, or that need rights of root.
const ONLY_SYSTEM: [&str; 9] = [
    "AmbientCapabilities",
    "CapabilityBoundingSet",
    "DynamicUser",
    "Group",
    "StateDirectory",
    "StateDirectoryMode",
    "User",
    "Wants",
    "After",
];

/// The unit for a user's systemd: without the system's users, directories, mounts and targets.
fn for_user(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let key = line.split_once('=').map_or("", |(key, _)| key);
        let is_mount = key.starts_with("Protect") || key.starts_with("Private");
        if is_mount || ONLY_SYSTEM.contains(&key) {
            continue;
        }
        let line = match key {
            "WorkingDirectory" => "WorkingDirectory=%h".to_owned(),
            "WantedBy" => line.replace("multi-user.target", "default.target"),
            _ => line
                .replace("${STATE_DIRECTORY}", "%h/.local/state/exec-server-rendezvous")
                .replace("%S/", "%h/.local/state/"),
        };
        let line = line.replace("/etc/exec-server/", "~/.config/exec-server/");
        lines.push(line.replace("/var/lib/", "~/.local/state/"));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 3] = [Kind::Server, Kind::Executor, Kind::Rendezvous];

    #[test]
    fn the_program_of_a_unit_occurs_only_where_it_is_started() {
        for kind in KINDS {
            let text = kind.unit(Scope::System, Path::new("/opt/exec-server")).unwrap();
            let lines: Vec<&str> =
                text.lines().filter(|line| line.contains("/opt/exec-server")).collect();
            assert!(
                lines.len() == 1 && lines[0].starts_with("ExecStart=/opt/exec-server "),
                "{text}"
            );
            let packaged = kind.unit(Scope::System, Path::new(PACKAGED_PROGRAM)).unwrap();
            assert_eq!(packaged.replace(PACKAGED_PROGRAM, "/opt/exec-server"), text);
        }
        for bad in ["exec-server", "/a b", "/a\"b", "/a%b", "/a$b", "/ä"] {
            assert!(Kind::Server.unit(Scope::System, Path::new(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_unit_of_a_user_needs_nothing_of_the_system() {
        for kind in KINDS {
            let text = kind.unit(Scope::User, Path::new("/opt/exec-server")).unwrap();
            for setting in
                ["\nUser=", "\nProtect", "\nPrivate", "/etc/", "/var/", "%S", "network-online"]
            {
                assert!(!text.contains(setting), "{setting}: {text}");
            }
            assert!(
                text.contains("\nNoNewPrivileges=yes\n") && text.contains("\nType=notify\n"),
                "{text}"
            );
            assert!(text.ends_with("WantedBy=default.target\n"), "{text}");
        }
    }

    #[test]
    fn a_socket_unit_listens_where_the_server_says() {
        let text = Kind::Server.socket(Scope::System, "[::1]:7000").unwrap();
        assert!(text.contains("\nListenStream=[::1]:7000\n") && !text.contains("7777"), "{text}");
        let text = Kind::Server.socket(Scope::System, "/run/x.sock").unwrap();
        assert!(
            text.contains("\nListenStream=/run/x.sock\nSocketMode=0600\nSocketUser=exec-server\n")
        );
        assert!(!Kind::Server.socket(Scope::User, "/run/x.sock").unwrap().contains("SocketUser"));
        assert_eq!(Kind::Executor.socket(Scope::User, "127.0.0.1:1"), None);
    }

    #[test]
    fn the_user_of_the_services_is_in_the_file_of_the_packages() {
        assert!(user_line().starts_with("u exec-server "));
    }
}
