//! Turns the `sandbox` object of a request and the files on this disk into the set-up of a sandbox.
//!
//! | module | purpose |
//! |---|---|
//! | `policy_cache` | compiled policies of file requests |
//! | `writable_roots` | directories that any sandbox of this server could write |
//! | `deny_matches` | existing paths that deny patterns match |
//! | `git_directories` | directories that a `.git` file points to |
//! | `missing_paths`, `placeholders` | names that do not exist yet and must not be created |
//! | `services`, `secrets` | sockets and files that are hidden from every sandbox |
//!
//! A policy is compiled without reading the disk. Only the confinement of a process (its mounts and the placeholders for
//! protected names) depends on the files that exist at that moment.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exec_server_fs::{PathIdentity, identity_from_cache, identity_of};
use exec_server_os::spawn::SpawnError;
use exec_server_protocol::fs::SandboxText;
use exec_server_protocol::params;
use exec_server_protocol::path_uri::{NativePaths, PathUri};
use exec_server_protocol::sandbox::{
    Network as NetworkPermission, PermissionProfile, SandboxParams,
};
use serde_json::Value;

use crate::policy::{
    Access, Allowances, BeyondLandlock, FilePolicy, FileRules, HostFacts, Policy, PolicyError,
    can_hold, compile,
};
use crate::{
    Base, MOST_WORK, Mechanism, MountAccess, MountRule, Network, PlaceholderJournal, RootfsSpec,
    SandboxSetup, WorkClock, check_writable_root,
};

mod deny_matches;
mod git_directories;
mod missing_paths;
mod placeholders;
mod policy_cache;
mod secrets;
mod services;
mod writable_roots;

use missing_paths::LongestPrefix;
pub use placeholders::Placeholder;
use placeholders::Placeholders;
pub use policy_cache::FilesPolicy;
use policy_cache::PolicyCache;
use secrets::Secrets;
use services::Services;
use writable_roots::WritableRoots;

/// State that all sandboxes of a server share.
#[derive(Debug)]
pub struct Sandboxes {
    facts: HostFacts,
    /// The kernel mechanism that enforces policies.
    mechanism: Mechanism,
    /// Permissions beyond the default, granted by the operator.
    allow: Allowances,
    handed_out: WritableRoots,
    placeholders: Arc<Placeholders>,
    known: PolicyCache,
    services: Services,
    secrets: Secrets,
    /// The unix socket on which this server listens.
    own_socket: Option<PathBuf>,
}

/// Why a policy cannot be planned on this machine.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The `sandbox` object is malformed.
    #[error("{0}")]
    Params(String),
    /// The policy is invalid or names paths of another operating system.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The policy needs namespaces, and the server uses Landlock alone.
    #[error("Landlock alone is not enough, because {0}")]
    BeyondLandlock(BeyondLandlock),
    /// The pattern has too many matches or candidates; enforcing only some of them would leave gaps.
    #[error("a sandbox pattern {0}")]
    PatternTooWide(&'static str),
    /// Resolving the paths and patterns of the policy exceeds the CPU time limit.
    #[error("resolving the sandbox policy takes more than {} s of CPU time", MOST_WORK.as_secs())]
    TooCostly,
    /// A file or directory could not be prepared.
    #[error("could not set up the sandbox ({step})")]
    SetUp {
        /// The step that failed.
        step: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}

/// Settings of the sandboxes of a server.
#[derive(Debug)]
pub struct SandboxSettings<'a> {
    /// Whether a policy may contain native paths such as `/a/b` beside URIs.
    pub native_paths: NativePaths,
    /// The kernel mechanism that enforces policies.
    pub mechanism: Mechanism,
    /// Permissions beyond the default, granted by the operator.
    pub allow: Allowances,
    /// State directory of the user's servers.
    pub state_dir: Option<&'a Path>,
    /// Journal of the placeholders of the user's servers.
    pub journal: PlaceholderJournal,
    /// Files with tokens and keys of this server, hidden in every sandbox.
    pub secret_files: &'a [PathBuf],
    /// The unix socket on which this server listens.
    pub own_socket: Option<&'a Path>,
}

/// File access of a sandboxed process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Read only; needs no placeholders.
    Read,
    /// May write, or run a program that may write.
    Write,
}

/// Sandbox set-up of one process, with the placeholders that must exist as long as the process runs.
#[derive(Debug)]
pub struct Confinement {
    /// Input of the launcher.
    pub setup: SandboxSetup,
    /// Keep missing protected names from being created; removed on drop.
    pub placeholders: Vec<Placeholder>,
}

/// Limits the retries of a start that fails because a protected name has just disappeared: a server of another user may
/// remove its placeholder, or another process may replace a directory.
#[derive(Debug, Default)]
pub struct RetryBudget {
    tries: u32,
}

impl RetryBudget {
    /// Whether the start should be retried with a new confinement.
    pub fn allows_another_try(&mut self, error: &SpawnError) -> bool {
        const MAX_TRIES: u32 = 8;
        let SpawnError::Sandbox { cause: source, .. } = error else { return false };
        self.tries += 1;
        source.kind() == io::ErrorKind::NotFound && self.tries < MAX_TRIES
    }
}

impl Sandboxes {
    /// The kernel mechanism that enforces policies.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Gathers the facts about this machine once.
    pub fn new(settings: SandboxSettings) -> Self {
        let SandboxSettings { native_paths, mechanism, allow, state_dir, .. } = settings;
        let SandboxSettings { secret_files, own_socket, journal, .. } = settings;
        Self {
            facts: HostFacts::gather(native_paths),
            mechanism,
            allow,
            handed_out: WritableRoots::default(),
            placeholders: Placeholders::new(journal),
            known: PolicyCache::default(),
            services: Services::of_environment(|name| std::env::var_os(name)),
            secrets: Secrets::new(secret_files, state_dir, |name| std::env::var_os(name)),
            own_socket: own_socket.map(Path::to_owned),
        }
    }

    /// Removes placeholders that killed servers have left behind, on a blocking thread.
    pub fn sweep_later(&self) {
        let placeholders = self.placeholders.clone();
        tokio::task::spawn_blocking(move || placeholders.sweep());
    }

    /// Compiles the policy of a process; `None` if it has no sandbox or an external one.
    pub fn for_process(
        &self,
        sandbox: Option<&Value>,
        cwd: &PathUri,
    ) -> Result<Option<Policy>, PlanError> {
        let sandbox = decode(sandbox)?.map(|sandbox| sandbox.with_default_cwd(cwd));
        self.policy_of(sandbox)
    }

    /// Compiles the policy of a file request; `None` if file access is unrestricted or confined externally.
    pub fn for_files(
        &self,
        sandbox: Option<&SandboxText>,
    ) -> Result<Option<Arc<FilesPolicy>>, PlanError> {
        let Some(text) = sandbox.map(SandboxText::as_str) else { return Ok(None) };
        self.known.get(text, || {
            let sandbox: Value = params::decode(text).map_err(PlanError::Params)?;
            let policy = self.policy_of(decode(Some(&sandbox))?)?;
            Ok(policy.filter(|policy| policy.files != FilePolicy::Unrestricted))
        })
    }

    /// The network access of a request that the server itself executes; an external sandbox does not cover the server.
    pub fn network(&self, sandbox: Option<&SandboxText>) -> Result<NetworkPermission, PlanError> {
        let Some(text) = sandbox.map(SandboxText::as_str) else {
            return Ok(NetworkPermission::Enabled);
        };
        let sandbox: Value = params::decode(text).map_err(PlanError::Params)?;
        let Some(sandbox) = decode(Some(&sandbox))? else { return Ok(NetworkPermission::Enabled) };
        Ok(compile(&sandbox, &self.facts)?.network)
    }

    fn policy_of(&self, sandbox: Option<SandboxParams>) -> Result<Option<Policy>, PlanError> {
        let Some(sandbox) = sandbox else { return Ok(None) };
        match sandbox.permissions {
            PermissionProfile::Disabled
            | PermissionProfile::DangerFullAccess
            | PermissionProfile::External { .. }
            | PermissionProfile::ExternalSandbox { .. } => Ok(None),
            _ => Ok(Some(compile(&sandbox, &self.facts)?)),
        }
    }

    /// Confinement of a file worker under this policy; may block.
    ///
    /// A read-only worker gets no placeholders. The files that programs need to start are readable too.
    pub fn confine_worker(&self, policy: &Policy, class: Class) -> Result<Confinement, PlanError> {
        let mut confinement = self.confine_as(policy, class)?;
        confinement.setup.network = Network::Isolated;
        confinement.setup.allow = Allowances::default();
        let view = &mut confinement.setup.view;
        if view.base == Base::Nothing {
            show(view, &self.facts.minimal);
        }
        Ok(confinement)
    }

    /// Identities of the files at the policy's paths. A worker's mounts are made from them, so the worker is stale once
    /// one of them is replaced. May block.
    pub fn ground(&self, policy: &FilesPolicy) -> PathFingerprints {
        let look = |path: &Path| Some(identity_of(path));
        self.look_at_ground(policy, look).expect("identity_of always answers")
    }

    /// Like [`Self::ground`] without blocking; `None` if an answer is not cached.
    pub fn ground_from_cache(&self, policy: &FilesPolicy) -> Option<PathFingerprints> {
        self.look_at_ground(policy, identity_from_cache)
    }

    fn look_at_ground(
        &self,
        policy: &FilesPolicy,
        look: impl Fn(&Path) -> Option<Option<PathIdentity>>,
    ) -> Option<PathFingerprints> {
        let look = |path| if self.placeholders.stands_at(path) { Some(None) } else { look(path) };
        policy.places().map(look).collect()
    }

    /// Confinement of a process under this policy and the files that exist now; may block.
    pub fn confine(&self, policy: &Policy) -> Result<Confinement, PlanError> {
        self.confine_as(policy, Class::Write)
    }

    fn confine_as(&self, policy: &Policy, class: Class) -> Result<Confinement, PlanError> {
        if self.mechanism == Mechanism::Landlock {
            let names = can_hold(policy).map_err(PlanError::BeyondLandlock)?;
            if let Some(there) = names.into_iter().find(|name| name.symlink_metadata().is_ok()) {
                let why = BeyondLandlock::CarveOut(there);
                return Err(PlanError::BeyondLandlock(why));
            }
        }
        let network = match policy.network {
            NetworkPermission::Restricted => Network::Isolated,
            NetworkPermission::Enabled => Network::Host,
        };
        let mut view = RootfsSpec::new(Base::Everything);
        let mut held = Vec::new();
        match &policy.files {
            FilePolicy::Unrestricted => view.places.push(writable(Path::new("/"))),
            FilePolicy::Restricted(rules) => {
                self.restrict(rules, class, &mut view, &mut held)?;
                if network == Network::Host {
                    self.hide_services(rules, &mut view);
                }
            }
        }
        view.handed_out = self.handed_out.all().to_vec();
        if network == Network::Host {
            view.places.extend(self.own_socket().as_deref().map(denied));
        }
        // Landlock cannot deny a path inside a readable directory; the report of the start lists this.
        if self.mechanism == Mechanism::Namespaces {
            self.secrets.deny_in(&mut view);
        }
        let setup = SandboxSetup { view, network, mechanism: self.mechanism, allow: self.allow };
        Ok(Confinement { setup, placeholders: held })
    }

    fn restrict(
        &self,
        rules: &FileRules,
        class: Class,
        view: &mut RootfsSpec,
        held: &mut Vec<Placeholder>,
    ) -> Result<(), PlanError> {
        if rules.full_disk() == Access::None {
            view.base = Base::Nothing;
        }
        let clock = WorkClock::start();
        let mut roots = BTreeMap::new();
        for (path, access) in rules.places() {
            clock.check().map_err(|_| PlanError::TooCostly)?;
            match access {
                Access::Write => {
                    if let Some(root) = self.hand_out(path)? {
                        view.places.push(writable(&root));
                        roots.insert(path, root);
                    }
                }
                Access::Read if path == Path::new("/") => {}
                Access::Read => view.places.push(read_only(path)),
                Access::None => view.places.push(denied(path)),
            }
        }
        show(view, rules.minimal());
        let matches = deny_matches::matches(rules.deny_globs(), &clock)?;
        for protected in rules.protected_names() {
            clock.check().map_err(|_| PlanError::TooCostly)?;
            let named = git_directories::named_by(&protected.root.join(protected.name));
            if named.is_empty() {
                continue;
            }
            // Any process may have written the `.git` file, so it only makes writable paths read-only and reveals nothing.
            let innermost = LongestPrefix::of(view);
            let is_narrowed = |path: &&PathBuf| {
                innermost.access(path) == Some(MountAccess::Writable)
                    && !matches.iter().any(|denied| path.starts_with(denied))
            };
            let narrowed: Vec<_> = named.iter().filter(is_narrowed).collect();
            view.places.extend(narrowed.into_iter().map(|path| read_only(path)));
        }
        // Without mounts a placeholder protects nothing.
        if class == Class::Write && self.mechanism == Mechanism::Namespaces {
            self.hold_names(rules, &roots, view, held).map_err(set_up("placeholder"))?;
            missing_paths::hold(&self.placeholders, view, held, &clock)?;
        }
        view.places.extend(matches.iter().map(|path| denied(path)));
        Ok(())
    }

    /// Creates placeholders at missing protected names, so that every name can be mounted read-only.
    fn hold_names(
        &self,
        rules: &FileRules,
        roots: &BTreeMap<&Path, PathBuf>,
        view: &mut RootfsSpec,
        held: &mut Vec<Placeholder>,
    ) -> io::Result<()> {
        let protected = rules.protected_names();
        let mut wanted: BTreeMap<&Path, Vec<&OsStr>> = BTreeMap::new();
        for it in &protected {
            wanted.entry(it.root).or_default().push(OsStr::new(it.name));
        }
        for (known_as, names) in &wanted {
            // Use the checked root and not its path, where a sandbox may have created a link since.
            let Some(root) = roots.get(known_as) else { continue };
            held.extend(self.placeholders.take(root, known_as, names)?);
        }
        let protected = protected.iter().map(|it| it.root.join(it.name));
        let is_needed = |path: &PathBuf| self.placeholders.stands_at(path) || path.exists();
        view.needed = protected.filter(is_needed).collect();
        Ok(())
    }

    /// Hides sockets of services; called only with the host's network, because an isolated sandbox cannot connect.
    fn hide_services(&self, rules: &FileRules, view: &mut RootfsSpec) {
        let hidden = self.services.hidden().filter(|path| rules.access(path) != Access::Write);
        view.masked.extend(hidden.map(Path::to_owned));
        if view.base == Base::Everything {
            show(view, &self.services.needed());
        }
    }

    /// The real path of the server's socket. A client of it could start a process without a sandbox, so it is denied even if
    /// the policy restricts no file.
    fn own_socket(&self) -> Option<PathBuf> {
        let path = self.own_socket.as_deref()?;
        Some(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
    }

    /// Checks a writable root and records it; `None` if it does not exist or is inside a secret path.
    fn hand_out(&self, path: &Path) -> Result<Option<PathBuf>, PlanError> {
        if self.secrets.hold(path) {
            return Ok(None);
        }
        loop {
            let before = self.handed_out.all();
            match check_writable_root(path, &before) {
                // A sandbox that was started concurrently could have created a link on the way, so check again.
                Ok(root) if !self.handed_out.add(&root, &before) => {}
                Ok(root) => return Ok(Some(root)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(set_up("writable root")(error)),
            }
        }
    }
}

fn decode(sandbox: Option<&Value>) -> Result<Option<SandboxParams>, PlanError> {
    let Some(sandbox) = sandbox.filter(|sandbox| !sandbox.is_null()) else { return Ok(None) };
    serde::Deserialize::deserialize(sandbox)
        .map(Some)
        .map_err(|error: serde_json::Error| PlanError::Params(error.to_string()))
}

/// Identity of the file at each path of a policy; `None` if it is missing.
pub type PathFingerprints = Vec<Option<PathIdentity>>;

/// Makes files that programs need readable, except those inside denied paths: a rule there would reopen them.
fn show(view: &mut RootfsSpec, needed: &[PathBuf]) {
    let innermost = LongestPrefix::of(view);
    let is_denied = |path: &Path| innermost.access(path) == Some(MountAccess::Denied);
    let is_open = |path: &&PathBuf| {
        !is_denied(path) && !path.canonicalize().is_ok_and(|real| is_denied(&real))
    };
    let open: Vec<_> = needed.iter().filter(is_open).map(|path| read_only(path)).collect();
    view.places.extend(open);
}

fn writable(path: &Path) -> MountRule {
    MountRule { path: path.to_owned(), access: MountAccess::Writable }
}

fn read_only(path: &Path) -> MountRule {
    MountRule { path: path.to_owned(), access: MountAccess::ReadOnly }
}

fn denied(path: &Path) -> MountRule {
    MountRule { path: path.to_owned(), access: MountAccess::Denied }
}

fn set_up(step: &'static str) -> impl Fn(io::Error) -> PlanError {
    move |source| PlanError::SetUp { step, source }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
