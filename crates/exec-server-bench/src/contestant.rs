//! The measured servers; a running server is stopped on drop.

use std::ffi::OsString;
use std::io::Read;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal};

use super::failure::{Failure, Result};
use super::process_tree::{self, Member, Usage};
use super::warden::{self, Warden};

/// Time limit for a server to print its address, and to exit on SIGTERM.
const START_TIME: Duration = Duration::from_secs(10);
const STOP_TIME: Duration = Duration::from_secs(2);

/// The three columns of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Seat {
    /// The server of this project.
    Ours,
    /// The server it is compared with.
    Peer,
    /// The minimal server of this project.
    Bare,
}

impl Seat {
    /// The column's name.
    pub fn name(self) -> &'static str {
        match self {
            Seat::Ours => "ours",
            Seat::Peer => "peer",
            Seat::Bare => "bare",
        }
    }
}

/// A server program and how to run it.
pub struct Contestant {
    /// Which column it fills.
    pub seat: Seat,
    words: Vec<OsString>,
    environment: Vec<(String, String)>,
}

impl Contestant {
    /// Parses a command line with quotes and leading `NAME=value` words.
    pub fn from_command_line(seat: Seat, line: &str) -> Result<Contestant> {
        let mut words = split_words(line)?;
        let assignments = words.iter().take_while(|word| is_assignment(word)).count();
        let rest = words.split_off(assignments);
        if rest.is_empty() {
            return Err(Failure::new(format!("no program in `{line}`")));
        }
        let environment = words.iter().filter_map(|word| word.split_once('='));
        Ok(Contestant {
            seat,
            environment: environment
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            words: rest.into_iter().map(OsString::from).collect(),
        })
    }

    /// Takes a command as a list of words.
    pub fn from_words(seat: Seat, words: Vec<OsString>) -> Contestant {
        Contestant { seat, words, environment: Vec::new() }
    }

    /// The program itself.
    pub fn program(&self) -> &std::ffi::OsStr {
        &self.words[0]
    }

    /// The command, for the report.
    pub fn command_line(&self) -> String {
        let variables = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        let words = self.words.iter().map(|word| word.to_string_lossy().into_owned());
        variables.chain(words).collect::<Vec<_>>().join(" ")
    }

    /// Starts a server in its own process group and waits for its address.
    pub fn start<'a>(&self, warden: &'a Warden) -> Result<Server<'a>> {
        let begun = Instant::now();
        let mut child = Command::new(&self.words[0])
            .args(&self.words[1..])
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| {
                Failure::new(format!("could not start `{}`: {error}", self.command_line()))
            })?;
        warden.watch(child.id());
        let stdout = child.stdout.take().expect("standard output was asked for");
        let mut server = Server {
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            startup: Duration::ZERO,
            own: Vec::new(),
            child,
            stdout,
            warden,
        };
        let line = server.read_line(begun + START_TIME)?;
        server.startup = begun.elapsed();
        server.address = line
            .strip_prefix("ws://")
            .and_then(|address| address.trim_end().parse().ok())
            .ok_or_else(|| {
                Failure::new(format!("first line is `{}`, not an address", line.trim_end()))
            })?;
        server.own = process_tree::own_processes(server.child.id());
        Ok(server)
    }
}

/// A running server.
pub struct Server<'a> {
    /// Where it listens.
    pub address: SocketAddr,
    /// Time from the start to its first line.
    pub startup: Duration,
    /// Found once after the start, so that short-lived re-executions of the same program do not count as the server.
    own: Vec<u32>,
    child: Child,
    stdout: ChildStdout,
    warden: &'a Warden,
}

impl Server<'_> {
    /// Current resource usage of the server's own processes.
    pub fn usage(&self) -> Result<Usage> {
        process_tree::usage(&self.own)
    }

    /// The numbers of the server's threads.
    pub fn threads(&self) -> Vec<i32> {
        self.own.iter().flat_map(|pid| process_tree::threads(*pid)).collect()
    }

    /// The size of the program in bytes.
    pub fn program_size(&self) -> Result<u64> {
        Ok(std::fs::metadata(format!("/proc/{}/exe", self.child.id()))?.len())
    }

    fn read_line(&mut self, deadline: Instant) -> Result<String> {
        let mut line = Vec::new();
        let mut buffer = [0; 256];
        while !line.contains(&b'\n') {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).expect("a few seconds fit");
            let mut source = [PollFd::new(&self.stdout, PollFlags::IN)];
            if retry_on_intr(|| rustix::event::poll(&mut source, Some(&timeout)))? == 0 {
                return Err(Failure::new("the server printed no address in time"));
            }
            match self.stdout.read(&mut buffer)? {
                0 => return Err(Failure::new("the server ended before printing its address")),
                count => line.extend_from_slice(&buffer[..count]),
            }
        }
        let first = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        Ok(String::from_utf8_lossy(first).into_owned())
    }

    /// Sends SIGTERM, so that the server can end its clients' processes.
    fn ask_to_end(&mut self) -> Result<()> {
        let leader = Pid::from_child(&self.child);
        let pidfd = rustix::process::pidfd_open(leader, rustix::process::PidfdFlags::empty())?;
        rustix::process::kill_process_group(leader, Signal::TERM)?;
        let timeout = Timespec::try_from(STOP_TIME).expect("a few seconds fit");
        let mut exit = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
        retry_on_intr(|| rustix::event::poll(&mut exit, Some(&timeout)))?;
        Ok(())
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let family = process_tree::family(self.child.id());
        // A server that does not exit is killed.
        let _ = self.ask_to_end();
        warden::kill_all(self.child.id());
        family.into_iter().for_each(Member::kill);
        let _ = self.child.wait();
        self.warden.forget(self.child.id());
    }
}

fn is_assignment(word: &str) -> bool {
    let name = word.split_once('=').map_or("", |(name, _)| name);
    !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

fn split_words(line: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), close) if open == close => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, space) if space.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err(Failure::new(format!("a quote is left open in `{line}`")));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_may_set_variables_and_quote_words() {
        let contestant =
            Contestant::from_command_line(Seat::Peer, "HOME=/x 'a b' --c=d \"\"").unwrap();
        assert_eq!(contestant.environment, [("HOME".to_owned(), "/x".to_owned())]);
        assert_eq!(contestant.words, ["a b", "--c=d", ""]);
        assert!(Contestant::from_command_line(Seat::Peer, "A=1").is_err());
        assert!(Contestant::from_command_line(Seat::Peer, "'a").is_err());
    }
}
