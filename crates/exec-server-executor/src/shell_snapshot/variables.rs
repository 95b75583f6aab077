//! Decides which variables a snapshot may restore.

use super::ShellKind;

/// Variables that a shell sets itself or that describe one shell instance.
const OF_EVERY_SHELL: [&str; 26] = [
    "COLUMNS",
    "DIRSTACK",
    "EGID",
    "EPOCHREALTIME",
    "EPOCHSECONDS",
    "EUID",
    "FUNCNAME",
    "GID",
    "GROUPS",
    "HISTCMD",
    "IFS",
    "LINENO",
    "LINES",
    "OLDPWD",
    "OPTARG",
    "OPTERR",
    "OPTIND",
    "PIPESTATUS",
    "PPID",
    "PWD",
    "RANDOM",
    "SECONDS",
    "SHELLOPTS",
    "SHLVL",
    "UID",
    "_",
];

/// Variables that zsh sets itself; assigning to `USERNAME` would change the user.
const OF_ZSH: [&str; 14] = [
    "ARGC",
    "CPUTYPE",
    "ERRNO",
    "FUNCNEST",
    "HOST",
    "MACHTYPE",
    "OSTYPE",
    "TRY_BLOCK_ERROR",
    "TTY",
    "USERNAME",
    "VENDOR",
    "argv",
    "pipestatus",
    "status",
];

/// Proxy settings; a captured value may name a proxy that no longer exists.
const PROXIES: [&str; 4] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"];

/// Whether another shell of this kind may set the variable.
pub(super) fn is_restorable(kind: ShellKind, name: &str) -> bool {
    is_identifier(name)
        && !name.starts_with("BASH")
        && !OF_EVERY_SHELL.contains(&name)
        && !(kind == ShellKind::Zsh && (OF_ZSH.contains(&name) || name.starts_with("ZSH_")))
}

/// Whether the variable names a proxy, in upper or lower case.
pub(super) fn is_proxy(name: &str) -> bool {
    PROXIES.iter().any(|proxy| name.eq_ignore_ascii_case(proxy))
}

fn is_identifier(name: &str) -> bool {
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts_well && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}
