//! Signals that this process gets and another machine should feel.

use std::io;

use exec_server_protocol::process::ProcessSignal;

/// Something that a user or the system wants of us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Pass this on.
    Signal(ProcessSignal),
    /// The terminal has another size.
    Resize,
}

impl Wanted {
    /// What a shell reports for a process that died of it.
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
pub use unix::Signals;

#[cfg(unix)]
mod unix {
    use tokio::signal::unix::{Signal, SignalKind, signal};

    use super::{ProcessSignal, Wanted, io};

    /// Everything that arrives from now on, instead of ending us.
    pub struct Signals {
        interrupt: Signal,
        terminate: Signal,
        quit: Signal,
        hangup: Signal,
        resize: Signal,
    }

    impl Signals {
        /// Takes over from the system.
        pub fn take() -> io::Result<Self> {
            Ok(Self {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
                quit: signal(SignalKind::quit())?,
                hangup: signal(SignalKind::hangup())?,
                resize: signal(SignalKind::window_change())?,
            })
        }

        /// The next one.
        pub async fn next(&mut self) -> Wanted {
            let signal = tokio::select! {
                Some(()) = self.interrupt.recv() => ProcessSignal::Interrupt,
                Some(()) = self.terminate.recv() => ProcessSignal::Terminate,
                Some(()) = self.quit.recv() => ProcessSignal::Quit,
                Some(()) = self.hangup.recv() => ProcessSignal::Hangup,
                Some(()) = self.resize.recv() => return Wanted::Resize,
                else => std::future::pending().await,
            };
            Wanted::Signal(signal)
        }
    }
}

#[cfg(not(unix))]
/// Everything that arrives from now on, instead of ending us.
pub struct Signals;

#[cfg(not(unix))]
impl Signals {
    /// Takes over from the system.
    pub fn take() -> io::Result<Self> {
        Ok(Self)
    }

    /// The next one.
    pub async fn next(&mut self) -> Wanted {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        Wanted::Signal(ProcessSignal::Interrupt)
    }
}
