//! Numbers that both ends rely on, each with its reason.

/// More than any real message needs, and few enough to bound the cost of checking one.
pub const MAX_JSON_VALUES: usize = 262_144;

/// Levels of arrays and objects in one message; deeper ones would need a deeper stack to read.
pub const MAX_JSON_DEPTH: usize = 127;

/// The largest message that a reference client sends or takes.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// Outgoing frames stay well under the 16 MiB that a reference client takes in one frame.
pub const MAX_FRAME_BYTES: usize = 8 * 1024 * 1024;

/// One read of a pipe at its default capacity; also far below the 1 MiB that a client may hold back per event.
pub const MAX_OUTPUT_CHUNK_BYTES: usize = 64 * 1024;

/// Output kept per process for late readers unless the start request says otherwise.
pub const DEFAULT_RETAINED_OUTPUT_BYTES: usize = 1024 * 1024;

/// Four JSON values per chunk keep a full replay under [`MAX_JSON_VALUES`].
pub const MAX_RETAINED_CHUNKS: usize = 50_000;

/// Accepted write ids that are remembered per process, so that a repeated write is applied once.
pub const REMEMBERED_WRITE_IDS: usize = 4096;

/// Stdin that is accepted but not yet taken by the child; beyond it a write waits for its reply.
pub const MAX_QUEUED_STDIN_BYTES: usize = 1024 * 1024;

/// Writes that may wait for their reply behind a full stdin, so that a peer cannot fill our memory.
pub const MAX_WAITING_STDIN_BYTES: usize = 64 * 1024 * 1024;

/// The number of writes behind [`MAX_WAITING_STDIN_BYTES`], so that empty ones are bounded too.
pub const MAX_WAITING_STDIN_WRITES: usize = 4096;

/// Capability roots in one discovery request.
pub const MAX_CAPABILITY_ROOTS: usize = 128;

/// Bytes in the scope id of a shell snapshot.
pub const MAX_SNAPSHOT_SCOPE_BYTES: usize = 256;
