//! From the `sandbox` of a request to what the kernel is told.
//!
//! A policy is decided upon without looking at the disk; only what confines a process (its view of the files, the
//! placeholders for protected names) is made from what is there at that moment.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use exec_server_os::files::{PathIdentity, identity_from_cache, identity_of};
use exec_server_os::sandbox::{
    Access, Allowances, BeyondLandlock, FilePolicy, FileRules, HostFacts, Policy, PolicyError,
    can_hold, compile,
};
use exec_server_os::spawn::{SpawnError, gave_up};
use exec_server_os::{
    Base, Mechanism, Network, Place, PlaceAccess, SandboxSetup, View, check_writable_root,
};
use exec_server_protocol::fs::SandboxText;
use exec_server_protocol::params;
use exec_server_protocol::path_uri::{NativePaths, PathUri};
use exec_server_protocol::sandbox::{
    Network as NetworkPermission, PermissionProfile, SandboxParams,
};
use serde_json::Value;

use crate::errors::RequestError;
use crate::state_dir;

mod git_directories;
mod globs;
mod handed_out;
mod known_policies;
mod missing_places;
mod network_users;
mod placeholders;
mod services;

use handed_out::HandedOut;
pub use known_policies::FilesPolicy;
use known_policies::KnownPolicies;
use missing_places::Innermost;
pub use network_users::NetworkUser;
use network_users::NetworkUsers;
pub use placeholders::Placeholder;
use placeholders::Placeholders;
use services::Services;

/// What all sandboxes of a server share.
#[derive(Debug)]
pub struct Sandboxes {
    facts: HostFacts,
    /// What keeps them closed.
    mechanism: Mechanism,
    /// What commands may do beyond the usual.
    allow: Allowances,
    handed_out: HandedOut,
    placeholders: Arc<Placeholders>,
    known: KnownPolicies,
    /// Those that share the machine's network.
    network_users: NetworkUsers,
    services: Services,
    /// Where this server listens, if that is in the file system.
    own_socket: Option<PathBuf>,
}

/// What sandboxes of a server depend on beside the machine.
#[derive(Debug)]
pub struct SandboxSettings<'a> {
    /// Whether `/a/b` is a path in a policy.
    pub native_paths: NativePaths,
    /// What keeps them closed.
    pub mechanism: Mechanism,
    /// What commands may do beyond the usual.
    pub allow: Allowances,
    /// Where servers of the user keep their state.
    pub state_dir: Option<&'a Path>,
    /// Where this server listens, if that is in the file system.
    pub own_socket: Option<&'a Path>,
}

/// What somebody in a sandbox wants to do with files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Only look.
    Read,
    /// Change something, or run a program that may.
    Write,
}

/// What confines one process, and what has to stay as long as it does.
#[derive(Debug)]
pub struct Confinement {
    /// What the launcher is told.
    pub setup: SandboxSetup,
    /// Names that stand where protected ones could be made.
    pub placeholders: Vec<Placeholder>,
    /// Held as long as the process shares the machine's network.
    pub network_user: Option<NetworkUser>,
}

/// How often a start is tried again because a name that must be protected has just gone: a server of another user
/// may remove its placeholder, or somebody may replace a directory.
#[derive(Debug, Default)]
pub struct Patience {
    tries: u32,
}

impl Patience {
    /// Whether the start should be tried again, with what is there now.
    pub fn allows_another_try(&mut self, error: &SpawnError) -> bool {
        const MAX_TRIES: u32 = 8;
        let SpawnError::Sandbox { source, .. } = error else { return false };
        self.tries += 1;
        source.kind() == io::ErrorKind::NotFound && self.tries < MAX_TRIES
    }
}

impl Sandboxes {
    /// What keeps sandboxes closed.
    pub fn mechanism(&self) -> Mechanism {
        self.mechanism
    }

    /// Looks at this machine once.
    pub fn new(settings: SandboxSettings) -> Self {
        let SandboxSettings { native_paths, mechanism, allow, state_dir, own_socket } = settings;
        Self {
            facts: HostFacts::gather(native_paths),
            mechanism,
            allow,
            handed_out: HandedOut::default(),
            placeholders: Placeholders::new(state_dir::journal(state_dir)),
            known: KnownPolicies::default(),
            network_users: NetworkUsers::default(),
            services: Services::of_environment(|name| std::env::var_os(name)),
            own_socket: own_socket.map(Path::to_owned),
        }
    }

    /// Removes what servers have left behind that ended too suddenly, on a thread that may wait.
    pub fn sweep_later(&self) {
        let placeholders = self.placeholders.clone();
        tokio::task::spawn_blocking(move || placeholders.sweep());
    }

    /// Whether a sandboxed process can have dialled the server itself.
    pub fn may_have_dialled(&self) -> bool {
        self.network_users.may_have_dialled(Instant::now())
    }

    /// What a process may touch; nothing if nobody confines it, or somebody else does.
    pub fn for_process(
        &self,
        sandbox: Option<&Value>,
        cwd: &PathUri,
    ) -> Result<Option<Policy>, RequestError> {
        let sandbox = decode(sandbox)?.map(|sandbox| sandbox.with_default_cwd(cwd));
        self.policy_of(sandbox)
    }

    /// What a request about files may touch; nothing if nobody confines it, or somebody else does.
    pub fn for_files(
        &self,
        sandbox: Option<&SandboxText>,
    ) -> Result<Option<Arc<FilesPolicy>>, RequestError> {
        let Some(text) = sandbox.map(SandboxText::as_str) else { return Ok(None) };
        self.known.get(text, || {
            let sandbox: Value = params::decode(text).map_err(RequestError::InvalidParams)?;
            let policy = self.policy_of(decode(Some(&sandbox))?)?;
            Ok(policy.filter(|policy| policy.files != FilePolicy::Unrestricted))
        })
    }

    fn policy_of(&self, sandbox: Option<SandboxParams>) -> Result<Option<Policy>, RequestError> {
        let Some(sandbox) = sandbox else { return Ok(None) };
        match sandbox.permissions {
            PermissionProfile::Disabled
            | PermissionProfile::DangerFullAccess
            | PermissionProfile::External { .. }
            | PermissionProfile::ExternalSandbox { .. } => Ok(None),
            _ => Ok(Some(compile(&sandbox, &self.facts)?)),
        }
    }

    /// What confines a worker for files under this policy; may block.
    ///
    /// Looking at files makes no placeholders, and what programs need to start can be looked at as well.
    pub fn confine_worker(
        &self,
        policy: &Policy,
        class: Class,
    ) -> Result<Confinement, RequestError> {
        let mut confinement = self.confine_as(policy, class)?;
        confinement.setup.network = Network::Isolated;
        confinement.setup.allow = Allowances::default();
        let view = &mut confinement.setup.view;
        if view.base == Base::Nothing {
            show(view, &self.facts.minimal);
        }
        Ok(confinement)
    }

    /// Which files and directories the policy's places are at the moment: a worker's view is made from them, and is of
    /// no use when another one has taken the place of one. May block.
    pub fn ground(&self, policy: &FilesPolicy) -> Ground {
        let look = |path: &Path| Some(identity_of(path));
        self.look_at_ground(policy, look).expect("it waits for every answer")
    }

    /// The same without waiting; nothing if that is not possible.
    pub fn ground_from_cache(&self, policy: &FilesPolicy) -> Option<Ground> {
        self.look_at_ground(policy, identity_from_cache)
    }

    fn look_at_ground(
        &self,
        policy: &FilesPolicy,
        look: impl Fn(&Path) -> Option<Option<PathIdentity>>,
    ) -> Option<Ground> {
        let look = |path| if self.placeholders.stands_at(path) { Some(None) } else { look(path) };
        policy.places().map(look).collect()
    }

    /// What confines a process under this policy, from what is on disk now; may block.
    pub fn confine(&self, policy: &Policy) -> Result<Confinement, RequestError> {
        let mut confinement = self.confine_as(policy, Class::Write)?;
        let is_user = confinement.setup.network == Network::Host;
        confinement.network_user = is_user.then(|| self.network_users.enter());
        Ok(confinement)
    }

    fn confine_as(&self, policy: &Policy, class: Class) -> Result<Confinement, RequestError> {
        if self.mechanism == Mechanism::Landlock {
            let names = can_hold(policy).map_err(RequestError::BeyondLandlock)?;
            if let Some(there) = names.into_iter().find(|name| name.symlink_metadata().is_ok()) {
                let why = BeyondLandlock::CarveOut(there);
                return Err(RequestError::BeyondLandlock(why));
            }
        }
        let network = match policy.network {
            NetworkPermission::Restricted => Network::Isolated,
            NetworkPermission::Enabled => Network::Host,
        };
        let mut view = View::new(Base::Everything);
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
        let setup = SandboxSetup { view, network, mechanism: self.mechanism, allow: self.allow };
        Ok(Confinement { setup, placeholders: held, network_user: None })
    }

    fn restrict(
        &self,
        rules: &FileRules,
        class: Class,
        view: &mut View,
        held: &mut Vec<Placeholder>,
    ) -> Result<(), RequestError> {
        if rules.full_disk() == Access::None {
            view.base = Base::Nothing;
        }
        for (path, access) in rules.places() {
            match access {
                Access::Write => {
                    if let Some(root) = self.hand_out(path)? {
                        view.places.push(writable(&root));
                    }
                }
                Access::Read if path == Path::new("/") => {}
                Access::Read => view.places.push(read_only(path)),
                Access::None => view.places.push(denied(path)),
            }
        }
        show(view, rules.minimal());
        let matches = globs::matches(rules.deny_globs())?;
        for protected in rules.protected_names() {
            let named = git_directories::named_by(&protected.root.join(protected.name));
            // It takes away what could be written, and shows nothing that is hidden: anybody may have made the file.
            let innermost = Innermost::of(view);
            let is_narrowed = |path: &&PathBuf| {
                innermost.access(path) == Some(PlaceAccess::Writable)
                    && !matches.iter().any(|denied| path.starts_with(denied))
            };
            let narrowed: Vec<_> = named.iter().filter(is_narrowed).collect();
            view.places.extend(narrowed.into_iter().map(|path| read_only(path)));
        }
        // Without mounts a placeholder would keep nobody from anything.
        if class == Class::Write && self.mechanism == Mechanism::Namespaces {
            self.hold_names(rules, view, held).map_err(set_up("placeholder"))?;
            missing_places::hold(&self.placeholders, view, held).map_err(set_up("placeholder"))?;
        }
        // Whoever can lock what is in there keeps placeholders from being removed.
        if self.mechanism == Mechanism::Namespaces {
            view.places.extend(self.placeholders.journal_dir().map(denied));
        }
        view.places.extend(matches.iter().map(|path| denied(path)));
        Ok(())
    }

    /// Makes sure that there is something at every protected name, so that it can be mounted read-only.
    fn hold_names(
        &self,
        rules: &FileRules,
        view: &mut View,
        held: &mut Vec<Placeholder>,
    ) -> io::Result<()> {
        let protected = rules.protected_names();
        let mut wanted: BTreeMap<&Path, Vec<&OsStr>> = BTreeMap::new();
        for it in &protected {
            wanted.entry(it.root).or_default().push(OsStr::new(it.name));
        }
        for (root, names) in &wanted {
            held.extend(self.placeholders.take(root, names)?);
        }
        let protected = protected.iter().map(|it| it.root.join(it.name));
        view.needed = protected.filter(|path| path.exists()).collect();
        Ok(())
    }

    /// Without a network nothing can be connected to, so there is nothing to hide.
    fn hide_services(&self, rules: &FileRules, view: &mut View) {
        let hidden = self.services.hidden().filter(|path| rules.access(path) != Access::Write);
        view.masked.extend(hidden.map(Path::to_owned));
        if view.base == Base::Everything {
            show(view, &self.services.needed());
        }
    }

    /// Whoever connects there can ask for a process without a sandbox; also where the policy restricts no file.
    fn own_socket(&self) -> Option<PathBuf> {
        let path = self.own_socket.as_deref()?;
        Some(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
    }

    /// Checks a root that may be written; one that is not there gives nothing.
    fn hand_out(&self, path: &Path) -> Result<Option<PathBuf>, RequestError> {
        if self.placeholders.journal_dir().is_some_and(|dir| path.starts_with(dir)) {
            return Ok(None);
        }
        loop {
            let before = self.handed_out.all();
            match check_writable_root(path, &before) {
                // A sandbox that was started meanwhile could have made a link on the way.
                Ok(root) if !self.handed_out.add(&root, &before) => {}
                Ok(root) => return Ok(Some(root)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(set_up("writable root")(error)),
            }
        }
    }
}

/// Looks at the disk on a thread that may wait for it, and does not wait for that thread for ever.
pub async fn in_time<T: Send + 'static>(
    time: Duration,
    look: impl FnOnce() -> Result<T, RequestError> + Send + 'static,
) -> Result<T, RequestError> {
    let looking = tokio::task::spawn_blocking(look);
    match tokio::time::timeout(time, looking).await {
        Ok(looked) => looked.unwrap_or(Err(RequestError::Abandoned)),
        Err(_) => {
            let step = "look up what the policy names";
            Err(RequestError::SandboxSetUp { step, source: gave_up(time) })
        }
    }
}

fn decode(sandbox: Option<&Value>) -> Result<Option<SandboxParams>, RequestError> {
    let Some(sandbox) = sandbox.filter(|sandbox| !sandbox.is_null()) else { return Ok(None) };
    serde::Deserialize::deserialize(sandbox)
        .map(Some)
        .map_err(|error: serde_json::Error| RequestError::InvalidParams(error.to_string()))
}

/// What is at each place of a policy.
pub type Ground = Vec<Option<PathIdentity>>;

/// Shows what programs need, except for what the policy denies: a place in there would open it again.
fn show(view: &mut View, needed: &[PathBuf]) {
    let innermost = Innermost::of(view);
    let is_denied = |path: &Path| innermost.access(path) == Some(PlaceAccess::Denied);
    let is_open = |path: &&PathBuf| {
        !is_denied(path) && !path.canonicalize().is_ok_and(|real| is_denied(&real))
    };
    let open: Vec<_> = needed.iter().filter(is_open).map(|path| read_only(path)).collect();
    view.places.extend(open);
}

fn writable(path: &Path) -> Place {
    Place { path: path.to_owned(), access: PlaceAccess::Writable }
}

fn read_only(path: &Path) -> Place {
    Place { path: path.to_owned(), access: PlaceAccess::ReadOnly }
}

fn denied(path: &Path) -> Place {
    Place { path: path.to_owned(), access: PlaceAccess::Denied }
}

fn set_up(step: &'static str) -> impl Fn(io::Error) -> RequestError {
    move |source| RequestError::SandboxSetUp { step, source }
}

impl From<PolicyError> for RequestError {
    fn from(error: PolicyError) -> Self {
        Self::Policy(error)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
