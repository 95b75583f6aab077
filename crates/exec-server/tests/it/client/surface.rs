//! Compiles against every public name of the facade, so that none is lost.

use std::collections::BTreeSet;

// The clients, the server and its modules, as `lib.rs` lists them.
#[allow(unused_imports, reason = "that they can be imported is the test")]
use exec_server::{
    Child, ChildOutput, ChildStdin, Command, DEFAULT_LISTEN_URL, Dial, DialWith, Environment,
    Environments, EnvironmentsError, ExecServerClient, ExecServerClientConnectOptions,
    ExecServerConnection, ExecServerError, ExecServerListenUrlParseError, ExecServerRuntimePaths,
    ExecutorFileSystem, ExitStatus, FileReadStream, FileWriteStream, Gap, HttpClient,
    HttpResponseBodyStream, ListenError, ListenUrl, Listener, OnceDial, Output, Parents,
    ProcessEvent, ProcessEvents, ProcessExit, ProcessSession, RelayConnectArgs,
    RemoteEnvironmentConfig, RemoteExecServerClient, RemoteExecServerConnectArgs,
    RemoteExecServerSession, RemotePath, Removal, RunError, SearchPage, SearchPages, Server,
    ServerConfig, SessionStatus, Stdin, StdioServer, TreeWatch, auth, client, config, listen,
    listen_url, logging, metrics, protocol, remote, run_main, run_remote_environment,
    sandbox_command, server, service_manager, shards, state_dir, stop_signal, timings,
};

// The wire types, which `lib.rs` re-exports with a wildcard.
#[allow(unused_imports, reason = "that they can be imported is the test")]
use exec_server::{
    BinaryFiles, BodyDeltaEncoder, Bytes64, Capabilities, CapabilitiesParams, CapabilitiesResponse,
    CapabilityRoot, CapabilityRootsParams, CapabilityRootsResponse, CaseMode, ChangeKind,
    ClientCapabilities, ConfigLayer, ConfigLayers, Data64, DiscoveredFile, DiscoveredPlugin,
    DiscoveredRoot, DiscoveredSkill, DiscoveryRoot, Durability, EditMismatch, Empty, Env,
    EnvInherit, EnvPolicy, EnvironmentConfigReadParams, EnvironmentConfigReadResponse,
    EnvironmentInfo, EnvironmentStatus, EnvironmentStatusResponse, ExitDetails, ExitReason,
    FileKind, FoundKind, FsAppendParams, FsAppliedEdit, FsBatchParams, FsBatchRequest,
    FsBatchResponse, FsBatchResult, FsCancelSearchParams, FsCancelSearchResponse,
    FsCanonicalizeParams, FsCanonicalizeResponse, FsChange, FsCloseParams, FsCopyParams,
    FsCreateDirectoryParams, FsDirectoryEntry, FsEditParams, FsEditResponse, FsFindPage,
    FsFindParams, FsFoundEntry, FsGetMetadataParams, FsGetMetadataResponse,
    FsMissingChangedNotification, FsNextPageParams, FsNextPageResponse, FsOpenParams,
    FsOpenResponse, FsReadBlockParams, FsReadBlockResponse, FsReadChangesParams,
    FsReadChangesResponse, FsReadDirectoryParams, FsReadDirectoryResponse, FsReadFileParams,
    FsReadFileResponse, FsReadLinkParams, FsReadLinkResponse, FsRemoveParams, FsRenameParams,
    FsSearchFilter, FsSearchLimits, FsSearchMatch, FsSearchPage, FsSearchParams, FsSearchState,
    FsSetPermissionsParams, FsSymlinkParams, FsTextEdit, FsTruncateParams, FsUnwatchParams,
    FsUnwatchResponse, FsWalkEntry, FsWalkError, FsWalkOptions, FsWalkParams, FsWalkResponse,
    FsWatchMissingParams, FsWatchMissingResponse, FsWatchParams, FsWatchResponse,
    FsWriteBlockParams, FsWriteFileParams, FsWriteFileResponse, HostInfo,
    HttpBodyDeltaNotification, HttpCancelParams, HttpCancelResponse, HttpErrorKind,
    HttpRequestBodyParams, HttpRequestBodyResponse, HttpRequestHeader, HttpRequestParams,
    HttpRequestResponse, HttpResponseHeader, Incomplete, InitializeParams, InitializeResponse,
    InstalledPlugin, LimitHolder, LimitName, LimitsReport, MetadataDetails, NearestText, OpenMode,
    OutputChunk, OutputExtent, OutputGap, OutputSearch, OutputSpool, OutputStream, OutputView,
    ProcessCloseStdinParams, ProcessClosedNotification, ProcessExitedNotification, ProcessId,
    ProcessLimits, ProcessListResponse, ProcessMetadata, ProcessOutputNotification,
    ProcessReadParams, ProcessReadResponse, ProcessResizeParams, ProcessSignal,
    ProcessSignalParams, ProcessStartParams, ProcessStartResponse, ProcessSummary,
    ProcessTerminateParams, ProcessTerminateResponse, ProcessWriteParams, ProcessWriteResponse,
    ReadUntil, RedirectPolicy, ResourceUsage, Sandbox, SandboxReport, SandboxText, SandboxType,
    ShellInfo, ShellSnapshot, SkillDependencies, SkillPolicy, SkillSummary, SnapshotShell,
    TerminalSize, ToolDependency, WalkKind, WriteStatus,
};

#[test]
fn every_name_that_the_facade_lists_is_compiled_here() {
    let words = |text: &'static str| text.split(|it: char| !(it.is_alphanumeric() || it == '_'));
    let (imports, _) = include_str!("surface.rs").split_once("#[test]").expect("a test");
    let here: BTreeSet<&str> = words(imports).collect();
    let lists = include_str!("../../../src/lib.rs").split("\npub use ").skip(1);
    let listed: Vec<&str> = lists
        .filter_map(|list| list.split_once(';').map(|(list, _)| list))
        .filter(|list| !list.ends_with("::*"))
        .flat_map(|list| list.rsplit('{').next().unwrap_or(list).split([',', '}']))
        .filter_map(|name| words(name).rfind(|word| !word.is_empty()))
        .collect();
    assert!(listed.contains(&"run_main") && listed.contains(&"shards"), "{listed:?}");
    let missing: Vec<&&str> = listed.iter().filter(|name| !here.contains(*name)).collect();
    assert!(missing.is_empty(), "add {missing:?} to the list of names above");
}

fn is_shared_between_tasks<T: Clone + Send + Sync + 'static>() {}

#[test]
fn clients_are_cloned_and_shared_between_tasks() {
    is_shared_between_tasks::<ExecServerClient>();
    is_shared_between_tasks::<ExecServerConnection>();
    is_shared_between_tasks::<RemoteExecServerClient>();
    is_shared_between_tasks::<RemoteExecServerSession>();
    is_shared_between_tasks::<ProcessSession>();
    is_shared_between_tasks::<ExecutorFileSystem>();
    is_shared_between_tasks::<HttpClient>();
    is_shared_between_tasks::<ExecServerError>();
    assert_eq!(DEFAULT_LISTEN_URL, "ws://127.0.0.1:0");
}

/// Checked by the compiler.
#[allow(dead_code)]
async fn files_can_be_streamed(files: ExecutorFileSystem) -> Result<(), ExecServerError> {
    files.read_file_stream("/etc/hostname").await.map(drop)
}

#[test]
fn credentials_are_not_printed() {
    let args = RemoteExecServerConnectArgs::new("wss://me:hush@host/").bearer_token("hush");
    assert!(!format!("{args:?}").contains("hush"));
}
