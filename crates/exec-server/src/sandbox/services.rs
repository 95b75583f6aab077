//! Sockets in the file system behind which somebody acts with the user's own authority.
//!
//! To connect needs no more than to see the socket, so a process that has a network must not see them. Kernels with
//! version 9 of Landlock could refuse the connection itself; before that, hiding is all there is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Where services of the machine and of the user have their sockets.
const DIRECTORIES: [&str; 3] = ["/run", "/var/run", "/tmp/.X11-unix"];

/// What is in there and needed: names of hosts, and the programs of a system that keeps them there.
const NEEDED: [&str; 3] = ["/run/systemd/resolve", "/run/nscd", "/run/current-system"];

/// What this server's environment says about such sockets.
#[derive(Debug)]
pub struct Services {
    sockets: Vec<PathBuf>,
}

impl Services {
    /// Asks a server's environment; no request can change it.
    pub fn of_environment(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let plain = ["SSH_AUTH_SOCK", "XDG_RUNTIME_DIR"].into_iter().filter_map(&variable);
        let addresses =
            ["DBUS_SESSION_BUS_ADDRESS", "DOCKER_HOST"].into_iter().filter_map(&variable);
        let named =
            addresses.filter_map(|address| Some(path_in_address(address.to_str()?)?.into()));
        let known = DIRECTORIES.into_iter().map(PathBuf::from);
        let sockets = known.chain(plain.map(PathBuf::from)).chain(named);
        Self { sockets: sockets.filter(|path| path.is_absolute()).collect() }
    }

    /// What is to be hidden.
    pub fn hidden(&self) -> impl Iterator<Item = &Path> {
        self.sockets.iter().map(PathBuf::as_path)
    }

    /// What is to be shown all the same.
    pub fn needed(&self) -> Vec<PathBuf> {
        let resolver = std::fs::canonicalize("/etc/resolv.conf").into_iter();
        let is_hidden = |path: &PathBuf| self.sockets.iter().any(|hidden| path.starts_with(hidden));
        NEEDED.into_iter().map(PathBuf::from).chain(resolver).filter(is_hidden).collect()
    }
}

/// The path in `unix:path=/run/user/0/bus,guid=…` or `unix:///run/docker.sock`.
fn path_in_address(address: &str) -> Option<&str> {
    let path = address.strip_prefix("unix:path=").or_else(|| address.strip_prefix("unix://"))?;
    path.split([',', ';']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_in_the_forms_that_programs_use() {
        let services = Services::of_environment(|name| {
            let value = match name {
                "SSH_AUTH_SOCK" => "/tmp/ssh-1/agent.2",
                "XDG_RUNTIME_DIR" => "relative",
                "DBUS_SESSION_BUS_ADDRESS" => "unix:path=/tmp/bus,guid=1",
                "DOCKER_HOST" => "unix:///srv/docker.sock",
                _ => return None,
            };
            Some(value.into())
        });
        let found: Vec<_> = services.hidden().skip(DIRECTORIES.len()).collect();
        assert_eq!(found, ["/tmp/ssh-1/agent.2", "/tmp/bus", "/srv/docker.sock"].map(Path::new));
        assert_eq!(path_in_address("tcp://127.0.0.1"), None);
    }
}
