//! Builds the reply to `environment/info`: facts about the machine and capabilities of the server.

use std::path::{Path, PathBuf};

use exec_server_os::host;
use exec_server_protocol::environment::{Capabilities, EnvironmentInfo, HostInfo, ShellInfo};
use exec_server_protocol::hex;
use exec_server_protocol::methods::Platform;
use exec_server_protocol::path_uri::PathUri;
use exec_server_sandbox::Mechanism;
use exec_server_sandbox::policy::Allowances;

/// Collects the facts about the machine, with a new instance id.
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
        capabilities: capabilities(mechanism),
        sandbox: Some(exec_server_sandbox::expected_sandbox(mechanism, allow)),
        host: Some(host_info()),
        instance_id: Some(uuid::Uuid::new_v4().to_string()),
    }
}

fn host_info() -> HostInfo {
    let cpus = std::thread::available_parallelism().ok();
    HostInfo {
        name: host::hostname(),
        kernel: host::kernel_release(),
        architecture: Some(std::env::consts::ARCH.to_owned()),
        user: host::user_name(),
        cpus: cpus.and_then(|cpus| u64::try_from(cpus.get()).ok()),
        memory_bytes: host::memory_bytes(),
    }
}

fn capabilities(mechanism: Mechanism) -> Capabilities {
    Capabilities::of(Platform {
        is_linux: cfg!(target_os = "linux"),
        // Landlock alone cannot deny a path below an allowed directory.
        has_mounts: cfg!(target_os = "linux") && mechanism == Mechanism::Namespaces,
        can_change_users: exec_server_os::can_change_users(),
    })
}

fn shell() -> ShellInfo {
    let path = host::user_shell();
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    // Clients know only these names, so any other shell is reported as `/bin/sh`.
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

/// Identifies the machine by a hash, because the machine id itself is confidential.
fn provider_id(machine: &str) -> String {
    let text = format!("exec-server provider {machine}");
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    format!("sha256:{}", hex::encode(digest.as_ref()))
}

/// Converts a local path to its URI.
pub fn path_uri(path: &Path) -> PathUri {
    PathUri::from_posix(path.as_os_str().as_encoded_bytes())
}
