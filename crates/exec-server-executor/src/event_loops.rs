//! Single-threaded event loops that connections are distributed over, round robin.
//!
//! A connection and its processes run on one thread, so a request, its child and its output never wait for another
//! thread to wake up. More cores serve more connections.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Builder, Handle, Runtime};

/// The event loops of a server.
#[derive(Debug)]
pub struct EventLoops {
    loops: Vec<Handle>,
    next: AtomicUsize,
}

/// Tasks between two polls of the I/O driver; small, because tasks of flooding processes run long and delay requests.
const EVENT_INTERVAL: u32 = 4;

/// Builds a single-threaded event loop.
pub fn event_loop() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().event_interval(EVENT_INTERVAL).build()
}

impl EventLoops {
    /// The current event loop, plus `more` loops on dedicated threads.
    pub fn new(more: usize) -> io::Result<Self> {
        let mut loops = vec![Handle::current()];
        for number in 1..=more {
            let runtime = event_loop()?;
            loops.push(runtime.handle().clone());
            thread::Builder::new()
                .name(format!("connections-{number}"))
                .spawn(move || runtime.block_on(std::future::pending::<()>()))?;
        }
        Ok(Self { loops, next: AtomicUsize::new(0) })
    }

    /// The event loop for the next connection.
    pub fn next(&self) -> &Handle {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        &self.loops[turn % self.loops.len()]
    }
}
