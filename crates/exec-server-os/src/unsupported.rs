//! Other platforms: the server runs, and every feature that only Linux has returns an error.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::task::{Context, Poll};

use exec_server_protocol::process::{ProcessSignal, TerminalSize};

use crate::inherited::{InheritedListener, InheritedListenerError};
use crate::limits::Means;
use crate::peer::{Peer, PeerPlace};
use crate::spawn::{ExitStatus, SpawnError, SpawnRequest, Spawned};
use crate::{Guardian, Leftovers, TreeTag};

/// The error for a feature that this platform does not have.
pub fn unsupported<T>(what: &str) -> io::Result<T> {
    let reason = format!("{what} is not supported on {} yet", std::env::consts::OS);
    Err(io::Error::new(io::ErrorKind::Unsupported, reason))
}

/// Declares types of which no value exists on this platform; their methods are never called.
#[doc(hidden)]
#[macro_export]
macro_rules! never_made {
    ($($type:ident { $($methods:tt)* })*) => {$(
        /// No value of this type exists on this platform.
        #[derive(Debug)]
        pub enum $type {}

        impl $type {
            $crate::never_made! { @methods $($methods)* }
        }
    )*};
    (@methods) => {};
    (@methods fn $name:ident(&$self:ident $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?; $($rest:tt)*) => {
        /// Never called.
        pub fn $name(&$self $(, $arg: $kind)*) $(-> $result)? {
            $(let _ = $arg;)*
            match *$self {}
        }
        $crate::never_made! { @methods $($rest)* }
    };
    (@methods fn $name:ident(&mut $self:ident $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?; $($rest:tt)*) => {
        /// Never called.
        pub fn $name(&mut $self $(, $arg: $kind)*) $(-> $result)? {
            $(let _ = $arg;)*
            match *$self {}
        }
        $crate::never_made! { @methods $($rest)* }
    };
    (@methods fn $name:ident($self:ident $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?; $($rest:tt)*) => {
        /// Never called.
        pub fn $name($self $(, $arg: $kind)*) $(-> $result)? {
            $(let _ = $arg;)*
            match $self {}
        }
        $crate::never_made! { @methods $($rest)* }
    };
}

never_made! {
    CgroupParent {}
    HeldSignals {}
    ExitWatch {
        fn poll_exit(&self, cx: &mut Context<'_>) -> Poll<io::Result<ExitStatus>>;
        fn release_mounts(&self);
    }
    ServerRecord {
        fn end_leftovers(&self) -> io::Result<Leftovers>;
    }
    RawMode {
        fn make_raw(&mut self) -> io::Result<()>;
    }
    ChildOutput {
        fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
        fn read_now(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>>;
    }
    ChildInput {
        fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;
        fn resize(&self, size: TerminalSize) -> io::Result<()>;
    }
    ProcessTree {
        fn handle_root_reaped(&mut self);
        fn signal(&self, signal: i32) -> io::Result<usize>;
        fn had_oom_kill(&self) -> Option<bool>;
        fn kill_pass(&self) -> usize;
        fn is_empty(&self) -> bool;
    }
}

impl CgroupParent {
    /// Fails.
    pub fn open(_path: &Path) -> io::Result<Self> {
        unsupported("a cgroup")
    }

    /// There is none.
    pub fn delegated() -> Option<Self> {
        None
    }
}

impl HeldSignals {
    /// Fails.
    pub fn hold() -> io::Result<Self> {
        unsupported("a command in the foreground")
    }
}

impl ServerRecord {
    /// No process outlives its server, so there is nothing to record.
    pub fn enter(_dir: &Path) -> io::Result<Option<(Self, Leftovers)>> {
        Ok(None)
    }
}

impl RawMode {
    /// Fails.
    pub fn enter() -> io::Result<Self> {
        unsupported("a terminal in raw mode")
    }

    /// Fails.
    pub fn enter_keys() -> io::Result<Self> {
        unsupported("a terminal in raw mode")
    }
}

/// Counts nothing.
#[derive(Debug, Default)]
pub struct OomCounter;

impl OomCounter {
    /// Out-of-memory kills are not reported.
    pub fn take_kill(&self) -> bool {
        false
    }
}

/// Identifies no peer.
#[derive(Debug, Default)]
pub struct Peers;

impl Peers {
    /// There are no user ids to compare.
    pub fn own_uid() -> u32 {
        0
    }

    /// Only tells this machine from others.
    pub fn of_tcp(&self, peer: SocketAddr, _local: SocketAddr) -> Peer {
        let is_local = peer.ip().to_canonical().is_loopback();
        let place = if is_local { PeerPlace::Unknown } else { PeerPlace::Remote };
        Peer { uid: None, place }
    }

    /// Unknown.
    #[cfg(unix)]
    pub fn of_unix(&self, _socket: std::os::fd::BorrowedFd) -> Peer {
        Peer { uid: None, place: PeerPlace::Unknown }
    }
}

/// Starts nothing.
#[derive(Debug, Clone)]
pub struct Spawner;

impl Spawner {
    /// Succeeds, so that a server without processes can run.
    pub fn new(_cgroup: Option<CgroupParent>) -> io::Result<Self> {
        Ok(Self)
    }

    /// Fails.
    pub async fn spawn(&self, _request: SpawnRequest) -> Result<Spawned, SpawnError> {
        unsupported("starting processes")
            .map_err(|source| SpawnError::Prepare { step: "platform", cause: source })
    }

    /// No limit can be enforced.
    pub fn limit_means(&self) -> Means {
        Means::default()
    }

    /// There are no cgroups.
    pub fn sweep_cgroups(&self) {}
}

/// There is no guardian: this process is the server.
pub fn enter_guardian(_clean_up: impl FnOnce()) -> io::Result<Guardian> {
    Ok(Guardian::Server)
}

/// The signal that asks a process to exit.
pub const SIGTERM: i32 = 15;
/// The signal that kills a process.
pub const SIGKILL: i32 = 9;

/// No signal is ever sent.
pub fn signal_number(_signal: ProcessSignal) -> i32 {
    0
}

/// The number as text.
pub fn signal_name(signal: i32) -> String {
    format!("SIG{signal}")
}

/// Unknown.
pub fn errno_name(_error: &io::Error) -> Option<&'static str> {
    None
}

/// The error for a denied access.
pub fn access_denied() -> io::Error {
    io::ErrorKind::PermissionDenied.into()
}

/// Unknown without reading.
pub fn stdin_is_empty() -> bool {
    false
}

/// Unknown.
pub fn terminal_size() -> Option<TerminalSize> {
    None
}

/// No service manager passes a socket.
pub fn inherited_listener() -> Result<Option<InheritedListener>, InheritedListenerError> {
    Ok(None)
}

never_made! {
    NotifySocket {
        fn send(&self, message: &[u8]) -> io::Result<()>;
    }
}

impl NotifySocket {
    /// There is no service manager.
    pub fn from_environment() -> io::Result<Option<Self>> {
        Ok(None)
    }
}

/// There is no watchdog.
pub fn watchdog_interval() -> Option<std::time::Duration> {
    None
}

/// There are no orphans.
pub fn prepare_to_adopt() -> io::Result<()> {
    Ok(())
}

/// There are no orphans.
pub fn reap_orphans() -> bool {
    false
}

/// There are no trees.
pub fn end_all_trees(_is_mine: impl Fn(TreeTag) -> bool) -> usize {
    0
}

/// There are no stop signals.
pub fn ignore_stops() {}

/// No other users.
pub fn can_change_users() -> bool {
    false
}

/// Memory is as open as the system leaves it.
pub fn conceal_memory() {}

/// There is no such limit.
pub fn survive_file_size_limit() {}

/// There is no such limit.
pub fn raise_open_file_limit() {}

/// A limit that every system has.
pub fn open_file_limit() -> u64 {
    1024
}

/// The allocator decides what it returns.
pub fn release_free_memory() {}

/// The allocator is left as it is.
pub fn tune_allocator() {}
