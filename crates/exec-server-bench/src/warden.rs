//! A second process that kills the servers if the benchmark exits before it can.
//!
//! Its stdin carries the pids of servers, and its end starts the kill, so that even a killed benchmark leaves nothing
//! running.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::Mutex;

use rustix::process::{Pid, Signal};

use super::failure::Result;
use super::process_tree;

/// The benchmark's end of the warden.
pub struct Warden {
    child: Child,
    orders: Mutex<Option<ChildStdin>>,
}

impl Warden {
    /// Starts the warden in its own process group, so that an interrupt at the terminal does not reach it.
    pub fn start() -> Result<Warden> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("warden")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        let orders = Mutex::new(child.stdin.take());
        Ok(Warden { child, orders })
    }

    /// Registers a server, the leader of its group.
    pub fn watch(&self, leader: u32) {
        self.send(&format!("watch {leader}\n"));
    }

    /// Unregisters a server that has exited.
    pub fn forget(&self, leader: u32) {
        self.send(&format!("forget {leader}\n"));
    }

    fn send(&self, order: &str) {
        let mut orders = self.orders.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(orders) = orders.as_mut() {
            // Without a warden the benchmark still stops its servers itself.
            let _ = orders.write_all(order.as_bytes());
        }
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        // Closing the pipe stops the warden.
        let orders = self.orders.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        drop(orders.take());
        let _ = self.child.wait();
    }
}

/// Kills a server: its process group and all descendants in other groups.
pub fn kill_all(leader: u32) {
    let family = process_tree::family(leader);
    if let Some(group) = Pid::from_raw(leader as i32) {
        // The group may be empty already.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    for member in family {
        member.kill();
    }
}

/// Main function of the warden: reads pids until the benchmark is gone, then kills the rest.
pub fn run_warden() -> ExitCode {
    let mut watched = BTreeSet::new();
    for line in io::stdin().lock().lines().map_while(std::result::Result::ok) {
        match line.split_once(' ').map(|(order, leader)| (order, leader.parse::<u32>())) {
            Some(("watch", Ok(leader))) => watched.insert(leader),
            Some((_, Ok(leader))) => watched.remove(&leader),
            _ => continue,
        };
    }
    watched.into_iter().for_each(kill_all);
    ExitCode::SUCCESS
}
