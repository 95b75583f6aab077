//! Results of starting below a guardian, and of looking for what killed servers left behind.

/// The process in which [`enter_guardian`](crate::enter_guardian) returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guardian {
    /// This process is the server.
    Server,
    /// This process is the guardian, and the server has exited with this code.
    Ended(i32),
}

/// Result of a scan for leftover processes.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Leftovers {
    /// Number of processes that were killed.
    pub ended: usize,
    /// Processes with the tag of a server that is gone, kept because a running process has that server's pid.
    pub unclear: Vec<i32>,
}
