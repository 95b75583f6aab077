//! The network namespace of isolated sandboxes: loopback only.
//!
//! Creating and destroying one is slow in the kernel, so the sandboxes of one session share it. They cannot communicate
//! there: the filter refuses bind, listen and connect. The namespace is owned by a user namespace outside of the
//! sandboxes, so that even a process with all capabilities in a sandbox cannot configure it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use exec_server_os::linux::check;

use super::namespaces;
use super::step::{Step, StepError};

/// The network of one session, created by the first sandbox that needs it; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct SandboxNetwork(Arc<Mutex<Option<Arc<IsolatedNetns>>>>);

impl SandboxNetwork {
    /// Returns the network; calls `make` if there is none yet.
    pub fn get_or_make<E>(
        &self,
        make: impl FnOnce() -> Result<Arc<IsolatedNetns>, E>,
    ) -> Result<Arc<IsolatedNetns>, E> {
        let mut network = self.0.lock().expect("no holder panics");
        let known = match network.take() {
            Some(known) => known,
            None => make()?,
        };
        Ok(network.insert(known).clone())
    }
}

/// A network with only loopback; it exists as long as its descriptors, also without a process in it.
#[derive(Debug)]
pub struct IsolatedNetns {
    /// The owning user namespace.
    pub users: OwnedFd,
    pub network: OwnedFd,
}

impl IsolatedNetns {
    /// Creates one around this process, which should exit soon.
    pub fn make() -> Result<Self, StepError> {
        namespaces::enter_new_network()?;
        bring_loopback_up().step("loopback")?;
        let open = |name| namespaces::open_own(name).step("namespaces");
        Ok(Self { users: open("user")?, network: open("net")? })
    }

    pub fn enter(&self) -> Result<(), StepError> {
        namespaces::enter(&self.users, libc::CLONE_NEWUSER).step("network")?;
        namespaces::enter(&self.network, libc::CLONE_NEWNET).step("network")
    }
}

fn bring_loopback_up() -> io::Result<()> {
    // SAFETY: a new descriptor, closed below.
    let socket =
        check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: all zeros is a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo\0") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is alive and of the type that this call takes.
    let result = check(unsafe { libc::ioctl(socket, libc::SIOCSIFFLAGS as _, &raw const request) });
    // SAFETY: the descriptor is ours and not used again.
    unsafe { libc::close(socket) };
    result.map(drop)
}
