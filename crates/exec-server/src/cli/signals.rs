//! Signals of this client that are forwarded to the remote process.

use std::io;

use exec_server_protocol::process::ProcessSignal;

/// A signal that this client received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientSignal {
    /// Forwarded to the process.
    Signal(ProcessSignal),
    /// SIGWINCH: the terminal size changed.
    Resize,
}

impl ClientSignal {
    /// The exit code of a process that this signal terminated.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Signal(ProcessSignal::Hangup) => 129,
            Self::Signal(ProcessSignal::Interrupt) => 130,
            Self::Signal(ProcessSignal::Quit) => 131,
            Self::Signal(_) | Self::Resize => 143,
        }
    }
}

#[cfg(unix)]
pub use unix::{Signals, stop_self};

#[cfg(unix)]
mod unix {
    use tokio::signal::unix::{Signal, SignalKind, signal};

    use super::{ClientSignal, ProcessSignal, io};

    /// Stops this process until it is continued, as Ctrl-Z would.
    pub fn stop_self() {
        // Without job control the process continues at once.
        let _ =
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TSTP);
    }

    /// Receives signals instead of their default action.
    pub struct Signals {
        interrupt: Signal,
        terminate: Signal,
        quit: Signal,
        hangup: Signal,
        resize: Signal,
    }

    impl Signals {
        /// Installs the handlers.
        pub fn take() -> io::Result<Self> {
            Ok(Self {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
                quit: signal(SignalKind::quit())?,
                hangup: signal(SignalKind::hangup())?,
                resize: signal(SignalKind::window_change())?,
            })
        }

        /// Waits for the next signal.
        pub async fn next(&mut self) -> ClientSignal {
            let signal = tokio::select! {
                Some(()) = self.interrupt.recv() => ProcessSignal::Interrupt,
                Some(()) = self.terminate.recv() => ProcessSignal::Terminate,
                Some(()) = self.quit.recv() => ProcessSignal::Quit,
                Some(()) = self.hangup.recv() => ProcessSignal::Hangup,
                Some(()) = self.resize.recv() => return ClientSignal::Resize,
                else => std::future::pending().await,
            };
            ClientSignal::Signal(signal)
        }
    }
}

#[cfg(not(unix))]
/// Receives Ctrl-C instead of its default action.
pub struct Signals;

#[cfg(not(unix))]
/// Suspending is not supported here.
pub fn stop_self() {}

#[cfg(not(unix))]
impl Signals {
    /// Installs nothing yet; [`Signals::next`] installs the Ctrl-C handler.
    pub fn take() -> io::Result<Self> {
        Ok(Self)
    }

    /// Waits for Ctrl-C.
    pub async fn next(&mut self) -> ClientSignal {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        ClientSignal::Signal(ProcessSignal::Interrupt)
    }
}
