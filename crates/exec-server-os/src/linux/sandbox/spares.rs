//! Sandboxes that are prepared ahead, so that most starts find one.
//!
//! ```text
//! start ──takes a spare──▶ runs ──▶ has ended, or runs for a while ──▶ keeper (a thread): makes another one like it,
//!                                                          and ends those that are old or of a mount table that has changed
//! ```
//!
//! A spare has namespaces of its own and is used once, so that no two commands share more than without it. It knows
//! nothing of a policy: what that says is looked up when the command is started. What it does depend on is the mount table
//! of the host, and the kernel tells when that changes.
//!
//! Invariant: a spare is given only to a start whose session has the spare's network; a network that no session has yet is
//! given to one session.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::launch::Launchers;
use super::launcher::Preparation;
use super::network::QuietNetwork;
use super::prepared::{Needs, PreparedSandbox};
use crate::TreeTag;
use crate::linux::child::ChildStack;
use crate::spawn::SpawnError;

/// Each is two sleeping processes with a megabyte or two between them; more sessions than this rarely start at once.
const MAX_SPARES: usize = 4;
/// As long as somebody who reads an answer may take to ask for the next command.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Who has run for this long will run on: most commands are done by then, and are not to share the processors meanwhile.
const A_WHILE: Duration = Duration::from_millis(20);
/// The tag of what belongs to no tree yet; children are counted from 0, and zygotes have the last number.
const TAG: u32 = u32::MAX - 1;

/// The spares of a server; cheap to clone.
#[derive(Clone)]
pub struct Spares(Arc<Shared>);

struct Shared {
    pool: Mutex<Pool>,
    /// Wakes the keeper.
    wake: OwnedFd,
    /// The keeper is started once, by the first start that could have used a spare.
    keeper: Once,
}

struct Pool {
    spares: Vec<Spare>,
    /// What the keeper shall make.
    wanted: Vec<Wanted>,
    /// What the keeper shall end, because that takes a moment.
    useless: Vec<Spare>,
    mounts: MountTable,
    /// How often the mounts have changed.
    changes: u64,
}

struct Wanted {
    needs: Needs,
    /// Not before.
    due: Instant,
}

struct Spare {
    sandbox: PreparedSandbox,
    needs: Needs,
    /// Whether its network belongs to a session.
    is_adopted: bool,
    since: Instant,
}

impl std::fmt::Debug for Spares {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.debug_struct("Spares").finish_non_exhaustive()
    }
}

impl Spares {
    /// None yet, and nobody who makes any: most servers never need one.
    pub fn new() -> io::Result<Self> {
        let pool = Pool {
            spares: Vec::new(),
            wanted: Vec::new(),
            useless: Vec::new(),
            mounts: MountTable::open()?,
            changes: 0,
        };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Shared { pool: Mutex::new(pool), wake, keeper: Once::new() })))
    }

    fn start_keeper(&self) -> io::Result<()> {
        let keeper = Keeper {
            shared: self.0.clone(),
            launchers: Launchers::default(),
            stack: ChildStack::new(),
            mounts: MountTable::open()?,
            network: None,
        };
        thread::Builder::new().name("spares".to_owned()).spawn(move || keeper.run()).map(drop)
    }

    /// Gives a session the network of a spare that is like this.
    pub fn adopt_network(&self, preparation: Preparation) -> Option<Arc<QuietNetwork>> {
        let mut pool = self.0.lock();
        let is_like_it =
            |spare: &&mut Spare| !spare.is_adopted && spare.needs.preparation == Some(preparation);
        let spare = pool.spares.iter_mut().find(is_like_it)?;
        spare.is_adopted = true;
        spare.needs.network.clone()
    }

    /// Takes a spare, if there is one.
    pub fn take(&self, needs: &Needs) -> Option<PreparedSandbox> {
        needs.preparation?;
        let mut pool = self.0.lock();
        pool.look_at_mounts();
        let found = pool.spares.iter().position(|spare| {
            spare.is_adopted && spare.needs.are_met_by(needs) && !spare.sandbox.has_ended()
        });
        found.map(|index| pool.spares.swap_remove(index).sandbox)
    }

    /// Has one made for the next start that needs the same, later.
    pub fn make_another(&self, needs: Needs) -> Another {
        let needs = Some(needs).filter(|it| it.preparation.is_some());
        Another { spares: self.clone(), needs, is_asked_for: false }
    }
}

/// A spare that is made when this is dropped, and so when a command has ended: until then it needs the processors itself.
pub struct Another {
    spares: Spares,
    needs: Option<Needs>,
    is_asked_for: bool,
}

impl std::fmt::Debug for Another {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter.debug_struct("Another").finish_non_exhaustive()
    }
}

impl Another {
    /// Has it made in a while, should this not be dropped before.
    pub fn in_a_while(&mut self) {
        if !self.is_asked_for {
            self.ask(Instant::now() + A_WHILE);
            self.is_asked_for = true;
        }
    }

    fn ask(&self, due: Instant) {
        let Some(needs) = &self.needs else { return };
        let mut pool = self.spares.0.lock();
        match pool.wanted.iter_mut().find(|wanted| wanted.needs.are_met_by(needs)) {
            Some(wanted) => wanted.due = wanted.due.min(due),
            // It was made meanwhile.
            None if self.is_asked_for => return,
            None => pool.wanted.push(Wanted { needs: needs.clone(), due }),
        }
        drop(pool);
        self.spares.0.keeper.call_once(|| {
            if let Err(error) = self.spares.start_keeper() {
                tracing::debug!(%error, "every sandbox is made when it is needed");
            }
        });
        self.spares.0.wake();
    }
}

impl Drop for Another {
    fn drop(&mut self) {
        self.ask(Instant::now());
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().expect("no holder panics")
    }

    fn wake(&self) {
        // It is full if the keeper is to wake up anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl Pool {
    /// Drops all spares if they are made from mounts that are not the host's any more.
    fn look_at_mounts(&mut self) {
        if self.mounts.have_changed() {
            self.changes += 1;
            self.useless.append(&mut self.spares);
        }
    }

    fn take_due(&mut self, now: Instant) -> Vec<Needs> {
        let due = self.wanted.extract_if(.., |wanted| wanted.due <= now);
        due.map(|wanted| wanted.needs).collect()
    }

    fn drop_old(&mut self, now: Instant) {
        let is_old = |spare: &Spare| now.duration_since(spare.since) >= MAX_AGE;
        let (old, young) = std::mem::take(&mut self.spares)
            .into_iter()
            .partition(|spare| is_old(spare) || spare.sandbox.has_ended());
        self.spares = young;
        self.useless.extend::<Vec<_>>(old);
    }

    fn add(&mut self, spare: Spare) {
        self.spares.push(spare);
        if self.spares.len() > MAX_SPARES {
            let oldest = self.spares.remove(0);
            self.useless.push(oldest);
        }
    }
}

/// Makes and ends spares, on a thread of its own.
struct Keeper {
    shared: Arc<Shared>,
    launchers: Launchers,
    stack: ChildStack,
    /// Another one than that of the pool, because each look is told of a change once.
    mounts: MountTable,
    /// For the next spare of a session that is yet to come: to make one takes half as long as all the rest.
    network: Option<Arc<QuietNetwork>>,
}

impl Keeper {
    fn run(mut self) {
        loop {
            let (wanted, useless) = {
                let mut pool = self.shared.lock();
                pool.look_at_mounts();
                let now = Instant::now();
                pool.drop_old(now);
                (pool.take_due(now), std::mem::take(&mut pool.useless))
            };
            drop(useless);
            for needs in wanted {
                self.make(needs);
            }
            // Nobody has come for a minute.
            if self.shared.lock().spares.is_empty() {
                self.network = None;
            }
            self.wait();
        }
    }

    /// Makes what a start has asked for, and one for a session that is yet to come.
    fn make(&mut self, needs: Needs) {
        let has_network = needs.network.is_some();
        let preparation = needs.preparation;
        let is_there =
            |is_wanted: &dyn Fn(&Spare) -> bool| self.shared.lock().spares.iter().any(is_wanted);
        let lacks_same = !is_there(&|spare| spare.needs.are_met_by(&needs));
        let lacks_new = has_network
            && !is_there(&|spare| !spare.is_adopted && spare.needs.preparation == preparation);
        let made = (|| {
            // First, because whoever finds none has to wait for a network as well.
            if lacks_new {
                let network = self.network.take().map_or_else(|| self.make_network(), Ok)?;
                self.prepare(Needs { preparation, network: Some(network) }, false)?;
            }
            if lacks_same {
                self.prepare(needs, true)?;
            }
            if lacks_new {
                self.network = Some(self.make_network()?);
            }
            Ok::<_, SpawnError>(())
        })();
        if let Err(error) = made {
            // The next start finds none, and says what is wrong if it is still wrong then.
            tracing::debug!(%error, "no sandbox could be prepared");
        }
    }

    fn make_network(&mut self) -> Result<Arc<QuietNetwork>, SpawnError> {
        self.launchers.make_network(&mut self.stack).map(Arc::new)
    }

    fn prepare(&mut self, needs: Needs, is_adopted: bool) -> Result<(), SpawnError> {
        let before = {
            let mut pool = self.shared.lock();
            pool.look_at_mounts();
            pool.changes
        };
        let sandbox = self.launchers.prepare(&needs, TreeTag::new(TAG), &mut self.stack)?;
        let spare = Spare { sandbox, needs, is_adopted, since: Instant::now() };
        let mut pool = self.shared.lock();
        pool.look_at_mounts();
        if pool.changes == before {
            pool.add(spare);
        } else {
            pool.useless.push(spare);
            drop(pool);
            self.shared.wake();
        }
        Ok(())
    }

    /// Waits until somebody wants something, the mounts change, or a spare is too old.
    fn wait(&mut self) {
        let next = {
            let pool = self.shared.lock();
            let ages = pool.spares.iter().map(|spare| spare.since + MAX_AGE);
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
        // An error is looked into by the next round; it cannot come at once again and again.
        let _ = poll(&mut events, time.as_ref());
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut count);
    }
}

/// The mount table of this process.
struct MountTable(File);

impl MountTable {
    fn open() -> io::Result<Self> {
        let table = Self(File::open("/proc/self/mountinfo")?);
        Ok(table)
    }

    /// Whether it has changed since it was asked the last time, or opened; also if it cannot be told.
    fn have_changed(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::PRI)];
        !matches!(rustix::io::retry_on_intr(|| poll(&mut events, Some(&now))), Ok(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::sandbox::namespaces;
    use crate::linux::sandbox::testing::{Ended, User, in_child};

    #[test]
    fn a_change_of_the_mounts_is_told_once_to_everybody_who_asks() {
        let ended = in_child(User::Ordinary, || {
            namespaces::enter_new().unwrap();
            namespaces::enter_new_mounts().unwrap();
            let (one, other) = (MountTable::open().unwrap(), MountTable::open().unwrap());
            assert!(!one.have_changed());
            let mount = |target| {
                let none = c"none".as_ptr();
                // SAFETY: all are C strings or null.
                unsafe { libc::mount(none, target, c"tmpfs".as_ptr(), 0, std::ptr::null()) }
            };
            assert_eq!(mount(c"/tmp".as_ptr()), 0);
            assert!(one.have_changed() && !one.have_changed());
            assert!(other.have_changed() && !other.have_changed());
            0
        });
        assert_eq!(ended, Ended::Exit(0));
    }
}
