//! Reads the processes of a server and their resource usage from /proc.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::process::{Pid, Signal};

use super::failure::{Failure, Result};

/// Resource usage of some processes at one moment.
#[derive(Clone, Copy, Default)]
pub struct Usage {
    /// Resident memory in bytes; shared pages count for each process.
    pub rss: u64,
    /// Threads.
    pub threads: u64,
    /// CPU time of reaped children: helpers and the clients' processes.
    pub children_cpu: Duration,
    precise_cpu: Duration,
    ticked_cpu: Duration,
}

impl Usage {
    /// CPU time of the processes themselves since an earlier moment.
    ///
    /// The scheduler's count has nanoseconds but omits exited threads; the other count includes them but is rounded
    /// to ticks.
    pub fn cpu_since(&self, before: &Usage) -> Duration {
        let precise = self.precise_cpu.saturating_sub(before.precise_cpu);
        let ticked = self.ticked_cpu.saturating_sub(before.ticked_cpu);
        precise.max(ticked.saturating_sub(ticks(2)))
    }
}

/// A process, identified by pid and start time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Member {
    pid: u32,
    started: u64,
}

impl Member {
    /// Kills the process if it is still the same one.
    pub fn kill(self) {
        let same = read_stat(self.pid).is_some_and(|stat| stat.member == self);
        if let Some(pid) = Pid::from_raw(self.pid as i32).filter(|_| same) {
            // The process may exit at this moment.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

/// The root and all its descendants.
pub fn family(root: u32) -> Vec<Member> {
    let all: Vec<Stat> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(read_stat)
        .collect();
    let mut family: Vec<Member> =
        all.iter().map(|stat| stat.member).filter(|one| one.pid == root).collect();
    let mut next = 0;
    while next < family.len() {
        let parent = family[next].pid;
        family.extend(all.iter().filter(|stat| stat.parent == parent).map(|stat| stat.member));
        next += 1;
    }
    family
}

/// Members of a server's tree that run the same program as its root: the server without its clients' processes.
pub fn own_processes(root: u32) -> Vec<u32> {
    let program = program_of(root);
    let pids = family(root).into_iter().map(|member| member.pid);
    pids.filter(|pid| program.is_some() && program_of(*pid) == program).collect()
}

/// Current usage of these processes, the root first; others may have exited since they were listed.
pub fn usage(pids: &[u32]) -> Result<Usage> {
    if pids.first().is_none_or(|root| !is_alive(*root)) {
        return Err(Failure::new("the server has ended"));
    }
    let mut total = Usage::default();
    for pid in pids {
        let Some(stat) = read_stat(*pid) else { continue };
        total.rss += stat.rss_pages * rustix::param::page_size() as u64;
        total.threads += stat.threads;
        total.children_cpu += ticks(stat.children_ticks);
        total.ticked_cpu += ticks(stat.own_ticks);
        total.precise_cpu += scheduled_time(*pid);
    }
    Ok(total)
}

/// The numbers of a process's threads.
pub fn threads(pid: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
    tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// Whether a process exists and has not ended; a zombie has ended.
pub fn is_alive(pid: u32) -> bool {
    read_stat(pid).is_some_and(|stat| stat.state != 'Z' && stat.state != 'X')
}

struct Stat {
    member: Member,
    state: char,
    parent: u32,
    own_ticks: u64,
    children_ticks: u64,
    threads: u64,
    rss_pages: u64,
}

fn read_stat(pid: u32) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program name in parentheses may contain any character, so fields are counted from its end.
    let fields: Vec<&str> = text[text.rfind(')')? + 1..].split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat {
        member: Member { pid, started: number(19)? },
        state: fields.first()?.chars().next()?,
        parent: u32::try_from(number(1)?).ok()?,
        own_ticks: number(11)? + number(12)?,
        children_ticks: number(13)? + number(14)?,
        threads: number(17)?,
        rss_pages: number(21)?,
    })
}

/// The file a process runs, by device and inode.
fn program_of(pid: u32) -> Option<(u64, u64)> {
    let file = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some((file.dev(), file.ino()))
}

fn scheduled_time(pid: u32) -> Duration {
    let nanoseconds = threads(pid).into_iter().filter_map(|thread| {
        let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs(count)
        / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::warden;
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::time::Instant;

    #[test]
    fn a_server_is_its_root_and_the_descendants_that_run_the_same_program() {
        let mut root = Command::new("/bin/sh")
            .args(["-c", "/bin/sh -c 'sleep 20; true' & sleep 20; true"])
            .process_group(0)
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        // Two shells and two sleepers; a shell before its exec still counts as a shell.
        let own = loop {
            let (all, own) = (family(root.id()), own_processes(root.id()));
            if (all.len() == 4 && own.len() == 2) || Instant::now() > deadline {
                break own;
            }
        };
        let threads = usage(&own).unwrap().threads;
        warden::kill_all(root.id());
        root.wait().unwrap();
        assert_eq!((own[0], own.len(), threads), (root.id(), 2, 2));
    }
}
