//! Lets go of the mounts of sandboxes that have ended, on a thread that may wait for it.
//!
//! Whoever drops the last reference to a mount namespace waits until the kernel is sure that nobody looks at it any more.
//! If that were the last process of a sandbox, its end would be noticed that much later.

use std::os::fd::OwnedFd;
use std::sync::{OnceLock, mpsc};
use std::thread;

/// A mount namespace that stays until this is dropped.
#[derive(Debug)]
pub struct HeldMounts(Option<OwnedFd>);

impl HeldMounts {
    /// Takes it over.
    pub fn new(namespace: OwnedFd) -> Self {
        Self(Some(namespace))
    }
}

impl Drop for HeldMounts {
    fn drop(&mut self) {
        let Some(namespace) = self.0.take() else { return };
        if let Some(undertaker) = undertaker() {
            // Should it be gone, the namespace ends here.
            let _ = undertaker.send(namespace);
        }
    }
}

fn undertaker() -> Option<&'static mpsc::Sender<OwnedFd>> {
    static UNDERTAKER: OnceLock<Option<mpsc::Sender<OwnedFd>>> = OnceLock::new();
    let undertaker = UNDERTAKER.get_or_init(|| {
        let (sender, ended) = mpsc::channel();
        let thread = thread::Builder::new().name("mounts".to_owned());
        thread.spawn(move || ended.into_iter().for_each(drop)).ok().map(|_| sender)
    });
    undertaker.as_ref()
}
