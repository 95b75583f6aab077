//! Facts about this machine and its user.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The user's login shell: `$SHELL`, else the shell in `/etc/passwd`, else `/bin/sh`.
pub fn user_shell() -> PathBuf {
    let from_env = env::var_os("SHELL").map(PathBuf::from);
    [from_env, shell_of_user()]
        .into_iter()
        .flatten()
        .find(|shell| shell.is_absolute() && shell.exists())
        .unwrap_or_else(|| PathBuf::from("/bin/sh"))
}

/// The user's home directory; `None` if it is unknown or not absolute.
pub fn home_dir() -> Option<PathBuf> {
    env::home_dir().filter(|home| home.is_absolute())
}

/// The host name as the kernel reports it.
pub fn hostname() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The kernel release, as printed by `uname -r`.
pub fn kernel_release() -> Option<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    Some(release.trim().to_owned()).filter(|release| !release.is_empty())
}

/// Total memory of this machine in bytes.
pub fn memory_bytes() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The effective user of this process: its name, or its number if it has no name.
pub fn user_name() -> Option<String> {
    #[cfg(unix)]
    {
        let uid = rustix::process::geteuid().as_raw();
        Some(crate::users::user_name(uid).unwrap_or_else(|| uid.to_string()))
    }
    #[cfg(not(unix))]
    env::var("USERNAME").ok()
}

/// An id shared by all servers on this machine: the systemd or D-Bus machine id, else the host name.
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
