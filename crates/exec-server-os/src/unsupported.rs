//! What platforms without an implementation of their own answer: the server runs, and says that it cannot do this yet.

use std::io;

fn unsupported<T>(what: &str) -> io::Result<T> {
    let reason = format!("{what} is not supported on {} yet", std::env::consts::OS);
    Err(io::Error::new(io::ErrorKind::Unsupported, reason))
}

pub mod destination;

pub mod cgroup {
    //! Cgroups exist on Linux only.

    use std::io;
    use std::path::Path;

    /// There are no cgroups here.
    #[derive(Debug)]
    pub enum CgroupParent {}

    impl CgroupParent {
        /// Fails.
        pub fn open(_path: &Path) -> io::Result<Self> {
            super::unsupported("a cgroup")
        }

        /// None.
        pub fn delegated() -> Option<Self> {
            None
        }
    }

    pub mod probe {
        //! What could limit processes.

        use std::path::Path;

        use crate::probe::{Finding, LimitProbe};

        /// Nothing, so far.
        pub fn probe(_cgroup: Option<&Path>) -> LimitProbe {
            let missing = || {
                let reason = "not supported on this platform yet";
                Finding::missing(reason, "run the server on Linux, or in a Linux VM")
            };
            LimitProbe {
                memory: missing(),
                cpu: missing(),
                pids: missing(),
                sandbox_pids: missing(),
            }
        }
    }
}

pub mod exit_watch {
    //! Waiting for children.

    use std::io;
    use std::task::{Context, Poll};

    use crate::spawn::ExitStatus;

    /// Never made here.
    #[derive(Debug)]
    pub enum ExitWatch {}

    impl ExitWatch {
        /// Never called.
        pub fn poll_exit(&self, _cx: &mut Context) -> Poll<io::Result<ExitStatus>> {
            match *self {}
        }

        /// Never called.
        pub fn release_mounts(&self) {
            match *self {}
        }
    }
}

pub mod files {
    //! Files.

    use std::io;
    use std::path::Path;

    use exec_server_protocol::fs::FsWriteFileResponse;

    use crate::files::{FsError, FsReply, FsRequest, Leftovers};

    /// Never made here.
    #[derive(Debug)]
    pub enum OpenFile {}

    /// Never made here.
    #[derive(Debug)]
    pub enum StagedFile {}

    /// What a read may wait for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Blocking {
        /// Whatever it takes.
        Disk,
        /// Nothing: only what is in memory.
        None,
    }

    impl OpenFile {
        /// Never called.
        pub fn size(&self) -> u64 {
            match *self {}
        }

        /// Never called.
        pub fn version_tag(&self) -> io::Result<String> {
            match *self {}
        }

        /// Never called.
        pub fn read_pieces(
            &self,
            _offset: u64,
            _len: u64,
            _patience: Blocking,
            _take: impl FnMut(&[u8]),
        ) -> io::Result<u64> {
            match *self {}
        }
    }

    impl StagedFile {
        /// Never called.
        pub fn write_at(&self, _data: &[u8], _offset: u64) -> io::Result<()> {
            match *self {}
        }

        /// Never called.
        pub fn publish(self) -> Result<(FsWriteFileResponse, Leftovers), FsError> {
            match self {}
        }
    }

    /// Fails.
    pub fn perform(_request: FsRequest) -> Result<FsReply, FsError> {
        Ok(super::unsupported("access to files")?)
    }

    /// None.
    pub fn answer_from_cache(_request: &FsRequest) -> Option<Result<FsReply, FsError>> {
        None
    }

    /// None.
    pub fn decode_cursor(_cursor: &str) -> Option<Vec<u8>> {
        None
    }

    /// Which file a path names.
    pub type PathIdentity = ();

    /// None.
    pub fn identity_of(_path: &Path) -> Option<PathIdentity> {
        None
    }

    /// None.
    pub fn identity_from_cache(_path: &Path) -> Option<Option<PathIdentity>> {
        Some(None)
    }

    /// The error of a descriptor that was opened for the other direction.
    pub fn bad_descriptor() -> FsError {
        io::Error::from(io::ErrorKind::InvalidInput).into()
    }
}

pub mod tree_watch {
    //! Watches of trees.

    use std::io;
    use std::path::Path;
    use std::time::Duration;

    use crate::tree_watch::{Changes, WatchError};

    /// Never made here.
    #[derive(Debug)]
    pub enum TreeWatch {}

    impl TreeWatch {
        /// Fails.
        pub fn start(_: &Path, _: bool, _: Duration) -> Result<Self, WatchError> {
            Err(WatchError::Path(io::ErrorKind::Unsupported.into()))
        }

        /// Never called.
        pub fn directories(&self) -> u64 {
            match *self {}
        }

        /// Never called.
        pub fn skipped(&self) -> u64 {
            match *self {}
        }

        /// Never called.
        pub fn changes_after(&self, _: u64) -> Changes {
            match *self {}
        }

        /// Never called.
        pub async fn wait_after(&self, _: u64) {
            match *self {}
        }
    }
}

pub mod search {
    //! Searches of trees.

    use crate::files::FsError;
    use crate::search::{PageText, SearchSpec};

    /// Never made here.
    #[derive(Debug)]
    pub enum Search {}

    impl Search {
        /// Fails.
        pub fn start(_spec: SearchSpec) -> Result<Self, FsError> {
            Ok(super::unsupported("searches of trees")?)
        }

        /// Never called.
        pub fn next_page(&self) -> PageText {
            match *self {}
        }

        /// Never called.
        pub fn cancel(&self) {
            match *self {}
        }
    }
}

pub mod foreground {
    //! A command with the standard streams of this process.

    use std::io;

    use super::sandbox::Mechanism;
    use crate::spawn::{ExitStatus, SpawnError, SpawnRequest};

    /// Never made here.
    #[derive(Debug)]
    pub enum HeldSignals {}

    impl HeldSignals {
        /// Fails, and says why.
        pub fn hold() -> io::Result<Self> {
            super::unsupported("a sandbox")
        }
    }

    /// Nothing to ignore.
    pub fn ignore_stops() {}

    /// Never called.
    pub fn run_in_foreground(
        _request: &SpawnRequest,
        signals: &HeldSignals,
    ) -> Result<ExitStatus, SpawnError> {
        match *signals {}
    }

    /// None works, so it does not matter.
    pub fn working_mechanism() -> Mechanism {
        Mechanism::default()
    }

    /// Fails, and says why.
    pub fn sandbox_trial(_mechanism: Mechanism) -> Result<(), SpawnError> {
        let step = "platform";
        super::unsupported("a sandbox").map_err(|source| SpawnError::Prepare { step, source })
    }
}

pub mod own_terminal {
    //! The terminal that this process was started on.

    use std::io;

    use exec_server_protocol::process::TerminalSize;

    /// Never made here.
    #[derive(Debug)]
    pub enum RawMode {}

    impl RawMode {
        /// Fails, and says why.
        pub fn enter() -> io::Result<Self> {
            super::unsupported("a terminal in raw mode")
        }

        /// Fails, and says why.
        pub fn enter_keys() -> io::Result<Self> {
            super::unsupported("a terminal in raw mode")
        }

        /// Never called.
        pub fn make_raw(&mut self) -> io::Result<()> {
            match *self {}
        }
    }

    /// Not known without reading.
    pub fn stdin_is_empty() -> bool {
        false
    }

    /// Always unknown.
    pub fn terminal_size() -> Option<TerminalSize> {
        None
    }
}

pub mod guardian {
    //! The guardian.

    use std::io;

    /// Where [`enter_guardian`] returned.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Guardian {
        /// This is the server: go on.
        Server,
        /// This was the guardian and the server has ended with this code.
        Ended(i32),
    }

    /// There is no guardian here.
    pub fn enter_guardian(_clean_up: impl FnOnce()) -> io::Result<Guardian> {
        Ok(Guardian::Server)
    }
}

pub mod peer {
    //! The system is not asked for the process at the other end of a connection.

    use std::net::SocketAddr;

    use crate::peer::{Peer, PeerPlace};

    /// Identifies no peer.
    #[derive(Debug, Default)]
    pub struct Peers;

    impl Peers {
        /// There are no user ids to compare.
        pub fn own_uid() -> u32 {
            0
        }

        /// Not known.
        pub fn of_tcp(&self, peer: SocketAddr, _local: SocketAddr) -> Peer {
            let is_local = peer.ip().to_canonical().is_loopback();
            let place = if is_local { PeerPlace::Unknown } else { PeerPlace::Remote };
            Peer { uid: None, place }
        }

        /// Not known.
        #[cfg(unix)]
        pub fn of_unix(&self, _socket: std::os::fd::BorrowedFd) -> Peer {
            Peer { uid: None, place: PeerPlace::Unknown }
        }
    }
}

pub mod leftovers {
    //! What servers that were killed left behind.

    use std::io;
    use std::path::Path;

    /// This server's place among the servers of a user.
    #[derive(Debug)]
    pub enum ServerRecord {}

    /// What a look for leftovers came to.
    #[derive(Debug, Default, Clone, PartialEq, Eq)]
    pub struct Leftovers {
        /// Processes that were ended.
        pub ended: usize,
        /// Processes that may belong to a running server.
        pub unclear: Vec<i32>,
    }

    impl ServerRecord {
        /// There are no processes here.
        pub fn enter(_dir: &Path) -> io::Result<Option<(Self, Leftovers)>> {
            Ok(None)
        }

        /// There are no processes here.
        pub fn end_leftovers(&self) -> io::Result<Leftovers> {
            match *self {}
        }
    }
}

pub mod placeholders {
    //! Directories that stand where a protected name is missing.

    use std::ffi::OsStr;
    use std::io;
    use std::path::Path;

    /// Knows nothing, because nothing is sandboxed here.
    #[derive(Debug)]
    pub struct Journal;

    /// Never made here.
    #[derive(Debug)]
    pub enum Claim {}

    /// Never made here.
    #[derive(Debug)]
    pub enum Directory {}

    impl Directory {
        /// Refuses.
        pub fn open(_path: &Path) -> io::Result<Option<Self>> {
            super::unsupported("a sandbox")
        }

        /// Never called.
        pub fn identity(&self) -> (u64, u64) {
            match *self {}
        }
    }

    impl Journal {
        /// Needs nothing on disk.
        pub fn open(_dir: &Path) -> io::Result<Self> {
            Ok(Self)
        }

        /// The same.
        pub fn unshared() -> Self {
            Self
        }

        /// Nowhere.
        pub fn dir(&self) -> Option<&Path> {
            None
        }

        /// Never called.
        pub fn claim(&self, root: Directory) -> io::Result<Claim> {
            match root {}
        }

        /// Nothing was made.
        pub fn sweep(&self) {}
    }

    impl Claim {
        /// Never called.
        pub fn hold<'a>(&mut self, _names: &[&'a OsStr]) -> io::Result<Vec<&'a OsStr>> {
            match *self {}
        }

        /// Never called.
        pub fn give_up(&self, _is_needed: impl Fn(&OsStr) -> bool) -> io::Result<()> {
            match *self {}
        }

        /// Never called.
        pub fn end(self) -> io::Result<()> {
            match self {}
        }
    }
}

pub mod missing_watch {
    //! Stub of the missing-path watch.

    use std::io;
    use std::path::{Path, PathBuf};

    use crate::missing_watch::NotWatched;

    /// Never made here.
    #[derive(Debug)]
    pub enum MissingWatch {}

    impl MissingWatch {
        /// Refuses, so that the client looks for itself.
        pub fn new(_missing: &[PathBuf], _present: Option<&Path>) -> Result<Self, NotWatched> {
            super::unsupported("watching").map_err(NotWatched::Unavailable)
        }

        /// Never called.
        pub async fn changed(self) -> io::Result<()> {
            match self {}
        }
    }
}

pub mod oom {
    //! Out-of-memory kills.

    /// Counts nothing here.
    #[derive(Debug, Default)]
    pub struct OomCounter;

    impl OomCounter {
        /// Never known.
        pub fn take_kill(&self) -> bool {
            false
        }
    }
}

pub mod pipes {
    //! Streams of children.

    use std::io;
    use std::task::{Context, Poll};

    use exec_server_protocol::process::TerminalSize;

    /// Never made here.
    #[derive(Debug)]
    pub enum ChildOutput {}

    impl ChildOutput {
        /// Never called.
        pub fn poll_readable(&self, _cx: &mut Context) -> Poll<io::Result<()>> {
            match *self {}
        }

        /// Never called.
        pub fn read_now(&mut self, _buffer: &mut [u8]) -> io::Result<Option<usize>> {
            match *self {}
        }
    }

    /// Never made here.
    #[derive(Debug)]
    pub enum ChildInput {}

    impl ChildInput {
        /// Never called.
        pub fn poll_write(&self, _cx: &mut Context, _bytes: &[u8]) -> Poll<io::Result<usize>> {
            match *self {}
        }

        /// Never called.
        pub fn resize(&self, _size: TerminalSize) -> io::Result<()> {
            match *self {}
        }
    }
}

pub mod process_tree {
    //! Trees of processes.

    use std::io;

    /// Tells the descendants of one child from those of others.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct TreeTag(u32);

    impl TreeTag {
        /// The tag of child number `child` of this server.
        pub fn new(child: u32) -> Self {
            Self(child)
        }

        /// The number that the tag was made from.
        pub fn child(self) -> u32 {
            self.0
        }
    }

    /// Never made here.
    #[derive(Debug)]
    pub enum ProcessTree {}

    impl ProcessTree {
        /// Never called.
        pub fn handle_root_reaped(&mut self) {
            match *self {}
        }

        /// Never called.
        pub fn signal(&self, _signal: i32) -> io::Result<usize> {
            match *self {}
        }

        /// Never called.
        pub fn had_oom_kill(&self) -> Option<bool> {
            match *self {}
        }

        /// Never called.
        pub fn kill_pass(&self) -> usize {
            match *self {}
        }

        /// Never called.
        pub fn is_empty(&self) -> bool {
            match *self {}
        }
    }

    /// Nothing to prepare.
    pub fn prepare_to_adopt() -> io::Result<()> {
        Ok(())
    }

    /// There are none.
    pub fn reap_orphans() -> bool {
        false
    }

    /// There are none.
    pub fn end_all_trees(_is_mine: impl Fn(TreeTag) -> bool) -> usize {
        0
    }
}

pub mod sandbox {
    //! A policy can be compiled here, but nothing enforces it yet.

    use exec_server_protocol::process::SandboxReport;

    use self::rootfs::RootfsSpec;
    use crate::sandbox::Allowances;

    /// What would confine a process.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SandboxSetup {
        /// What of the file system it would see.
        pub view: RootfsSpec,
        /// What it would have of the network.
        pub network: Network,
        /// What would keep it closed.
        pub mechanism: Mechanism,
        /// What a command could do beyond the usual.
        pub allow: Allowances,
    }

    /// What keeps a sandbox closed.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub enum Mechanism {
        /// Namespaces and mounts.
        #[default]
        Namespaces,
        /// Landlock alone.
        Landlock,
    }

    /// What a sandbox has of the machine's network.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Network {
        /// Nothing but a loopback of its own.
        Isolated,
        /// All of it.
        Host,
    }

    /// Nothing will hold.
    pub fn expected(_mechanism: Mechanism, _allow: Allowances) -> SandboxReport {
        let missing = vec![std::env::consts::OS.to_owned()];
        SandboxReport { level: "none".to_owned(), enforced: Vec::new(), missing }
    }

    impl SandboxSetup {
        /// Nothing holds.
        pub fn report(&self) -> SandboxReport {
            let level = "none".to_owned();
            SandboxReport { level, enforced: Vec::new(), missing: Vec::new() }
        }
    }

    pub mod denials {
        //! What a sandbox has refused.

        /// Nothing runs in a sandbox here, so nothing is refused.
        #[derive(Debug, Default)]
        pub struct RefusedCalls;

        impl RefusedCalls {
            /// None.
            pub fn count(&self) -> u64 {
                0
            }
        }
    }

    pub mod launch {
        //! What starts sandboxed processes.

        use std::io;
        use std::path::Path;

        /// Without sandboxes it makes no difference.
        pub fn use_zygote_program(_path: &Path) -> io::Result<()> {
            Ok(())
        }
    }

    pub mod zygote {
        //! The process that sandboxed processes are started from.

        /// The hidden argument that makes this program a zygote.
        pub const ZYGOTE_ARGUMENT: &str = "--sandbox-zygote";

        /// Fails.
        pub fn run_zygote() -> i32 {
            125
        }
    }

    pub mod network {
        //! Networks of sandboxes.

        /// Nothing to share.
        #[derive(Debug, Clone, Default)]
        pub struct SandboxNetwork;
    }

    pub mod file_worker {
        //! Confined workers.

        use std::io;
        use std::sync::Arc;

        use crate::files::{FsError, FsReply, FsRequest};

        /// Never made here.
        #[derive(Debug)]
        pub enum FileWorker {}

        /// Never made here.
        #[derive(Debug)]
        pub enum ConfinedFile {}

        impl FileWorker {
            /// Never called.
            pub fn is_worn(&self) -> bool {
                match *self {}
            }

            /// Never called.
            pub async fn search(
                &self,
                _spec: crate::search::SearchSpec,
            ) -> Result<crate::search::PageText, FsError> {
                match *self {}
            }

            /// Never called.
            pub async fn next_page(&self) -> Result<crate::search::PageText, FsError> {
                match *self {}
            }

            /// Never called.
            pub async fn perform(
                self: &Arc<Self>,
                _request: FsRequest,
            ) -> Result<FsReply, FsError> {
                match **self {}
            }
        }

        impl ConfinedFile {
            /// Never called.
            pub fn write_at(&self, _data: &[u8], _offset: u64) -> io::Result<()> {
                match *self {}
            }

            /// Never called.
            pub async fn publish(self) -> Result<FsReply, FsError> {
                match self {}
            }

            /// Never called.
            pub async fn discard(self) -> Result<FsReply, FsError> {
                match self {}
            }
        }
    }

    pub mod probe {
        //! What this machine can enforce.

        use crate::probe::{Finding, Probe};

        /// Nothing, so far.
        pub fn probe() -> Probe {
            let missing = || {
                let reason = "not supported on this platform yet";
                Finding::missing(reason, "run the server on Linux, or in a Linux VM")
            };
            Probe {
                kernel_release: "unknown".to_owned(),
                user_namespaces: missing(),
                privileged_namespaces: missing(),
                proc_mount: missing(),
                max_user_namespaces: None,
                apparmor_restricts_user_namespaces: None,
                seccomp: missing(),
                seccomp_notify: missing(),
                landlock_abi: 0,
                landlock: missing(),
                landlock_missing: Vec::new(),
                cgroup: missing(),
            }
        }
    }

    pub mod view {
        //! What a sandbox would see.

        use std::io;
        use std::path::{Path, PathBuf};

        /// What of the file system a sandbox would see.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct RootfsSpec {
            /// What there is where no place says otherwise.
            pub base: Base,
            /// What differs from the base.
            pub places: Vec<MountRule>,
            /// The size limit of private memory.
            pub temp_bytes: u64,
            /// What is shown as empty.
            pub masked: Vec<PathBuf>,
            /// Other names of places.
            pub links: Vec<PathBuf>,
            /// Where other sandboxes may write.
            pub handed_out: Vec<PathBuf>,
            /// Always denied.
            pub sealed: Vec<PathBuf>,
            /// What must be there.
            pub needed: Vec<PathBuf>,
        }

        impl RootfsSpec {
            /// The bare base.
            pub fn new(base: Base) -> Self {
                let (places, masked, links, handed_out, sealed, needed) = Default::default();
                Self { base, places, temp_bytes: 0, masked, links, handed_out, sealed, needed }
            }
        }

        /// What there is where no place says otherwise.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Base {
            /// Everything, read-only.
            Everything,
            /// Nothing but places.
            Nothing,
        }

        /// A path with an access of its own.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct MountRule {
            /// Where.
            pub path: PathBuf,
            /// What.
            pub access: MountAccess,
        }

        /// What may be done at a place.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum MountAccess {
            /// Reading.
            ReadOnly,
            /// Reading and writing.
            Writable,
            /// Nothing.
            Denied,
        }

        /// Fails, so that nothing runs in a sandbox that is none.
        pub fn check_writable_root(_path: &Path, _handed_out: &[PathBuf]) -> io::Result<PathBuf> {
            crate::unsupported::unsupported("a sandbox")
        }
    }
}

pub mod signals {
    //! Signals and errors by name.

    use exec_server_protocol::process::ProcessSignal;

    /// The signal that asks a process to end.
    pub const SIGTERM: i32 = 15;
    /// The signal that ends a process.
    pub const SIGKILL: i32 = 9;

    /// Never sent.
    pub fn number(_signal: ProcessSignal) -> i32 {
        0
    }

    /// A signal by its number.
    pub fn signal_name(signal: i32) -> String {
        format!("SIG{signal}")
    }

    /// Not known.
    pub fn errno_name(_error: &std::io::Error) -> Option<&'static str> {
        None
    }

    /// An error for what is not allowed.
    pub fn access_denied() -> std::io::Error {
        std::io::ErrorKind::PermissionDenied.into()
    }
}

pub mod spawner {
    //! Starting children.

    use std::io;

    use super::cgroup::CgroupParent;
    use super::exit_watch::ExitWatch;
    use super::process_tree::TreeTag;
    use super::sandbox::Mechanism;
    use super::sandbox::SandboxSetup;
    use super::sandbox::file_worker::FileWorker;
    use super::sandbox::netns::SandboxNetwork;
    use crate::limits::Means;
    use crate::spawn::{SpawnError, SpawnRequest, Spawned};

    /// Starts nothing here.
    #[derive(Debug, Clone)]
    pub struct Spawner;

    /// Nothing is ever being started.
    pub enum Submitted {}

    impl Spawner {
        /// Nothing to set up.
        pub fn new(_cgroup: Option<CgroupParent>) -> io::Result<Self> {
            Ok(Self)
        }

        /// Nothing to give up.
        #[must_use]
        pub fn with_set_up_time(self, _set_up_time: std::time::Duration) -> Self {
            self
        }

        /// Fails, and says why.
        pub async fn spawn(&self, request: SpawnRequest) -> Result<Spawned, SpawnError> {
            self.finish(self.submit(request)?).await
        }

        /// Fails, and says why.
        pub fn submit(&self, _request: SpawnRequest) -> Result<Submitted, SpawnError> {
            let step = "platform";
            match super::unsupported("starting processes") {
                Ok(submitted) => Ok(submitted),
                Err(source) => Err(SpawnError::Prepare { step, source }),
            }
        }

        /// There is nothing to wait for.
        pub async fn finish(&self, submitted: Submitted) -> Result<Spawned, SpawnError> {
            match submitted {}
        }

        /// Nothing.
        pub fn limit_means(&self, sandbox: Option<Mechanism>) -> Means {
            super::startup::limit_means(sandbox)
        }

        /// Nothing to sweep.
        pub fn sweep_cgroups(&self) {}

        /// Fails, and says why.
        pub async fn spawn_worker(
            &self,
            _setup: SandboxSetup,
            _network: SandboxNetwork,
            _tag: TreeTag,
        ) -> Result<(FileWorker, ExitWatch), SpawnError> {
            let step = "platform";
            match super::unsupported("a sandbox") {
                Ok(worker) => Ok(worker),
                Err(source) => Err(SpawnError::Prepare { step, source }),
            }
        }
    }
}

pub mod startup {
    //! Limits of the server itself.

    use super::sandbox::Mechanism;
    use crate::limits::{Means, SandboxMeans};

    /// Memory stays as open as the system leaves it.
    pub fn conceal_memory() {}

    /// Nothing to survive.
    pub fn survive_file_size_limit() {}

    /// Nothing to raise.
    pub fn raise_open_file_limit() {}

    /// What could hold limits for a command: nothing.
    pub fn limit_means(sandbox: Option<Mechanism>) -> Means {
        Means { sandbox: sandbox.map(|_| SandboxMeans::default()), ..Means::default() }
    }

    /// Nothing to tune.
    pub fn tune_allocator() {}
}
