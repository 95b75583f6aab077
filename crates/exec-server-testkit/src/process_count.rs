//! Counts all descendants of a test and waits for their exit.
//!
//! Children inherit their environment, so a variable marks them and all descendants, including those that have left
//! their parent, group and session.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{DEADLINE, eventually};

const VARIABLE: &str = "EXEC_SERVER_TEST_FOOTPRINT";

/// Marks processes by a variable; processes that still have it on drop are killed.
pub struct ProcessMarker {
    name: String,
}

impl ProcessMarker {
    /// A unique marker.
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self { name: format!("{}-{count}", std::process::id()) }
    }

    /// Params of `process/start` with the variable.
    pub fn params(&self) -> Value {
        let path = std::env::var("PATH").unwrap_or_default();
        json!({"env": {"PATH": path, VARIABLE: self.name}})
    }

    /// The variable, as `NAME=VALUE`.
    pub fn variable(&self) -> String {
        format!("{VARIABLE}={}", self.name)
    }

    /// Running processes with the variable.
    pub fn living(&self) -> Vec<i32> {
        let entry = self.variable();
        let all = fs::read_dir("/proc").expect("/proc is mounted");
        all.flatten()
            .filter_map(|process| process.file_name().to_str()?.parse().ok())
            // An exited process has no environment to read.
            .filter(|pid| {
                let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                environ.split(|byte| *byte == 0).any(|variable| variable == entry.as_bytes())
            })
            .collect()
    }

    /// Waits until exactly `count` are running, and returns their pids.
    ///
    /// Polls, because a process has no environment in the middle of an exec.
    pub async fn counts(&self, count: usize) -> Vec<i32> {
        let mut living = Vec::new();
        let look = || {
            living = self.living();
            living.len() == count
        };
        eventually(&format!("{count} are alive"), look).await;
        living
    }

    /// Waits until none is running.
    pub async fn gone(&self) {
        // Non-children give no exit event, and a single scan can miss processes that fork quickly.
        let all = async {
            let mut empty_looks = 0;
            while empty_looks < 5 {
                empty_looks = if self.living().is_empty() { empty_looks + 1 } else { 0 };
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if timeout(DEADLINE, all).await.is_err() {
            panic!(
                "still alive: {:?}",
                self.living().into_iter().map(describe).collect::<Vec<_>>()
            );
        }
    }
}

impl Default for ProcessMarker {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ProcessMarker {
    fn drop(&mut self) {
        for pid in self.living().into_iter().filter_map(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// State letter of a process, such as `S`, `T` or `Z`; `None` if it does not exist.
pub fn state(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Launchers of a server that wait for a job.
pub fn warm_sandboxes(server: u32) -> Vec<i32> {
    let is_launcher = |pid: &i32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim() == "exec-launcher")
    };
    children(server).into_iter().filter(is_launcher).filter(|pid| is_unused(*pid)).collect()
}

/// Whether a process belongs to a sandbox without a command, by its tag.
pub fn is_unused(pid: i32) -> bool {
    let Ok(limits) = fs::read_to_string(format!("/proc/{pid}/limits")) else { return false };
    let line = limits.lines().find_map(|line| line.strip_prefix("Max realtime timeout"));
    let soft = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    soft.is_some_and(|tag| tag & u64::from(u32::MAX) >= u64::from(u32::MAX - 1))
}

/// Children of all threads of a process; empty if it is gone.
pub fn children(pid: u32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_ascii_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

fn describe(pid: i32) -> String {
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!("{pid} {}", String::from_utf8_lossy(&command).replace('\0', " "))
}
