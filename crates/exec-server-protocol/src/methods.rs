//! The tables of methods and capabilities: name, family, lane, sandbox, capability, params and result of every request
//! that the server knows, and what each capability needs.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::environment::{
    CapabilitiesParams, CapabilitiesResponse, CapabilityRootsParams, CapabilityRootsResponse,
    EnvironmentConfigReadParams, EnvironmentConfigReadResponse, EnvironmentInfo,
    EnvironmentStatusResponse,
};
use crate::fs::*;
use crate::http::{
    HttpCancelParams, HttpCancelResponse, HttpRequestBodyParams, HttpRequestBodyResponse,
    HttpRequestParams, HttpRequestResponse,
};
use crate::initialize::{InitializeParams, InitializeResponse};
use crate::params::NoParams;
use crate::process::*;
use crate::session::{SessionListResponse, SessionSetLingerParams, SessionSetLingerResponse};

/// How a request is scheduled among the others of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Handled immediately, outside the concurrency limit.
    Control,
    /// Counted against the connection's limit of concurrent requests.
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

/// Whether a method accepts `sandbox` in its params.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxMember {
    /// The policy holds for the request.
    Taken,
    /// A request with a policy is rejected, because the method cannot enforce it.
    Refused,
}

/// Runs generic code with the types of a method; see [`Method::visit`].
pub trait MethodVisitor {
    /// The result of the code.
    type Output;

    /// Runs with the types of the params and the result.
    fn visit<Params: Payload, Response: Payload>(self) -> Self::Output;
}

/// The params or the result of a method.
#[cfg(not(feature = "schema"))]
pub trait Payload: DeserializeOwned {}
#[cfg(not(feature = "schema"))]
impl<T: DeserializeOwned> Payload for T {}

/// The params or the result of a method.
#[cfg(feature = "schema")]
pub trait Payload: DeserializeOwned + schemars::JsonSchema {}
#[cfg(feature = "schema")]
impl<T: DeserializeOwned + schemars::JsonSchema> Payload for T {}

macro_rules! methods {
    ($(
        $(#[doc = $handler_doc:literal])*
        $handler:ident: $methods:ident {
            $($variant:ident $name:literal $family:ident $lane:ident $sandbox:ident $capability:tt $params:ty => $response:ty, $doc:literal)*
        }
    )*) => {
        /// A request method of this server.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Method { $($(#[doc = $doc] $variant,)*)* }

        $(
            $(#[doc = $handler_doc])*
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            pub enum $methods { $(#[doc = $doc] $variant,)* }

            impl From<$methods> for Method {
                fn from(method: $methods) -> Self {
                    match method { $($methods::$variant => Self::$variant,)* }
                }
            }
        )*

        /// The handler of a method, with the method as one of those that it handles.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Handler { $($(#[doc = $handler_doc])* $handler($methods),)* }

        impl Method {
            /// Every method, in the order of the table.
            pub const ALL: &[Self] = &[$($(Self::$variant,)*)*];

            /// The method of this name.
            pub fn by_name(name: &str) -> Option<Self> {
                match name { $($($name => Some(Self::$variant),)*)* _ => None }
            }

            /// The name on the wire.
            pub fn name(self) -> &'static str {
                match self { $($(Self::$variant => $name,)*)* }
            }

            /// The handler; each handler matches on its own methods without a wildcard.
            pub fn handler(self) -> Handler {
                match self { $($(Self::$variant => Handler::$handler($methods::$variant),)*)* }
            }

            /// The family, for lifecycle errors.
            pub fn family(self) -> Family {
                match self { $($(Self::$variant => Family::$family,)*)* }
            }

            /// The lane, for scheduling.
            pub fn lane(self) -> Lane {
                match self { $($(Self::$variant => Lane::$lane,)*)* }
            }

            /// Whether the method accepts `sandbox` in its params; every other method rejects it.
            pub fn takes_sandbox(self) -> bool {
                let member = match self { $($(Self::$variant => SandboxMember::$sandbox,)*)* };
                member == SandboxMember::Taken
            }

            /// What the method does, in a few words.
            pub fn description(self) -> &'static str {
                match self { $($(Self::$variant => $doc,)*)* }
            }

            /// Whether the method accepts `user` in its params; every other method rejects it.
            pub fn takes_user(self) -> bool {
                self.takes_sandbox() && self.family() != Family::Http
            }

            /// Whether a server with these capabilities has the method.
            pub fn is_announced_by(self, capabilities: &Capabilities) -> bool {
                match self { $($(Self::$variant => capability!(capabilities $capability),)*)* }
            }

            /// Runs a visitor with the types of the params and the result.
            pub fn visit<V: MethodVisitor>(self, visitor: V) -> V::Output {
                match self { $($(Self::$variant => visitor.visit::<$params, $response>(),)*)* }
            }
        }
    };
}

impl Method {
    /// Whether the result lists unknown members of the params, for a client that asks for it.
    pub fn reports_ignored(self) -> bool {
        self.family() == Family::FileSystem
            || matches!(self, Self::ProcessStart | Self::HttpRequest)
    }
}

/// `_` stands for a method that every server has.
macro_rules! capability {
    ($capabilities:ident _) => {
        true
    };
    ($capabilities:ident $name:ident) => {
        $capabilities.$name
    };
}

methods! {
    /// Methods of the server, its sessions and its processes.
    Server: ServerMethod {
        Initialize             "initialize"                 Lifecycle           Ordinary Refused _                       InitializeParams => InitializeResponse,
            "Opens or resumes a session."
        EnvironmentInfo        "environment/info"           EnvironmentInfo     Control  Refused _                       NoParams => EnvironmentInfo,
            "What the machine is like."
        EnvironmentStatus      "environment/status"         EnvironmentStatus   Control  Refused _                       NoParams => EnvironmentStatusResponse,
            "Whether the server is ready."
        EnvironmentConfigRead  "environmentConfig/read"     EnvironmentConfig   Ordinary Refused environment_config_read EnvironmentConfigReadParams => EnvironmentConfigReadResponse,
            "Selected settings of the machine's user."
        CapabilityRootsV1      "capabilityRoots/discoverV1" CapabilityDiscovery Ordinary Refused _                       CapabilityRootsParams => CapabilityRootsResponse,
            "Plugins and skills below given directories."
        CapabilitiesV2         "capabilities/discoverV2"    CapabilityDiscovery Ordinary Refused capability_discovery_v2 CapabilitiesParams => CapabilitiesResponse,
            "Plugins and skills installed on the machine."
        ProcessStart           "process/start"              Exec                Ordinary Taken   _                       ProcessStartParams => ProcessStartResponse,
            "Starts a process."
        ProcessRead            "process/read"               Exec                Ordinary Refused _                       ProcessReadParams => ProcessReadResponse,
            "Retained output and state, with long poll."
        ProcessWrite           "process/write"              Exec                Ordinary Refused _                       ProcessWriteParams => ProcessWriteResponse,
            "Bytes for stdin."
        ProcessSignal          "process/signal"             Exec                Control  Refused _                       ProcessSignalParams => Empty,
            "A signal for the whole tree."
        ProcessTerminate       "process/terminate"          Exec                Control  Refused _                       ProcessTerminateParams => ProcessTerminateResponse,
            "Ends the whole tree."
        ProcessResize          "process/resize"             Exec                Control  Refused process_resize          ProcessResizeParams => Empty,
            "A new size for the terminal."
        ProcessCloseStdin      "process/closeStdin"         Exec                Ordinary Refused process_close_stdin     ProcessCloseStdinParams => ProcessWriteResponse,
            "End of input, after what was written."
        ProcessList            "process/list"               Exec                Control  Refused process_list            NoParams => ProcessListResponse,
            "The processes of this session."
        SessionList            "session/list"               Session             Control  Refused session_directory       NoParams => SessionListResponse,
            "The sessions that the caller may use, and their processes."
        SessionSetLinger       "session/setLinger"          Session             Control  Refused session_linger          SessionSetLingerParams => SessionSetLingerResponse,
            "How long this session waits for its client."
    }

    /// Methods of `fs/*` about a path.
    Path: PathMethod {
        FsReadFile             "fs/readFile"                FileSystem          Ordinary Taken   _                       FsReadFileParams => FsReadFileResponse,
            "The whole of a file."
        FsWriteFile            "fs/writeFile"               FileSystem          Ordinary Taken   _                       FsWriteFileParams => FsWriteFileResponse,
            "New content for a file."
        FsAppend               "fs/append"                  FileSystem          Ordinary Taken   fs_append               FsAppendParams => FsWriteFileResponse,
            "Bytes behind the end of a file."
        FsTruncate             "fs/truncate"                FileSystem          Ordinary Taken   fs_truncate             FsTruncateParams => FsWriteFileResponse,
            "A new length for a file."
        FsEdit                 "fs/edit"                    FileSystem          Ordinary Taken   fs_edit                 FsEditParams => FsEditResponse,
            "Replaces pieces of text in a file."
        FsCreateDirectory      "fs/createDirectory"         FileSystem          Ordinary Taken   _                       FsCreateDirectoryParams => Empty,
            "A new directory."
        FsGetMetadata          "fs/getMetadata"             FileSystem          Ordinary Taken   _                       FsGetMetadataParams => FsGetMetadataResponse,
            "What is known about a path."
        FsCanonicalize         "fs/canonicalize"            FileSystem          Ordinary Taken   _                       FsCanonicalizeParams => FsCanonicalizeResponse,
            "A path without links."
        FsReadDirectory        "fs/readDirectory"           FileSystem          Ordinary Taken   _                       FsReadDirectoryParams => FsReadDirectoryResponse,
            "The names in a directory."
        FsWalk                 "fs/walk"                    FileSystem          Ordinary Taken   _                       FsWalkParams => FsWalkResponse,
            "The names in a tree."
        FsRemove               "fs/remove"                  FileSystem          Ordinary Taken   _                       FsRemoveParams => Empty,
            "Removes a file or a tree."
        FsCopy                 "fs/copy"                    FileSystem          Ordinary Taken   _                       FsCopyParams => Empty,
            "Copies a file or a tree."
        FsRename               "fs/rename"                  FileSystem          Ordinary Taken   fs_rename               FsRenameParams => Empty,
            "A new name for a file or a tree."
        FsSymlink              "fs/symlink"                 FileSystem          Ordinary Taken   fs_symlink              FsSymlinkParams => Empty,
            "A new symbolic link."
        FsReadLink             "fs/readLink"                FileSystem          Ordinary Taken   fs_symlink              FsReadLinkParams => FsReadLinkResponse,
            "Where a symbolic link points."
        FsSetPermissions       "fs/setPermissions"          FileSystem          Ordinary Taken   fs_set_permissions      FsSetPermissionsParams => Empty,
            "New permission bits."
    }

    /// The other methods of `fs/*`: handles, batches, searches and watches.
    File: FileMethod {
        FsOpen                 "fs/open"                    FileSystem          Ordinary Taken   _                       FsOpenParams => FsOpenResponse,
            "A handle for reading or replacing a file in blocks."
        FsReadBlock            "fs/readBlock"               FileSystem          Ordinary Refused _                       FsReadBlockParams => FsReadBlockResponse,
            "Bytes of an open file."
        FsWriteBlock           "fs/writeBlock"              FileSystem          Ordinary Refused file_write_streaming    FsWriteBlockParams => Empty,
            "Bytes for the new content of an open file."
        FsClose                "fs/close"                   FileSystem          Ordinary Refused _                       FsCloseParams => FsWriteFileResponse,
            "The end of a handle; puts new content in place."
        FsSearch               "fs/search"                  FileSystem          Ordinary Taken   fs_search               FsSearchParams => FsSearchPage,
            "Lines that match a pattern, in a tree or a file."
        FsFind                 "fs/find"                    FileSystem          Ordinary Taken   fs_search               FsFindParams => FsFindPage,
            "Names that match a pattern, in a tree."
        FsNextPage             "fs/nextPage"                FileSystem          Ordinary Refused fs_search               FsNextPageParams => FsNextPageResponse,
            "More of a search."
        FsCancelSearch         "fs/cancelSearch"            FileSystem          Control  Refused fs_search               FsCancelSearchParams => FsCancelSearchResponse,
            "The early end of a search."
        FsBatch                "fs/batch"                   FileSystem          Ordinary Refused fs_batch                FsBatchParams => FsBatchResponse,
            "Many small lookups in one round trip."
        FsWatchMissing         "fs/watchMissing"            FileSystem          Ordinary Refused fs_watch_missing        FsWatchMissingParams => FsWatchMissingResponse,
            "Asks to be told when one of some paths appears."
        FsWatch                "fs/watch"                   FileSystem          Ordinary Taken   fs_watch                FsWatchParams => FsWatchResponse,
            "Collects the changes of a file or a tree."
        FsReadChanges          "fs/readChanges"             FileSystem          Ordinary Refused fs_watch                FsReadChangesParams => FsReadChangesResponse,
            "Changes of a watch, with long poll."
        FsUnwatch              "fs/unwatch"                 FileSystem          Control  Refused fs_watch                FsUnwatchParams => FsUnwatchResponse,
            "The end of a watch."
    }

    /// Methods of `http/*`.
    Egress: EgressMethod {
        HttpRequest            "http/request"               Http                Control  Taken   _                       HttpRequestParams => HttpRequestResponse,
            "An exchange with another server."
        HttpRequestBody        "http/requestBody"           Http                Control  Refused _                       HttpRequestBodyParams => HttpRequestBodyResponse,
            "A piece of the body of such a request."
        HttpCancel             "http/cancel"                Http                Control  Refused _                       HttpCancelParams => HttpCancelResponse,
            "The early end of an exchange."
    }
}

/// What decides which capabilities a server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Platform {
    /// Whether the server runs on Linux.
    pub is_linux: bool,
    /// Whether sandboxes have mounts of their own.
    pub has_mounts: bool,
    /// Whether the server may start processes as other users.
    pub can_change_users: bool,
}

impl Platform {
    fn has(self, needs: Needs) -> bool {
        match needs {
            Needs::Nothing => true,
            Needs::Linux => self.is_linux,
            Needs::Mounts => self.has_mounts,
            Needs::Users => self.can_change_users,
        }
    }
}

/// What a capability needs.
enum Needs {
    Nothing,
    Linux,
    Mounts,
    Users,
}

macro_rules! capabilities {
    ($($field:ident $needs:ident $doc:literal)*) => {
        /// Optional features of a server; a missing member is false.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "camelCase", default)]
        pub struct Capabilities {
            $(#[doc = $doc] #[serde(skip_serializing_if = "crate::is_false")] pub $field: bool,)*
        }

        impl Capabilities {
            /// The capabilities of this server on a platform.
            pub fn of(platform: Platform) -> Self {
                Self { $($field: platform.has(Needs::$needs),)* }
            }
        }
    };
}

capabilities! {
    environment_host                                 Nothing "`host` and `instanceId` in `environment/info`."
    environment_config_read                          Nothing "`environmentConfig/read`."
    capability_discovery_v2                          Nothing "`capabilities/discoverV2`."
    shell_snapshot_v2                                Nothing "`shellSnapshot` in `process/start`."
    process_resize                                   Nothing "`process/resize`, and `size` in `process/start`."
    process_close_stdin                              Nothing "`process/closeStdin`."
    process_list                                     Nothing "`process/list`."
    process_signals                                  Nothing "Every signal of `process/signal`, sent to the whole tree."
    process_terminate_grace                          Nothing "`graceMs` in `process/terminate`."
    process_exit_details                             Nothing "`signal`, `reason`, `durationMs` and `rusage` of an ended process."
    process_timeouts                                 Nothing "`timeoutMs` and `idleTimeoutMs` in `process/start`."
    process_output_retention                         Nothing "`outputRetention` in `process/start`; gaps are reported."
    process_start_retry                              Nothing "A start repeated on a resumed session answers with the running process."
    process_wait_when_detached                       Nothing "`waitWhenDetached` in `process/start`."
    env_exclude_secrets                              Nothing "`excludeSecrets` in the `envPolicy` of `process/start`."
    session_moved                                    Nothing "`clientCapabilities.sessionMoved` in `initialize`: the notification `session/moved` tells of a take-over."
    report_ignored                                   Nothing "`clientCapabilities.reportIgnored` in `initialize`: replies list members that were ignored."
    binary_messages                                  Nothing "Binary messages, in both directions; `clientCapabilities.binaryMessages` in `initialize` asks for those of the server."
    session_take_over                                Nothing "A resume takes over from a connection whose peer is silent."
    session_take_over_asked                          Nothing "`takeOver: false` in `initialize` leaves a session with a peer that cannot be probed."
    session_directory                                Nothing "`session/list`; `sessionId` in `process/read`, `process/signal` and `process/terminate`; `takeOver` in `initialize`."
    session_linger                                   Nothing "`lingerMs` in `initialize`, `session/setLinger`, and `closedRetentionMs` in `process/start`."
    sandboxed_file_streaming                         Linux   "`fs/open` under a sandbox."
    process_sandbox_report                           Linux   "`sandbox` in the answer to `process/start`: what really holds."
    process_limits                                   Linux   "`limits` in `process/start`, and in its answer."
    process_output_times                             Nothing "`timestamps` in `process/read`: `atMs` of every chunk."
    process_read_until                               Nothing "`until` in `process/read`: one answer without output, at the exit or the close."
    process_unique_id                                Nothing "`uniqueId` in `process/start`; `user` in lists of processes."
    process_pid                                      Nothing "`detailed` in `process/start`: `pid` in its answer."
    process_output_spool                             Linux   "`outputSpool` in `process/start`, and `view` in `process/read`."
    process_user                                     Users   "`user` in `process/start`."
    linux_root_write_preserves_devices               Mounts  "A sandbox that may write `/` has working devices."
    linux_approved_root_write_preserves_restrictions Mounts  "What a policy denies stays so in a sandbox that may write `/`."
    file_write_streaming                             Nothing "`mode` in `fs/open`, and `fs/writeBlock`."
    fs_watch_missing                                 Nothing "`fs/watchMissing`."
    fs_watch                                         Linux   "`fs/watch`, `fs/readChanges` and `fs/unwatch`."
    fs_atomic_write                                  Nothing "New content appears at once or not at all; `durability`, and `discard` in `fs/close`."
    fs_conditional_write                             Nothing "`ifAbsent` and `ifMatch` where content is written."
    fs_owner_names                                   Linux   "`ownerName` and `groupName` in detailed metadata."
    fs_detailed_metadata                             Nothing "`detailed` in `fs/getMetadata`, `fs/readFile`, `fs/open` and where content is written."
    fs_directory_paging                              Nothing "`limit`, `cursor` and `detailed` in `fs/readDirectory`; links and odd names are told."
    fs_write_attributes                              Nothing "`modeBits`, `newModeBits` and `modifiedAtMs` in `fs/writeFile` and `fs/open`."
    fs_append                                        Nothing "`fs/append`."
    fs_truncate                                      Nothing "`fs/truncate`."
    fs_edit                                          Linux   "`fs/edit`."
    fs_user                                          Users   "`user` in every `fs/*` request with a `sandbox`."
    fs_search                                        Linux   "`fs/search`, `fs/find`, `fs/nextPage` and `fs/cancelSearch`."
    fs_rename                                        Nothing "`fs/rename`."
    fs_symlink                                       Nothing "`fs/symlink` and `fs/readLink`."
    fs_set_permissions                               Nothing "`fs/setPermissions`."
    fs_batch                                         Nothing "`fs/batch`."
    http_header_env_vars                             Nothing "`valueEnvVar` in `http/request`."
    http_cancel                                      Nothing "`http/cancel`."
    http_request_body                                Nothing "`streamBody` in `http/request`, and `http/requestBody`."
    http_body_limit                                  Nothing "`maxBodyBytes` in `http/request`."
    http_error_kinds                                 Nothing "`error.data.kind` and `errorKind` tell how an exchange failed."
}

/// The only notification that clients send.
pub const INITIALIZED: &str = "initialized";
/// Output of a process.
pub const PROCESS_OUTPUT: &str = "process/output";
/// The root process has exited.
pub const PROCESS_EXITED: &str = "process/exited";
/// The process is closed; no further event follows.
pub const PROCESS_CLOSED: &str = "process/closed";
/// A part of a streamed response to `http/request`.
pub const HTTP_BODY_DELTA: &str = "http/request/bodyDelta";
/// Another connection has taken the session over; this connection closes.
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
