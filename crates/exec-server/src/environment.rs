//! `environment/info`: what this machine is like and what this server can do.

use std::path::{Path, PathBuf};

use exec_server_os::sandbox::Allowances;
use exec_server_os::{Mechanism, host};
use exec_server_protocol::environment::{Capabilities, EnvironmentInfo, ShellInfo};
use exec_server_protocol::hex;
use exec_server_protocol::path_uri::PathUri;

/// What this machine is like and what this server can do.
pub fn info(mechanism: Mechanism, allow: Allowances) -> EnvironmentInfo {
    let cwd = std::env::current_dir().ok();
    let temporary = temporary_directory(cwd.as_deref());
    EnvironmentInfo {
        shell: shell(),
        executor_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        provider_id: host::machine_id().map(|id| provider_id(&id)),
        cwd: cwd.as_deref().map(path_uri),
        user_home_dir: host::home_dir().as_deref().map(path_uri),
        platform_os: Some(std::env::consts::OS.to_owned()),
        prepend_path_dirs: Vec::new(),
        temporary_directories: temporary.as_deref().map(path_uri).into_iter().collect(),
        temp_dir: Some(path_uri(temporary.as_deref().unwrap_or(&std::env::temp_dir()))),
        capabilities: capabilities(),
        sandbox: Some(exec_server_os::expected_sandbox(mechanism, allow)),
    }
}

/// Only what is really there.
fn capabilities() -> Capabilities {
    Capabilities {
        environment_config_read: true,
        capability_discovery_v2: true,
        shell_snapshot_v2: true,
        process_resize: true,
        process_close_stdin: true,
        process_list: true,
        process_signals: true,
        process_terminate_grace: true,
        process_exit_details: true,
        process_timeouts: true,
        process_output_retention: true,
        process_start_retry: true,
        process_wait_when_detached: true,
        session_take_over: true,
        session_directory: true,
        session_linger: true,
        sandboxed_file_streaming: cfg!(target_os = "linux"),
        process_sandbox_report: cfg!(target_os = "linux"),
        process_limits: cfg!(target_os = "linux"),
        file_write_streaming: true,
        fs_watch_missing: true,
        fs_atomic_write: true,
        fs_conditional_write: true,
        fs_detailed_metadata: true,
        fs_directory_paging: true,
        fs_write_attributes: true,
        fs_append: true,
        fs_truncate: true,
        fs_rename: true,
        fs_symlink: true,
        fs_set_permissions: true,
        fs_batch: true,
        http_header_env_vars: true,
        http_cancel: true,
        http_request_body: true,
        http_body_limit: true,
        http_error_kinds: true,
    }
}

fn shell() -> ShellInfo {
    let path = host::user_shell();
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    // Clients know these names only; any other shell is asked for what every shell can do.
    let name = match stem {
        "zsh" | "bash" => stem,
        _ => "sh",
    };
    let path = if name == "sh" && stem != "sh" { PathBuf::from("/bin/sh") } else { path.clone() };
    ShellInfo { name: name.to_owned(), path: path.to_string_lossy().into_owned() }
}

fn temporary_directory(cwd: Option<&Path>) -> Option<PathBuf> {
    let set = std::env::var_os("TMPDIR").filter(|path| !path.is_empty()).map(PathBuf::from)?;
    match cwd {
        Some(cwd) => Some(cwd.join(set)),
        None => Some(set).filter(|path| path.is_absolute()),
    }
}

/// Names the machine without giving its id away.
fn provider_id(machine: &str) -> String {
    let text = format!("exec-server provider {machine}");
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    format!("sha256:{}", hex::encode(digest.as_ref()))
}

/// The URI of a path of this machine.
pub fn path_uri(path: &Path) -> PathUri {
    PathUri::from_posix(path.as_os_str().as_encoded_bytes())
}

/// The path of this machine that these bytes spell.
#[cfg(unix)]
pub fn host_path(bytes: Vec<u8>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(bytes).into()
}

/// The path of this machine that these bytes spell.
#[cfg(not(unix))]
pub fn host_path(bytes: Vec<u8>) -> PathBuf {
    String::from_utf8_lossy(&bytes).into_owned().into()
}
