//! Unix sockets of services that act with the user's authority, such as agents and session buses.
//!
//! A visible socket can be connected to, so these sockets are hidden from sandboxes with the host's network. Landlock can
//! deny the connection itself only from ABI version 9 on.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Directories with the sockets of system and user services.
const DIRECTORIES: [&str; 3] = ["/run", "/var/run", "/tmp/.X11-unix"];

/// Needed paths in these directories: name resolution, and the programs of a NixOS system.
const NEEDED: [&str; 3] = ["/run/systemd/resolve", "/run/nscd", "/run/current-system"];

/// The paths to hide: known directories, and sockets named by the server's environment.
#[derive(Debug)]
pub struct Services {
    sockets: Vec<PathBuf>,
}

impl Services {
    /// Reads the server's environment, which no request can change.
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

    /// Paths to hide.
    pub fn hidden(&self) -> impl Iterator<Item = &Path> {
        self.sockets.iter().map(PathBuf::as_path)
    }

    /// Paths inside hidden directories that stay visible.
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
