//! Facts about this machine and its user.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The user's login shell: `$SHELL`, else what the user database says, else `/bin/sh`.
pub fn user_shell() -> PathBuf {
    let from_env = env::var_os("SHELL").map(PathBuf::from);
    [from_env, shell_of_user()]
        .into_iter()
        .flatten()
        .find(|shell| shell.is_absolute() && shell.exists())
        .unwrap_or_else(|| PathBuf::from("/bin/sh"))
}

/// The user's home directory.
pub fn home_dir() -> Option<PathBuf> {
    env::home_dir().filter(|home| home.is_absolute())
}

/// The machine's name.
pub fn hostname() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// A text that is the same for every server on this machine and on no other.
pub fn machine_id() -> Option<String> {
    ["/etc/machine-id", "/var/lib/dbus/machine-id"]
        .into_iter()
        .find_map(|path| fs::read_to_string(path).ok())
        .map(|id| id.trim().to_owned())
        .filter(|id| !id.is_empty())
        .or_else(hostname)
}

fn shell_of_user() -> Option<PathBuf> {
    let user = env::var("USER").or_else(|_| env::var("LOGNAME")).ok();
    let home = home_dir();
    let passwd = fs::read_to_string("/etc/passwd").ok()?;
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, _, _, _, directory, shell] = fields[..] else { return None };
        let is_user = match &user {
            Some(user) => user == name,
            None => home.as_deref() == Some(Path::new(directory)),
        };
        (is_user && !shell.is_empty()).then(|| PathBuf::from(shell))
    })
}
