//! The terminal that this process was started on.

use std::io;

use exec_server_protocol::process::TerminalSize;
use rustix::stdio::{stderr, stdin, stdout};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The terminal passes every key on as it is; dropped, it is as it was before.
#[derive(Debug)]
pub struct RawMode {
    before: Termios,
}

impl RawMode {
    /// Fails if stdin is no terminal.
    pub fn enter() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        // What was typed before belongs to whoever reads from now on, so nothing is flushed.
        tcsetattr(stdin(), OptionalActions::Now, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // A terminal that was hung up has no settings to give back.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.before);
    }
}

/// The size of the terminal, if any standard stream is one.
pub fn terminal_size() -> Option<TerminalSize> {
    let size = tcgetwinsize(stdout())
        .or_else(|_| tcgetwinsize(stdin()))
        .or_else(|_| tcgetwinsize(stderr()))
        .ok()?;
    // A terminal that does not know its size says zero.
    (size.ws_row > 0 && size.ws_col > 0)
        .then_some(TerminalSize { rows: size.ws_row, cols: size.ws_col })
}
