//! The local terminal of a command: signals, keys, and the terminal mode.
//!
//! Opened before the first connection, so that the user can leave in every state.
//!
//! ```text
//! connecting: unbuffered keys, Ctrl-C interrupts ─▶ following: raw mode ─▶ original mode restored
//! ```

use std::io::{self, IsTerminal};

use exec_server_os::RawMode;

use super::detach_keys::DetachKeys;
use super::escapes::{self, Escape};
use super::failure::Failure;
use super::input_queue::{InputQueue, LocalKeys, Typed};
use super::output;
use super::signals::{self, ClientSignal, Signals};

/// Owner of the signal handlers, the stdin queue and the terminal mode.
pub struct Console {
    pub signals: Signals,
    /// None while stdin is not read.
    pub input: Option<InputQueue>,
    mode: Option<RawMode>,
    keys: LocalKeys,
    can_detach: bool,
}

impl Console {
    /// Installs the signal handlers; stdin is not read yet.
    pub fn open(keys: LocalKeys) -> Result<Self, Failure> {
        let signals = Signals::take()
            .map_err(|source| Failure::local("could not install signal handlers", source))?;
        Ok(Self { signals, input: None, mode: None, keys, can_detach: true })
    }

    /// Starts to read keys; returns false if stdin is not a terminal.
    pub fn read_keys(&mut self) -> Result<bool, Failure> {
        if !io::stdin().is_terminal() {
            return Ok(false);
        }
        if self.mode.is_none() {
            self.mode = Some(RawMode::enter_keys().map_err(unusable)?);
        }
        self.input.get_or_insert_with(|| InputQueue::keys(self.keys.clone()));
        Ok(true)
    }

    /// Turns the detach keys off, so that they reach the process; returns whether any were set.
    pub fn forbid_detach(&mut self) -> bool {
        self.can_detach = false;
        let had_keys = !self.keys.detach.is_none();
        self.keys.detach = DetachKeys::none();
        if let Some(input) = &mut self.input {
            input.forbid_detach();
        }
        had_keys
    }

    /// False on servers that do not keep detached processes.
    pub fn can_detach(&self) -> bool {
        self.can_detach
    }

    /// Starts to read stdin without looking for local keys.
    pub fn read_pipe(&mut self) {
        self.input.get_or_insert_with(InputQueue::pipe);
    }

    /// Stops reading stdin and restores the terminal mode.
    pub fn leave_stdin(&mut self) {
        self.input = None;
        self.mode = None;
    }

    /// Switches the terminal to raw mode; returns false if stdin is not a terminal.
    pub fn go_raw(&mut self) -> Result<bool, Failure> {
        if !self.read_keys()? {
            return Ok(false);
        }
        let mode = self.mode.as_mut().expect("read_keys set the mode");
        mode.make_raw().map_err(unusable)?;
        Ok(true)
    }

    /// Restores the original terminal mode.
    pub fn restore(&mut self) {
        self.mode = None;
    }

    /// Suspends this client with SIGTSTP, and returns to raw mode after SIGCONT.
    pub fn suspend(&mut self) -> Result<(), Failure> {
        self.mode = None;
        signals::stop_self();
        self.go_raw().map(|_| ())
    }

    /// The text that `~?` prints.
    pub fn help(&self) -> String {
        escapes::help(self.keys.escape)
    }

    /// Waits for `what`; a signal or an escape key ends the wait, and `left` is the message for the escape key.
    pub async fn wait_for<T, E: Into<Failure>>(
        &mut self,
        left: &str,
        what: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Failure> {
        tokio::pin!(what);
        loop {
            tokio::select! {
                biased;
                wanted = self.signals.next() => if wanted != ClientSignal::Resize {
                    return Err(Failure::Interrupted(wanted.exit_code()));
                },
                typed = next(&mut self.input), if self.input.is_some() => match typed {
                    Typed::Escape(Escape::Leave | Escape::Detach) => {
                        return Err(Failure::Left(left.to_owned()));
                    }
                    Typed::Escape(Escape::Help) => output::print_stderr(&format!("exec-server: {}\n", self.help())),
                    Typed::Escape(Escape::Suspend) => {
                        self.mode = None;
                        signals::stop_self();
                        self.read_keys()?;
                    }
                    Typed::More | Typed::Dropped | Typed::End => {}
                },
                result = &mut what => return result.map_err(E::into),
            }
        }
    }
}

/// The next input event; pending forever if no input is wanted.
pub async fn next(input: &mut Option<InputQueue>) -> Typed {
    match input {
        Some(input) if input.wants_more() => input.next().await,
        _ => std::future::pending().await,
    }
}

fn unusable(source: io::Error) -> Failure {
    Failure::local("could not use the terminal", source)
}
