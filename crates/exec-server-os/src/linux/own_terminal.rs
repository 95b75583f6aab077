//! Modes and size of the terminal on this process's standard streams.

use std::io;

use exec_server_protocol::process::TerminalSize;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, SeekFrom, fstat, makedev, seek};
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Changed terminal modes; dropping it restores the previous modes.
#[derive(Debug)]
pub struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Enters raw mode, in which every key is passed on as bytes; fails if stdin is no terminal.
    pub fn enter() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        // `Now` keeps pending input for the next reader.
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }

    /// Disables line buffering and echo, but Ctrl-C still sends SIGINT; fails if stdin is no terminal.
    pub fn enter_keys() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut keys = before.clone();
        keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
        tcsetattr(stdin(), OptionalActions::Now, &keys)?;
        Ok(Self { before })
    }

    /// Switches to full raw mode; the previous modes are still restored on drop.
    pub fn make_raw(&mut self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        Ok(tcsetattr(stdin(), OptionalActions::Now, &raw)?)
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // Ignore the error: a terminal that was hung up has no modes to restore.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

/// The size of the terminal, if any standard stream is one.
pub fn terminal_size() -> Option<TerminalSize> {
    let size = tcgetwinsize(stdout())
        .or_else(|_| tcgetwinsize(stdin()))
        .or_else(|_| tcgetwinsize(stderr()))
        .ok()?;
    // A terminal of unknown size reports zero.
    (size.ws_row > 0 && size.ws_col > 0)
        .then_some(TerminalSize { rows: size.ws_row, cols: size.ws_col })
}

/// Whether stdin is known to be at its end, without reading or waiting.
pub fn stdin_is_empty() -> bool {
    let stdin = stdin();
    let Ok(facts) = fstat(stdin) else { return true };
    match FileType::from_raw_mode(facts.st_mode) {
        FileType::RegularFile => {
            let position = seek(stdin, SeekFrom::Current(0)).unwrap_or(0);
            u64::try_from(facts.st_size).is_ok_and(|size| position >= size)
        }
        FileType::CharacterDevice => facts.st_rdev == makedev(1, 3),
        FileType::Fifo | FileType::Socket => {
            let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
            // A closed pipe with bytes in it polls as IN and HUP, an empty one as HUP only.
            let is_ready =
                poll(&mut ready, Some(&Timespec::default())).is_ok_and(|count| count > 0);
            let events = ready[0].revents();
            is_ready && events.contains(PollFlags::HUP) && !events.contains(PollFlags::IN)
        }
        _ => false,
    }
}
