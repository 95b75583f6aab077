//! Isolates the children of a test from the environment of the user who runs the tests.
//!
//! | setting of the user | setting of a child |
//! |---|---|
//! | variables of this program, of the reference and of telemetry (`EXEC_SERVER_*`, `CODEX_*`, `OTEL_*`, `TRACE*`) | none, unless the test sets them |
//! | the configuration file of the system | none |
//! | the home directory | a directory below the target directory |
//! | ignored signals, as with `nohup` or `&` | default actions |

use std::ffi::OsStr;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::executor::build_folder;

/// Removes the user's settings; the test may set its own afterwards.
pub fn isolate(command: &mut Command) {
    let is_ours = |name: &OsStr| {
        let name = name.as_encoded_bytes();
        [&b"EXEC_SERVER_"[..], b"CODEX_", b"OTEL_", b"TRACE"]
            .iter()
            .any(|own| name.starts_with(own))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_ours(name)) {
        command.env_remove(name);
    }
    for name in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"] {
        command.env_remove(name);
    }
    command.env("EXEC_SERVER_SYSTEM_CONFIG", "");
    command.env("HOME", home()).env("XDG_STATE_HOME", state_home());
    #[cfg(unix)]
    stop_ignoring_signals();
}

/// Home directory of every child; it contains only files that children create.
pub fn home() -> PathBuf {
    static HOME: OnceLock<PathBuf> = OnceLock::new();
    let make = || {
        let home = build_folder().join("home");
        std::fs::create_dir_all(&home).expect("the target folder can be written");
        home
    };
    HOME.get_or_init(make).clone()
}

/// State directory of servers.
pub fn state_home() -> PathBuf {
    build_folder().join("state")
}

/// Makes children start with default actions for signals that this process ignores.
///
/// An ignored signal stays ignored across exec, but a handled one is reset. The tokio handlers have no effect here,
/// so the tests themselves keep ignoring the signals.
#[cfg(unix)]
fn stop_ignoring_signals() {
    use tokio::signal::unix::{SignalKind, signal};

    static DONE: OnceLock<()> = OnceLock::new();
    let handle = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        let runtime = runtime.expect("an event loop can be made");
        let _entered = runtime.enter();
        let kinds = [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::quit()];
        for kind in kinds.into_iter().filter(|kind| is_ignored(kind.as_raw_value())) {
            drop(signal(kind).expect("these signals can be handled"));
        }
    };
    // On a separate thread: the caller may run on an event loop.
    DONE.get_or_init(|| std::thread::spawn(handle).join().expect("it does not panic"));
}

#[cfg(target_os = "linux")]
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(all(unix, not(target_os = "linux")))]
fn is_ignored(_signal: i32) -> bool {
    false
}

/// A loopback address for a program that must know its port before it listens.
///
/// The port is below those that the kernel gives to other sockets, so that none of them takes it in between.
pub fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number =
            std::process::id().wrapping_mul(61).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(15_000 + number % 15_000).expect("it is below 30,000");
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
