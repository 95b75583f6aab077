//! The HTTP interface of an E2B sandbox, on the machine of an exec-server: the unmodified E2B SDKs work on it.
//!
//! | file | holds |
//! |---|---|
//! | `http_endpoint`, `routes`, `guard` | the listener, paths to handlers, who may ask |
//! | `connect`, `refusal`, `body` | the Connect protocol with JSON, errors, streamed bodies |
//! | `processes`, `process_events` | `process.Process` |
//! | `filesystem`, `entry`, `watchers`, `paths` | `filesystem.Filesystem` |
//! | `users` | the user of a request, and the files with its rights |
//! | `files`, `file_metadata` | upload and download |
//! | `sandboxes`, `control` | the sandboxes of the control plane |

use std::sync::Arc;
use std::time::Duration;

use exec_server_client::protocol::environment::EnvironmentInfo;
use exec_server_client::{ExecServerClient, ExecServerError};
use http::HeaderMap;

mod body;
mod connect;
mod control;
mod entry;
mod file_metadata;
mod files;
mod filesystem;
mod guard;
pub mod http_endpoint;
mod paths;
mod process_events;
mod processes;
mod refusal;
mod routes;
mod sandboxes;
mod users;
mod watchers;

use file_metadata::FileMetadata;
use processes::Processes;
use refusal::Refusal;
use sandboxes::Sandboxes;
use users::Users;
use watchers::Watchers;

/// The version of the sandbox daemon whose interface this is; SDKs choose features by it.
const ENVD_VERSION: &str = "0.6.7";
/// How long a health check waits for the server: less than the five seconds of the SDKs.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(4);

/// What a facade allows.
#[derive(Debug, Clone, Default)]
pub struct E2bOptions {
    /// The API key and access token that requests need; none means that every local program may ask.
    pub token: Option<String>,
    /// Names of templates besides `base`.
    pub templates: Vec<String>,
    /// Whether every user name means the server's own user.
    pub any_user: bool,
}

/// The E2B interface on top of a client; cheap to clone.
#[derive(Clone)]
pub struct E2bServer {
    shared: Arc<Shared>,
}

/// The parts that all requests share.
struct Shared {
    client: ExecServerClient,
    info: EnvironmentInfo,
    token: Option<String>,
    /// Where relative paths of the server's own user begin.
    home: String,
    users: Users,
    processes: Processes,
    watchers: Watchers,
    sandboxes: Sandboxes,
    metadata: Arc<FileMetadata>,
}

impl E2bServer {
    /// Asks the server about its machine.
    pub async fn new(
        client: ExecServerClient,
        options: E2bOptions,
    ) -> Result<Self, ExecServerError> {
        let info = client.environment_info().await?;
        let shared = Shared {
            home: paths::own_home(&info),
            users: Users::new(&info, options.any_user),
            processes: Processes::default(),
            watchers: Watchers::default(),
            sandboxes: Sandboxes::new(options.templates),
            metadata: Arc::new(FileMetadata::default()),
            token: options.token,
            client,
            info,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Ends all commands that run.
    pub async fn close(&self) {
        self.shared.watchers.end_all();
        self.shared.processes.end_all().await;
        self.shared.client.close().await;
    }
}

impl Shared {
    /// The running sandbox that a request is about; SDKs in debug mode name one that always runs.
    fn sandbox_of(&self, headers: &HeaderMap) -> Result<String, Refusal> {
        let given = headers.get("e2b-sandbox-id").and_then(|value| value.to_str().ok());
        let id = given.unwrap_or(sandboxes::DEBUG_ID);
        if self.sandboxes.is_running(id) { Ok(id.to_owned()) } else { Err(Refusal::no_sandbox(id)) }
    }

    /// Whether the server answers.
    async fn check_health(&self) -> Result<(), Refusal> {
        match tokio::time::timeout(HEALTH_TIMEOUT, self.client.environment_status()).await {
            // An old server does not know the method, but it has answered.
            Ok(Ok(_) | Err(ExecServerError::Server { .. } | ExecServerError::Unsupported(_))) => {
                Ok(())
            }
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Refusal::unavailable("the machine does not answer")),
        }
    }

    /// Ends a sandbox with its commands and watchers; false if there is none.
    async fn end_sandbox(&self, id: &str) -> bool {
        if !self.sandboxes.remove(id) {
            return false;
        }
        self.watchers.end_of(id);
        self.processes.end_of(id).await;
        true
    }
}
