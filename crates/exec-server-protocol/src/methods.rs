//! The table of methods: name, family and lane of every request that the server knows.

/// How a request is scheduled among the others of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Handled immediately, outside the concurrency limit.
    Control,
    /// Counted against the connection's bound of concurrent requests.
    Ordinary,
}

/// A group of methods, named in lifecycle errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// `initialize` itself.
    Lifecycle,
    /// `process/*`.
    Exec,
    /// `session/*`.
    Session,
    /// `fs/*`.
    FileSystem,
    /// `environment/info`.
    EnvironmentInfo,
    /// `environment/status`.
    EnvironmentStatus,
    /// `environmentConfig/*`.
    EnvironmentConfig,
    /// `capabilityRoots/*` and `capabilities/*`.
    CapabilityDiscovery,
    /// `http/*`.
    Http,
}

impl Family {
    /// The family's name in messages such as "client must call initialize before using exec methods".
    pub fn name(self) -> &'static str {
        match self {
            Self::Lifecycle => "lifecycle",
            Self::Exec => "exec",
            Self::Session => "session",
            Self::FileSystem => "filesystem",
            Self::EnvironmentInfo => "environment info",
            Self::EnvironmentStatus => "environment status",
            Self::EnvironmentConfig => "environment config",
            Self::CapabilityDiscovery => "capability discovery",
            Self::Http => "http",
        }
    }
}

macro_rules! methods {
    ($($variant:ident $name:literal $family:ident $lane:ident $doc:literal)*) => {
        /// A request method of this server.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Method { $(#[doc = $doc] $variant,)* }

        impl Method {
            /// Every method, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The method of this name.
            pub fn by_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }

            /// The name on the wire.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The family, for lifecycle errors.
            pub fn family(self) -> Family {
                match self { $(Self::$variant => Family::$family,)* }
            }

            /// The lane, for scheduling.
            pub fn lane(self) -> Lane {
                match self { $(Self::$variant => Lane::$lane,)* }
            }
        }
    };
}

methods! {
    Initialize             "initialize"                 Lifecycle           Ordinary "Opens or resumes a session."
    EnvironmentInfo        "environment/info"           EnvironmentInfo     Control  "What the machine is like."
    EnvironmentStatus      "environment/status"         EnvironmentStatus   Control  "Whether the server is ready."
    EnvironmentConfigRead  "environmentConfig/read"     EnvironmentConfig   Ordinary "Selected settings of the machine's user."
    CapabilityRootsV1      "capabilityRoots/discoverV1" CapabilityDiscovery Ordinary "Plugins and skills below given directories."
    CapabilitiesV2         "capabilities/discoverV2"    CapabilityDiscovery Ordinary "Plugins and skills installed on the machine."
    ProcessStart           "process/start"              Exec                Ordinary "Starts a process."
    ProcessRead            "process/read"               Exec                Ordinary "Retained output and state, with long poll."
    ProcessWrite           "process/write"              Exec                Ordinary "Bytes for stdin."
    ProcessSignal          "process/signal"             Exec                Control  "A signal for the whole tree."
    ProcessTerminate       "process/terminate"          Exec                Control  "Ends the whole tree."
    ProcessResize          "process/resize"             Exec                Control  "A new size for the terminal."
    ProcessCloseStdin      "process/closeStdin"         Exec                Ordinary "End of input, after what was written."
    ProcessList            "process/list"               Exec                Control  "The processes of this session."
    SessionList            "session/list"               Session             Control  "The sessions that the caller may use, and their processes."
    SessionSetLinger       "session/setLinger"          Session             Control  "How long this session waits for its client."
    FsReadFile             "fs/readFile"                FileSystem          Ordinary "The whole of a file."
    FsOpen                 "fs/open"                    FileSystem          Ordinary "A handle for reading or replacing a file in blocks."
    FsReadBlock            "fs/readBlock"               FileSystem          Ordinary "Bytes of an open file."
    FsWriteBlock           "fs/writeBlock"              FileSystem          Ordinary "Bytes for the new content of an open file."
    FsClose                "fs/close"                   FileSystem          Ordinary "The end of a handle; puts new content in place."
    FsWriteFile            "fs/writeFile"               FileSystem          Ordinary "New content for a file."
    FsAppend               "fs/append"                  FileSystem          Ordinary "Bytes behind the end of a file."
    FsTruncate             "fs/truncate"                FileSystem          Ordinary "A new length for a file."
    FsEdit                 "fs/edit"                    FileSystem          Ordinary "Replaces pieces of text in a file."
    FsCreateDirectory      "fs/createDirectory"         FileSystem          Ordinary "A new directory."
    FsGetMetadata          "fs/getMetadata"             FileSystem          Ordinary "What is known about a path."
    FsCanonicalize         "fs/canonicalize"            FileSystem          Ordinary "A path without links."
    FsReadDirectory        "fs/readDirectory"           FileSystem          Ordinary "The names in a directory."
    FsWalk                 "fs/walk"                    FileSystem          Ordinary "The names in a tree."
    FsSearch               "fs/search"                  FileSystem          Ordinary "Lines that match a pattern, in a tree or a file."
    FsFind                 "fs/find"                    FileSystem          Ordinary "Names that match a pattern, in a tree."
    FsNextPage             "fs/nextPage"                FileSystem          Ordinary "More of a search."
    FsCancelSearch         "fs/cancelSearch"            FileSystem          Control  "The early end of a search."
    FsRemove               "fs/remove"                  FileSystem          Ordinary "Removes a file or a tree."
    FsCopy                 "fs/copy"                    FileSystem          Ordinary "Copies a file or a tree."
    FsRename               "fs/rename"                  FileSystem          Ordinary "A new name for a file or a tree."
    FsSymlink              "fs/symlink"                 FileSystem          Ordinary "A new symbolic link."
    FsReadLink             "fs/readLink"                FileSystem          Ordinary "Where a symbolic link points."
    FsSetPermissions       "fs/setPermissions"          FileSystem          Ordinary "New permission bits."
    FsBatch                "fs/batch"                   FileSystem          Ordinary "Many small lookups in one round trip."
    FsWatchMissing         "fs/watchMissing"            FileSystem          Ordinary "Asks to be told when one of some paths appears."
    FsWatch                "fs/watch"                   FileSystem          Ordinary "Collects the changes of a file or a tree."
    FsReadChanges          "fs/readChanges"             FileSystem          Ordinary "Changes of a watch, with long poll."
    FsUnwatch              "fs/unwatch"                 FileSystem          Control  "The end of a watch."
    HttpRequest            "http/request"               Http                Control  "An exchange with another server."
    HttpRequestBody        "http/requestBody"           Http                Control  "A piece of the body of such a request."
    HttpCancel             "http/cancel"                Http                Control  "The early end of an exchange."
}

impl Method {
    /// Whether its params have a `sandbox`, which it then honours; every other method refuses one.
    pub fn takes_sandbox(self) -> bool {
        matches!(
            self,
            Self::ProcessStart
                | Self::FsReadFile
                | Self::FsOpen
                | Self::FsWriteFile
                | Self::FsAppend
                | Self::FsTruncate
                | Self::FsEdit
                | Self::FsCreateDirectory
                | Self::FsGetMetadata
                | Self::FsCanonicalize
                | Self::FsReadDirectory
                | Self::FsWalk
                | Self::FsSearch
                | Self::FsFind
                | Self::FsRemove
                | Self::FsCopy
                | Self::FsRename
                | Self::FsSymlink
                | Self::FsReadLink
                | Self::FsSetPermissions
                | Self::HttpRequest
        )
    }
}

/// The one notification that a client sends.
pub const INITIALIZED: &str = "initialized";
/// Output of a process.
pub const PROCESS_OUTPUT: &str = "process/output";
/// The root process has ended.
pub const PROCESS_EXITED: &str = "process/exited";
/// Nothing more will come from this process.
pub const PROCESS_CLOSED: &str = "process/closed";
/// A piece of a streamed answer to `http/request`.
pub const HTTP_BODY_DELTA: &str = "http/request/bodyDelta";
/// Another connection has taken the session over; this one ends.
pub const SESSION_MOVED: &str = "session/moved";
/// A watched path is no longer missing.
pub const FS_MISSING_CHANGED: &str = "fs/missingChanged";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_found_by_its_name() {
        for method in Method::ALL {
            assert_eq!(Method::by_name(method.name()), Some(*method));
        }
        assert_eq!(Method::by_name("initialized"), None);
    }
}
