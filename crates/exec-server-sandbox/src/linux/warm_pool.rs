//! Warm pool: sandboxes that are prepared ahead of the starts that use them.
//!
//! ```text
//! start ──takes a warm sandbox──▶ runs ──▶ has exited, or runs for REFILL_DELAY ──▶ refiller (a thread): prepares a replacement,
//!                                              and ends sandboxes that are old or made from a mount table that has changed
//! ```
//!
//! A warm sandbox has its own namespaces and is used once, so commands share no more than without the pool. It is
//! independent of the policy, which is resolved when the command starts. It depends on the host's mount table, and the
//! kernel reports changes of that.
//!
//! Invariant: a warm sandbox is given only to a start whose session has the same network; a network without a session
//! is adopted by one session.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::thread;
use std::time::{Duration, Instant};

use exec_server_os::TreeTag;
use exec_server_os::linux::child::ChildStack;
use exec_server_os::spawn::SpawnError;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::launch::Launchers;
use super::launcher::Preparation;
use super::netns::IsolatedNetns;
use super::prepared::{PrepareSpec, PreparedSandbox};

/// Each is two sleeping processes of one to two megabytes; more sessions rarely start at once.
const MAX_WARM: usize = 4;
/// The time that a client may take between reading a reply and starting the next command.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Most commands have exited by then; refilling earlier would compete with them for the processors.
const REFILL_DELAY: Duration = Duration::from_millis(20);
/// The tag of processes without a tree; children count from 0, and zygotes use the highest number.
const TAG: u32 = u32::MAX - 1;

/// The warm sandboxes of a server; cheap to clone.
#[derive(Clone)]
pub struct WarmPool(Arc<Shared>);

struct Shared {
    pool: Mutex<Pool>,
    /// Wakes the refiller.
    wake: OwnedFd,
    /// Starts the refiller on the first start that could have used a warm sandbox.
    refiller: Once,
}

struct Pool {
    sandboxes: Vec<WarmSandbox>,
    /// What the refiller shall prepare.
    wanted: Vec<Wanted>,
    /// What the refiller shall end, because that can block.
    retired: Vec<WarmSandbox>,
    mounts: MountTable,
    /// The number of changes of the mount table.
    changes: u64,
}

struct Wanted {
    spec: PrepareSpec,
    due: Instant,
}

struct WarmSandbox {
    sandbox: PreparedSandbox,
    spec: PrepareSpec,
    /// Whether its network belongs to a session.
    is_adopted: bool,
    since: Instant,
}

impl std::fmt::Debug for WarmPool {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.debug_struct("WarmPool").finish_non_exhaustive()
    }
}

impl WarmPool {
    /// Creates an empty pool without a refiller: most servers never need one.
    pub fn new() -> io::Result<Self> {
        let pool = Pool {
            sandboxes: Vec::new(),
            wanted: Vec::new(),
            retired: Vec::new(),
            mounts: MountTable::open()?,
            changes: 0,
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Shared { pool: Mutex::new(pool), wake, refiller: Once::new() })))
    }

    fn start_refiller(&self) -> io::Result<()> {
        let refiller = Refiller {
            shared: self.0.clone(),
            launchers: Launchers::default(),
            stack: ChildStack::new(),
            mounts: MountTable::open()?,
            network: None,
        };
        thread::Builder::new().name("warm-pool".to_owned()).spawn(move || refiller.run()).map(drop)
    }

    /// Assigns the network of a matching warm sandbox to a session.
    pub fn adopt_network(&self, preparation: Preparation) -> Option<Arc<IsolatedNetns>> {
        let mut pool = self.0.lock();
        let is_match = |warm: &&mut WarmSandbox| {
            !warm.is_adopted && warm.spec.preparation == Some(preparation)
        };
        let warm = pool.sandboxes.iter_mut().find(is_match)?;
        warm.is_adopted = true;
        warm.spec.network.clone()
    }

    /// Takes a matching warm sandbox, if there is one.
    pub fn take(&self, spec: &PrepareSpec) -> Option<PreparedSandbox> {
        spec.preparation?;
        let mut pool = self.0.lock();
        pool.check_mounts();
        let found = pool.sandboxes.iter().position(|warm| {
            warm.is_adopted && warm.spec.matches(spec) && !warm.sandbox.has_ended()
        });
        found.map(|index| pool.sandboxes.swap_remove(index).sandbox)
    }

    /// Schedules a replacement for the next start with the same spec.
    pub fn refill_on_drop(&self, spec: PrepareSpec) -> RefillOnDrop {
        let spec = Some(spec).filter(|it| it.preparation.is_some());
        RefillOnDrop { pool: self.clone(), spec, is_requested: false }
    }
}

/// Requests a warm sandbox on drop, and so after the command has exited, which needs the processors until then.
pub struct RefillOnDrop {
    pool: WarmPool,
    spec: Option<PrepareSpec>,
    is_requested: bool,
}

impl std::fmt::Debug for RefillOnDrop {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.debug_struct("RefillOnDrop").finish_non_exhaustive()
    }
}

impl RefillOnDrop {
    /// Requests the replacement after a delay, unless this is dropped before.
    pub fn refill_after_delay(&mut self) {
        if !self.is_requested {
            self.ask(Instant::now() + REFILL_DELAY);
            self.is_requested = true;
        }
    }

    fn ask(&self, due: Instant) {
        let Some(spec) = &self.spec else { return };
        let mut pool = self.pool.0.lock();
        match pool.wanted.iter_mut().find(|wanted| wanted.spec.matches(spec)) {
            Some(wanted) => wanted.due = wanted.due.min(due),
            // The refiller has prepared it meanwhile.
            None if self.is_requested => return,
            None => pool.wanted.push(Wanted { spec: spec.clone(), due }),
        }
        drop(pool);
        self.pool.0.refiller.call_once(|| {
            if let Err(error) = self.pool.start_refiller() {
                tracing::debug!(%error, "cannot start the warm pool thread, sandboxes are prepared on demand");
            }
        });
        self.pool.0.wake();
    }
}

impl Drop for RefillOnDrop {
    fn drop(&mut self) {
        self.ask(Instant::now());
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().expect("no holder panics")
    }

    fn wake(&self) {
        // The write fails if the counter is full, and then the refiller wakes up anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Pool {
    /// Retires all warm sandboxes if the host's mounts have changed.
    fn check_mounts(&mut self) {
        if self.mounts.has_changed() {
            self.changes += 1;
            self.retired.append(&mut self.sandboxes);
        }
    }

    fn take_due(&mut self, now: Instant) -> Vec<PrepareSpec> {
        let due = self.wanted.extract_if(.., |wanted| wanted.due <= now);
        due.map(|wanted| wanted.spec).collect()
    }

    fn drop_old(&mut self, now: Instant) {
        let is_old = |warm: &WarmSandbox| now.duration_since(warm.since) >= MAX_AGE;
        let (old, young) = std::mem::take(&mut self.sandboxes)
            .into_iter()
            .partition(|warm| is_old(warm) || warm.sandbox.has_ended());
        self.sandboxes = young;
        self.retired.extend::<Vec<_>>(old);
    }

    fn add(&mut self, warm: WarmSandbox) {
        self.sandboxes.push(warm);
        if self.sandboxes.len() > MAX_WARM {
            let oldest = self.sandboxes.remove(0);
            self.retired.push(oldest);
        }
    }
}

/// Prepares and ends warm sandboxes, on its own thread.
struct Refiller {
    shared: Arc<Shared>,
    launchers: Launchers,
    stack: ChildStack,
    /// Separate from the pool's, because each open file reports a change once.
    mounts: MountTable,
    /// For the next session's warm sandbox: creating one takes a third of the preparation.
    network: Option<Arc<IsolatedNetns>>,
}

impl Refiller {
    fn run(mut self) {
        loop {
            let (wanted, retired) = {
                let mut pool = self.shared.lock();
                pool.check_mounts();
                let now = Instant::now();
                pool.drop_old(now);
                (pool.take_due(now), std::mem::take(&mut pool.retired))
            };
            drop(retired);
            for spec in wanted {
                self.make(spec);
            }
            // The pool was not used for MAX_AGE.
            if self.shared.lock().sandboxes.is_empty() {
                self.network = None;
            }
            self.wait();
        }
    }

    /// Prepares what a start has requested, and one sandbox for a future session.
    fn make(&mut self, spec: PrepareSpec) {
        let has_network = spec.network.is_some();
        let preparation = spec.preparation;
        let is_there = |is_wanted: &dyn Fn(&WarmSandbox) -> bool| {
            self.shared.lock().sandboxes.iter().any(is_wanted)
        };
        let lacks_same = !is_there(&|warm| warm.spec.matches(&spec));
        let lacks_new = has_network
            && !is_there(&|warm| !warm.is_adopted && warm.spec.preparation == preparation);
        let made = (|| {
            // First, because a start of a new session without it would also have to create a network.
            if lacks_new {
                let network = self.network.take().map_or_else(|| self.make_network(), Ok)?;
                let spec = PrepareSpec { preparation, network: Some(network), user: None };
                self.prepare(spec, false)?;
            }
            if lacks_same {
                self.prepare(spec, true)?;
            }
            if lacks_new {
                self.network = Some(self.make_network()?);
            }
            Ok::<_, SpawnError>(())
        })();
        if let Err(error) = made {
            // The next start prepares its own sandbox and reports the error if it persists.
            tracing::debug!(%error, "cannot prepare a warm sandbox");
        }
    }

    fn make_network(&mut self) -> Result<Arc<IsolatedNetns>, SpawnError> {
        self.launchers.make_network(None, &mut self.stack).map(Arc::new)
    }

    fn prepare(&mut self, spec: PrepareSpec, is_adopted: bool) -> Result<(), SpawnError> {
        let before = {
            let mut pool = self.shared.lock();
            pool.check_mounts();
            pool.changes
        };
        let sandbox = self.launchers.prepare(&spec, TreeTag::new(TAG), None, &mut self.stack)?;
        let warm = WarmSandbox { sandbox, spec, is_adopted, since: Instant::now() };
        let mut pool = self.shared.lock();
        pool.check_mounts();
        if pool.changes == before {
            pool.add(warm);
        } else {
            pool.retired.push(warm);
            drop(pool);
            self.shared.wake();
        }
        Ok(())
    }

    /// Waits for a request, a change of the mounts, or the expiry of a warm sandbox.
    fn wait(&mut self) {
        let next = {
            let pool = self.shared.lock();
            let ages = pool.sandboxes.iter().map(|warm| warm.since + MAX_AGE);
            ages.chain(pool.wanted.iter().map(|wanted| wanted.due)).min()
        };
        let time = next.map(|next| {
            let left = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            Timespec::try_from(left).expect("a minute fits")
        });
        let mut events = [
            PollFd::new(&self.shared.wake, PollFlags::IN),
            PollFd::new(&self.mounts.0, PollFlags::PRI),
        ];
        // Errors are ignored: the next round polls again, and no error repeats at once.
        let _ = poll(&mut events, time.as_ref());
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut count);
    }
}

struct MountTable(File);

impl MountTable {
    fn open() -> io::Result<Self> {
        let table = Self(File::open("/proc/self/mountinfo")?);
        Ok(table)
    }

    /// Whether it has changed since the last call, or since it was opened; true on errors.
    fn has_changed(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::PRI)];
        !matches!(rustix::io::retry_on_intr(|| poll(&mut events, Some(&now))), Ok(0))
    }
}

#[cfg(test)]
mod tests {
    use exec_server_os::linux::testing::{Ended, User, in_child};

    use super::*;
    use crate::linux::namespaces;

    #[test]
    fn a_mount_change_is_reported_once_per_open_file() {
        let ended = in_child(User::Ordinary, || {
            namespaces::enter_new().unwrap();
            namespaces::enter_new_mounts().unwrap();
            let (one, other) = (MountTable::open().unwrap(), MountTable::open().unwrap());
            assert!(!one.has_changed());
            let mount = |target| {
                let none = c"none".as_ptr();
                // SAFETY: all are C strings or null.
                unsafe { libc::mount(none, target, c"tmpfs".as_ptr(), 0, std::ptr::null()) }
            };
            assert_eq!(mount(c"/tmp".as_ptr()), 0);
            assert!(one.has_changed() && !one.has_changed());
            assert!(other.has_changed() && !other.has_changed());
            0
        });
        assert_eq!(ended, Ended::Exit(0));
    }
}
