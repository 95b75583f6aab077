//! Event loops on threads of their own, among which connections are shared out.
//!
//! Everything that belongs to a connection, its processes included, runs on one thread: a request, the child that it
//! starts and the output that comes back never wait for another thread to wake up. More cores serve more connections.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use tokio::runtime::{Builder, Handle, Runtime};

/// Event loops for connections.
#[derive(Debug)]
pub struct Shards {
    loops: Vec<Handle>,
    next: AtomicUsize,
}

/// A task may run for a while when a process floods; the loop looks for news after every few of them, so that a
/// request never waits behind many.
const TASKS_BETWEEN_LOOKS: u32 = 4;

/// A loop for one thread.
pub fn event_loop() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().event_interval(TASKS_BETWEEN_LOOKS).build()
}

impl Shards {
    /// The loop that this is called on, and `more` on threads of their own.
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

    /// The loop for the next connection.
    pub fn next(&self) -> &Handle {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        &self.loops[turn % self.loops.len()]
    }
}
