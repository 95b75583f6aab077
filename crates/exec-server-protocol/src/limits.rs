//! Numbers that both ends rely on, each with its reason.

/// Bounds the cost of checking a message; real messages have far fewer values.
pub const MAX_JSON_VALUES: usize = 262_144;

/// Levels of arrays and objects in one message; bounds the stack of recursive parsers.
pub const MAX_JSON_DEPTH: usize = 127;

/// The largest message that the reference client sends or accepts.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// Bytes in the id of a request: the server repeats it in the reply and keeps it until then.
pub const MAX_REQUEST_ID_BYTES: usize = 1024;

/// Bytes in the name of a client, which its session keeps.
pub const MAX_CLIENT_NAME_BYTES: usize = 1024;

/// Bytes in the id of a process, which every event of the process repeats.
pub const MAX_PROCESS_ID_BYTES: usize = 1024;

/// Bytes in the message of an error, which may repeat names from its request: two long paths and an explanation.
pub const MAX_ERROR_MESSAGE_BYTES: usize = 32 * 1024;

/// Outgoing frames stay well under the 16 MiB that the reference client accepts.
pub const MAX_FRAME_BYTES: usize = 8 * 1024 * 1024;

/// One read of a pipe at its default capacity; far below the 1 MiB that a client may buffer per event.
pub const MAX_OUTPUT_CHUNK_BYTES: usize = 64 * 1024;

/// Output kept per process for late readers unless the start request says otherwise.
pub const DEFAULT_RETAINED_OUTPUT_BYTES: usize = 1024 * 1024;

/// Five JSON values per chunk keep a full replay under [`MAX_JSON_VALUES`].
pub const MAX_RETAINED_CHUNKS: usize = 50_000;

/// Accepted write ids that are remembered per process, so that a repeated write is applied once.
pub const REMEMBERED_WRITE_IDS: usize = 4096;

/// Stdin that is accepted but not yet read by the child; beyond it, the reply to a write is delayed.
pub const MAX_QUEUED_STDIN_BYTES: usize = 1024 * 1024;

/// Writes that wait for their reply behind a full stdin; bounds the memory that a peer can use.
pub const MAX_WAITING_STDIN_BYTES: usize = 64 * 1024 * 1024;

/// Number of waiting writes, so that empty writes are bounded as well.
pub const MAX_WAITING_STDIN_WRITES: usize = 4096;

/// Capability roots in one discovery request.
pub const MAX_CAPABILITY_ROOTS: usize = 128;

/// Bytes in the scope id of a shell snapshot.
pub const MAX_SNAPSHOT_SCOPE_BYTES: usize = 256;

/// Bytes of one `fs/readBlock` or `fs/writeBlock`.
pub const MAX_FILE_BLOCK_BYTES: u64 = 1024 * 1024;

/// Largest content whose base64 fits into one message with its envelope.
pub const MAX_WHOLE_FILE_BYTES: u64 = (MAX_MESSAGE_BYTES as u64 - 4096) / 4 * 3;

/// Open file handles of one connection.
pub const MAX_FILE_HANDLES: usize = 128;

/// Length of a file handle id; the reference accepts 32 bytes, too few for a UUID as text.
pub const MAX_HANDLE_ID_BYTES: usize = 64;

/// Names in one `fs/readDirectory` reply: four JSON values each stay under [`MAX_JSON_VALUES`].
pub const MAX_DIRECTORY_ENTRIES: usize = 50_000;

/// Entries of one detailed `fs/readDirectory` reply: twenty JSON values each stay under [`MAX_JSON_VALUES`].
pub const MAX_DETAILED_ENTRIES: usize = 10_000;

/// Replacements in one `fs/edit`.
pub const MAX_TEXT_EDITS: usize = 1000;

/// The largest file before and after `fs/edit`; each edit of it is one pass over the content in memory.
pub const MAX_EDITED_FILE_BYTES: u64 = 16 * 1024 * 1024;

/// Searches that one connection has at once; each has threads.
pub const MAX_SEARCHES: usize = 8;

/// Bytes in the name that a client gives to a search.
pub const MAX_SEARCH_ID_BYTES: usize = 64;

/// Bytes of a pattern or a glob, so that compiling it stays cheap.
pub const MAX_PATTERN_BYTES: usize = 64 * 1024;

/// Patterns, globs and types of one search.
pub const MAX_SEARCH_GLOBS: usize = 1000;

/// Matches or entries of one page unless the request says otherwise.
pub const DEFAULT_PAGE_SIZE: usize = 1000;

/// Matches or entries of one page: twenty JSON values each stay under [`MAX_JSON_VALUES`].
pub const MAX_PAGE_SIZE: usize = 10_000;

/// Text and paths of one page of a search.
pub const MAX_PAGE_BYTES: usize = 1024 * 1024;

/// Lines of context on each side of a match.
pub const MAX_CONTEXT_LINES: u64 = 100;

/// Bytes of a matching line in the result.
pub const MAX_MATCH_TEXT_BYTES: usize = 2048;

/// A search reports a longer line as an error instead of holding it in memory.
pub const MAX_SEARCHED_LINE_BYTES: usize = 4 * 1024 * 1024;

/// How long a search may take unless the request says otherwise, in milliseconds.
pub const DEFAULT_SEARCH_MS: u64 = 60_000;

/// The longest time that a request may give a search, in milliseconds.
pub const MAX_SEARCH_MS: u64 = 3_600_000;

/// Watches of one session by `fs/watch`; each has a thread, and a user has 128 inotify instances.
pub const MAX_WATCHES: usize = 32;

/// Directories of one watch by `fs/watch`.
pub const MAX_WATCHED_DIRECTORIES: usize = 100_000;

/// How long changes are collected unless the request says otherwise, in milliseconds.
pub const DEFAULT_COALESCE_MS: u64 = 50;

/// The longest time that changes are collected, in milliseconds.
pub const MAX_COALESCE_MS: u64 = 10_000;

/// The longest wait of one `fs/readChanges`, in milliseconds.
pub const MAX_CHANGES_WAIT_MS: u64 = 60_000;

/// Levels below the root of one `fs/walk`.
pub const MAX_WALK_DEPTH: u64 = 64;

/// Directories that one `fs/walk` enters.
pub const MAX_WALK_DIRECTORIES: u64 = 10_000;

/// Entries that one `fs/walk` visits.
pub const MAX_WALK_ENTRIES: u64 = 50_000;

/// Total size of the entries and errors of one `fs/walk`, each counted with [`WALK_ITEM_BYTES`].
pub const MAX_WALK_BYTES: usize = 4 * 1024 * 1024;

/// Size of a `fs/walk` entry beside its path.
pub const WALK_ITEM_BYTES: usize = 64;

/// Paths in one `fs/watchMissing`.
pub const MAX_WATCHED_PATHS: usize = 64;

/// Concurrent `http/request` exchanges of one connection; each may have a socket.
pub const MAX_HTTP_EXCHANGES: usize = 512;

/// Memory for request bodies and buffered responses of one connection: a few of the largest.
pub const MAX_HTTP_HELD_BYTES: usize = 256 * 1024 * 1024;

/// Bytes of a streamed response in one notification; the reference client accepts up to 1 MiB.
pub const MAX_HTTP_DELTA_BYTES: usize = 256 * 1024;

/// Redirects that one `http/request` follows.
pub const MAX_HTTP_REDIRECTS: usize = 10;

/// Lookups in one `fs/batch`.
pub const MAX_BATCH_REQUESTS: usize = 1000;
