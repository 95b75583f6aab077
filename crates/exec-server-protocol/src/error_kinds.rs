//! The kinds of errors: stable names in `error.data.kind`.

use crate::http::HttpErrorKind;

macro_rules! error_kinds {
    ($($variant:ident $name:literal $doc:literal)*) => {
        /// What went wrong, for programs; the code is only a class of errors.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorKind {
            $(#[doc = $doc] $variant,)*
            /// Why an exchange failed.
            Http(HttpErrorKind),
        }

        impl ErrorKind {
            /// Every kind.
            pub fn all() -> impl Iterator<Item = Self> {
                let own = [$(Self::$variant,)*];
                own.into_iter().chain(HttpErrorKind::ALL.map(Self::Http))
            }

            /// The name on the wire.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Http(kind) => kind.name(),
                }
            }

            /// What the kind means.
            pub fn description(self) -> &'static str {
                match self {
                    $(Self::$variant => $doc,)*
                    Self::Http(kind) => kind.description(),
                }
            }
        }
    };
}

error_kinds! {
    MalformedMessage       "malformed_message"        "The message is not a JSON-RPC message of this protocol; the reply has the id -1."
    UnknownNotification    "unknown_notification"     "Clients send no notification but `initialized`; the reply has the id -1."
    UnknownMethod          "unknown_method"           "The server has no such method."
    InvalidParams          "invalid_params"           "The params cannot be decoded, or contradict each other."
    Lifecycle              "lifecycle"                "The method is not allowed before `initialize` or `initialized`, or `initialize` came twice."
    InvalidPath            "invalid_path"             "A path is not a `file:` URI of this machine."
    ForeignPath            "foreign_path"             "A path belongs to another operating system."
    UnknownSession         "unknown_session"          "There is no such session, it has ended, or it belongs to another credential."
    SessionAttached        "session_attached"         "The session has a live connection, which keeps it."
    SessionMoved           "session_moved"            "Another connection has taken the session over."
    TooManySessions        "too_many_sessions"        "The server has as many sessions as the operator allows."
    TooManyProcesses       "too_many_processes"       "The session has as many processes as the operator allows."
    TooManyRequests        "too_many_requests"        "Too many requests or exchanges of this connection wait for their end."
    ProcessExists          "process_exists"           "The session has a process with this id."
    NameInUse              "name_in_use"              "`uniqueId` was asked for, and another session runs a process with this id."
    UnknownProcess         "unknown_process"          "There is no such process in the session."
    StartCancelled         "start_cancelled"          "The process was terminated before it was started."
    MissingProgram         "missing_program"          "`argv` has no program."
    UnknownUser            "unknown_user"             "The machine has no such user."
    UserUnavailable        "user_unavailable"         "The server may not change users, or the kernel refused this user."
    UsersUnreadable        "users_unreadable"         "The list of users cannot be read."
    SpoolUnavailable       "spool_unavailable"        "The server keeps no spool for output."
    SpoolsFull             "spools_full"              "The spools of all processes are as large as the operator allows."
    AuditUnavailable       "audit_unavailable"        "The audit log cannot be written, and the operator wants no request without it."
    NulByte                "nul_byte"                 "An argument or a variable contains a NUL byte."
    CwdNotFound            "cwd_not_found"            "The working directory does not exist."
    CwdUnusable            "cwd_unusable"             "The working directory cannot be entered."
    ProgramNotFound        "program_not_found"        "The program does not exist."
    ProgramNotExecutable   "program_not_executable"   "The program may not be executed."
    ProgramUnusable        "program_unusable"         "The program cannot be executed for another reason; see `errno`."
    SpawnFailed            "spawn_failed"             "The process could not be created; see `errno`."
    SandboxUnsupported     "sandbox_unsupported"      "This machine cannot enforce the sandbox, so nothing was started."
    SandboxPolicy          "sandbox_policy"           "The sandbox policy is invalid, too large or too costly."
    SandboxFailed          "sandbox_failed"           "The sandbox could not be set up."
    LimitUnavailable       "limit_unavailable"        "A resource limit cannot be enforced here; `limit` names it, `hint` says how."
    Unsupported            "unsupported"              "The request uses a feature that this server does not have."
    SignalFailed           "signal_failed"            "The signal could not be sent; see `errno`."
    ResizeFailed           "resize_failed"            "The terminal could not be resized; see `errno`."
    NoTerminal             "no_terminal"              "The process has no terminal."
    StdinOverloaded        "stdin_overloaded"         "The process does not read its stdin, and too much input waits for it."
    TooManyRoots           "too_many_roots"           "A discovery request names too many roots."
    ConfigUnreadable       "config_unreadable"        "The configuration files of the machine cannot be read."
    NotFound               "not_found"                "The file or directory does not exist."
    PermissionDenied       "permission_denied"        "The operating system denies access."
    InvalidArgument        "invalid_argument"         "The operating system rejects an argument."
    AlreadyExists          "already_exists"           "The file or directory exists."
    NotADirectory          "not_a_directory"          "A part of the path is not a directory."
    IsADirectory           "is_a_directory"           "The path is a directory."
    DirectoryNotEmpty      "directory_not_empty"      "The directory has entries."
    ReadOnlyFileSystem     "read_only_file_system"    "The file system cannot be written."
    NoSpace                "no_space"                 "The disk or the quota is full."
    OtherFileSystem        "other_file_system"        "Source and destination are on different file systems."
    FileSystem             "file_system"              "Another error of the file system; see `errno`."
    NotAFile               "not_a_file"               "The path is a directory, a pipe, a socket or a device; see `errno`."
    IsSymlink              "is_symlink"               "The path is a symbolic link, and `followSymlinks` is false."
    NoName                 "no_name"                  "The path has no last name, such as `/`."
    NeedsRecursive         "needs_recursive"          "A directory needs `recursive`."
    IntoItself             "into_itself"              "A directory cannot be copied or moved into itself."
    SameFile               "same_file"                "Source and destination are the same file."
    ShortWrite             "short_write"              "Only a part of the content was written."
    Incomplete             "incomplete"               "A part of the work was done: `completed` entries, up to `failedPath`."
    VersionMismatch        "version_mismatch"         "`ifMatch` names another version, or the file kept changing."
    InvalidBase64          "invalid_base64"           "The content is not base64."
    FileTooLarge           "file_too_large"           "The file is too large for this method."
    BinaryFile             "binary_file"              "The file contains NUL bytes."
    EditNotFound           "edit_not_found"           "The text of an edit does not occur; see `edit`."
    EditNotUnique          "edit_not_unique"          "The text of an edit occurs more than once; see `edit`."
    InvalidPattern         "invalid_pattern"          "A pattern, a glob or a file type cannot be used."
    WalkLimits             "walk_limits"              "The limits of `fs/walk` are zero or too high."
    TooManyEntries         "too_many_entries"         "The directory has more entries than one reply can hold; use `limit` and `cursor`."
    HandleIdTooLong        "handle_id_too_long"       "The id of the handle is too long."
    HandleExists           "handle_exists"            "The connection has a handle with this id."
    TooManyHandles         "too_many_handles"         "The connection has too many open handles."
    UnknownHandle          "unknown_handle"           "There is no such handle on this connection."
    BlockLength            "block_length"             "The length of a block is zero or too large."
    BlockRange             "block_range"              "The block lies beyond the largest file offset."
    BlocksMissing          "blocks_missing"           "Earlier blocks could not be written, so the file was not changed."
    BatchTooLong           "batch_too_long"           "`fs/batch` has too many lookups."
    NotForBatch            "not_for_batch"            "`fs/batch` does not take this method."
    SearchExists           "search_exists"            "The connection has a search with this id."
    UnknownSearch          "unknown_search"           "There is no such search on this connection, or it has ended."
    TooManySearches        "too_many_searches"        "The connection has too many searches."
    SearchCancelled        "search_cancelled"         "The search ended before this page."
    WatchExists            "watch_exists"             "The session has a watch with this id."
    UnknownWatch           "unknown_watch"            "There is no such watch in the session."
    TooManyWatches         "too_many_watches"         "The session has too many watches."
    WatchLimit             "watch_limit"              "Too many directories for one watch, or a limit of the machine; see `hint`."
    Unwatchable            "unwatchable"              "The file system does not report changes."
    RequestExists          "request_exists"           "An exchange with this id is active."
    HttpOverloaded         "http_overloaded"          "Too many bytes of HTTP bodies wait on this connection."
    OutOfMemory            "out_of_memory"            "There is no memory for the reply."
    ReplyTooLarge          "reply_too_large"          "The reply would be larger than a message may be."
    Internal               "internal"                 "A fault of the server."
}

impl From<HttpErrorKind> for ErrorKind {
    fn from(kind: HttpErrorKind) -> Self {
        Self::Http(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_kinds_have_the_same_name() {
        let names: std::collections::BTreeSet<&str> =
            ErrorKind::all().map(ErrorKind::name).collect();
        assert_eq!(names.len(), ErrorKind::all().count());
    }
}
