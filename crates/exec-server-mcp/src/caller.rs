//! Who calls a tool, as far as a transport can tell.

/// The client of a call.
#[derive(Debug, Clone, Copy)]
pub struct Caller {
    pub viewer: Viewer,
    /// Whether the client declares the tasks extension.
    pub knows_tasks: bool,
}

/// Which processes a client may see without knowing their ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Viewer {
    /// The only client of this MCP server; ids are short.
    Only,
    /// One of several clients: an MCP session, or a single request without one. It sees the processes that it has started,
    /// and the ids cannot be guessed.
    OneOf(u64),
}
