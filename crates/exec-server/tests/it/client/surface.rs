//! Compiles against every public name of the facade, so that none is lost.

#[allow(unused_imports, reason = "that they can be imported is the test")]
use exec_server::{
    DEFAULT_LISTEN_URL, ExecServerClient, ExecServerClientConnectOptions, ExecServerConnection,
    ExecServerError, ExecServerListenUrlParseError, ExecServerRuntimePaths, ExecutorFileSystem,
    HttpClient, HttpResponseBodyStream, InitializeParams, InitializeResponse, ProcessEvent,
    ProcessSession, ProcessStartParams, ProcessStartResponse, RelayConnectArgs,
    RemoteEnvironmentConfig, RemoteExecServerClient, RemoteExecServerConnectArgs,
    RemoteExecServerSession, Server, ServerConfig, run_main, run_remote_environment,
};

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
