//! Other platforms: a policy can be compiled, and nothing enforces it, so every start in a sandbox returns an error.

use std::ffi::OsStr;
use std::future::Ready;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exec_server_fs::search::{PageText, SearchSpec};
use exec_server_fs::tree_watch::{WatchError, WatchSpec};
use exec_server_fs::{FsError, FsReply, FsRequest};
use exec_server_os::accounts::Credentials;
use exec_server_os::limits::{Means, SandboxMeans};
use exec_server_os::spawn::{ExitStatus, SpawnError, SpawnRequest};
use exec_server_os::{ExitWatch, HeldSignals, Spawner, TreeTag, never_made, unsupported};
use exec_server_protocol::process::SandboxReport;

use crate::children::{SandboxedChild, Watching, WorkerOutcome};
use crate::policy::Allowances;
use crate::probe::{Finding, LimitProbe, Probe};
use crate::setup::{Mechanism, SandboxSetup};

never_made! {
    PendingStart {}
    FileWorker {
        fn is_worn(&self) -> bool;
        fn search(&self, spec: SearchSpec) -> Ready<Result<PageText, FsError>>;
        fn next_page(&self) -> Ready<Result<PageText, FsError>>;
        fn watch(&self, spec: WatchSpec) -> Ready<Result<Watching, WatchError>>;
        fn await_changes(&self, seq: u64, wait: Duration) -> Ready<Result<bool, FsError>>;
        fn read_changes(&self, seq: u64) -> Ready<Result<String, FsError>>;
    }
    ConfinedFile {
        fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
        fn publish(self) -> Ready<Result<FsReply, FsError>>;
        fn discard(self) -> Ready<Result<FsReply, FsError>>;
    }
    PlaceholderClaim {
        fn give_up(&self, is_needed: impl Fn(&OsStr) -> bool) -> io::Result<()>;
        fn end(self) -> io::Result<()>;
    }
    PlaceholderDirectory {
        fn identity(&self) -> (u64, u64);
    }
}

impl FileWorker {
    /// Never called.
    pub async fn perform(self: &Arc<Self>, _request: FsRequest) -> Result<WorkerOutcome, FsError> {
        match **self {}
    }
}

impl PlaceholderClaim {
    /// Never called.
    pub fn hold<'a>(&mut self, _names: &[&'a OsStr]) -> io::Result<Vec<&'a OsStr>> {
        match *self {}
    }
}

impl PlaceholderDirectory {
    /// Fails.
    pub fn open(_path: &Path) -> io::Result<Option<Self>> {
        unsupported("a sandbox")
    }
}

/// Records nothing.
#[derive(Debug)]
pub struct PlaceholderJournal;

impl PlaceholderJournal {
    /// Needs nothing on disk.
    pub fn open(_dir: &Path) -> io::Result<Self> {
        Ok(Self)
    }

    /// The same.
    pub fn unshared() -> Self {
        Self
    }

    /// There is no directory.
    pub fn dir(&self) -> Option<&Path> {
        None
    }

    /// Never called.
    pub fn claim(&self, root: PlaceholderDirectory) -> io::Result<PlaceholderClaim> {
        match root {}
    }

    /// There are no placeholders.
    pub fn sweep(&self) {}
}

/// Counts nothing.
#[derive(Debug, Default)]
pub struct RefusedCalls;

impl RefusedCalls {
    /// No call is refused.
    pub fn count(&self) -> u64 {
        0
    }
}

/// There is no network to share.
#[derive(Debug, Clone, Default)]
pub struct SandboxNetwork;

/// Starts nothing.
#[derive(Debug, Clone)]
pub struct SandboxSpawner;

impl SandboxSpawner {
    /// Succeeds, so that a server without sandboxes can run.
    pub fn new(_spawner: Spawner) -> Self {
        Self
    }

    /// There is nothing to time.
    #[must_use]
    pub fn with_set_up_time(self, _set_up_time: Duration) -> Self {
        self
    }

    /// Fails.
    pub fn submit(
        &self,
        _request: SpawnRequest,
        _setup: SandboxSetup,
        _network: SandboxNetwork,
    ) -> Result<PendingStart, SpawnError> {
        no_sandbox()
    }

    /// Never called.
    pub async fn finish(&self, pending: PendingStart) -> Result<SandboxedChild, SpawnError> {
        match pending {}
    }

    /// No limit can be enforced.
    pub fn limit_means(&self, mechanism: Mechanism) -> Means {
        limit_means(mechanism)
    }

    /// Fails.
    pub async fn spawn_worker(
        &self,
        _setup: SandboxSetup,
        _network: SandboxNetwork,
        _user: Option<Credentials>,
        _tag: TreeTag,
    ) -> Result<(FileWorker, ExitWatch), SpawnError> {
        no_sandbox()
    }

    /// Fails.
    pub async fn spawn_user_worker(
        &self,
        _user: Option<Credentials>,
        _tag: TreeTag,
    ) -> Result<(FileWorker, ExitWatch), SpawnError> {
        no_sandbox()
    }
}

fn no_sandbox<T>() -> Result<T, SpawnError> {
    unsupported("a sandbox")
        .map_err(|source| SpawnError::Prepare { step: "platform", cause: source })
}

/// No limit can be enforced.
pub fn limit_means(_mechanism: Mechanism) -> Means {
    Means { sandbox: Some(SandboxMeans::default()), ..Means::default() }
}

/// Fails.
pub fn run_in_foreground(
    _request: &SpawnRequest,
    _setup: SandboxSetup,
    _signals: &HeldSignals,
) -> Result<ExitStatus, SpawnError> {
    no_sandbox()
}

/// None works, so the choice does not matter.
pub fn working_mechanism() -> Mechanism {
    Mechanism::default()
}

/// Fails.
pub fn sandbox_trial(_mechanism: Mechanism) -> Result<(), SpawnError> {
    no_sandbox()
}

/// Fails, so that nothing runs in a sandbox that is none.
pub fn check_writable_root(_path: &Path, _handed_out: &[PathBuf]) -> io::Result<PathBuf> {
    unsupported("a sandbox")
}

/// There is no zygote.
pub fn use_zygote_program(_path: &Path) -> io::Result<()> {
    Ok(())
}

/// Fails.
pub fn run_zygote() -> i32 {
    125
}

fn missing() -> Finding {
    let reason = "not supported on this platform yet";
    Finding::missing(reason, "run the server on Linux, or in a Linux VM")
}

/// Nothing works.
pub fn probe() -> Probe {
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

/// Nothing works.
pub fn probe_limits(_cgroup: Option<&Path>) -> LimitProbe {
    LimitProbe { memory: missing(), cpu: missing(), pids: missing(), sandbox_pids: missing() }
}

/// Nothing is enforced.
pub fn expected_sandbox(_mechanism: Mechanism, _allow: Allowances) -> SandboxReport {
    let missing = vec![std::env::consts::OS.to_owned()];
    SandboxReport { level: "none".to_owned(), enforced: Vec::new(), missing }
}

impl SandboxSetup {
    /// Nothing is enforced.
    pub fn report(&self) -> SandboxReport {
        expected_sandbox(self.mechanism, self.allow)
    }
}
