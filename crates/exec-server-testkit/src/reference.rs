//! Runs the unmodified reference client against a server under test, with a scripted model in place of a real one.
//!
//! Owner: the test that calls [`ReferenceClient::run`] or [`ReferenceClient::start_thread`]. The client process and the
//! model's threads stop when `run` returns or the thread is dropped; the directories are removed with the [`Run`].
//!
//! Where mount namespaces are allowed, the client sees an empty directory in place of its workspace, so that all its
//! knowledge of the workspace comes through the server.
//!
//! ```text
//!   Scenario ──▶ ScriptedModel ◀──HTTP, SSE──▶ codex ◀──websocket──▶ server under test
//!                     │ tool results, as the model received them
//!                     ▼
//!                    Run
//! ```
//!
//! Invariant: nothing sleeps for a fixed time. Late output is polled, and one deadline bounds the whole run.

mod child;
mod executor;
mod folder;
mod install;
mod model;
mod scenario;
mod server;
mod thread;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use child::run_to_end;
pub use executor::ReferenceExecutor;
use folder::RunFolder;
pub use install::ReferenceVersion;
use install::find_binary;
use model::ScriptedModel;
pub use scenario::{Scenario, ToolCall, ToolResult};
use serde_json::Value;
pub use server::ReferenceServer;
pub use thread::Thread;

/// Names native binaries of the reference, one per version, separated as in `PATH`; for machines without npm or
/// network.
pub const REFERENCE_BIN: &str = "EXEC_SERVER_REFERENCE_BIN";

/// The reference client's binary, ready to run.
#[derive(Clone, Debug)]
pub struct ReferenceClient {
    binary: PathBuf,
    version: ReferenceVersion,
}

impl ReferenceClient {
    /// Finds the client or installs it below the target directory; prints why if neither is possible.
    ///
    /// Panics if `EXEC_SERVER_REFERENCE_BIN` is set but names no file, because a skip would hide the mistake.
    pub fn find(version: ReferenceVersion) -> Option<Self> {
        static FOUND: [OnceLock<Result<PathBuf, String>>; ReferenceVersion::ALL.len()] =
            [const { OnceLock::new() }; ReferenceVersion::ALL.len()];
        match FOUND[version as usize].get_or_init(|| find_binary(version)) {
            Ok(binary) => Some(Self { binary: binary.clone(), version }),
            Err(reason) => {
                eprintln!("skipped, no reference {version}: {reason}");
                None
            }
        }
    }

    /// The client in every available version.
    pub fn find_all() -> Vec<Self> {
        ReferenceVersion::ALL.into_iter().filter_map(Self::find).collect()
    }

    /// Its version.
    pub fn version(&self) -> ReferenceVersion {
        self.version
    }

    /// The binary, which is also a server.
    pub fn binary(&self) -> &std::path::Path {
        &self.binary
    }

    /// Runs the scenario through one `codex exec` whose only environment is the server at `url`.
    ///
    /// Panics with the transcript if the client fails, stops early, or exceeds `deadline`.
    pub fn run(&self, url: &str, scenario: Scenario, deadline: Duration) -> Run {
        self.run_at(&ClientTarget::Server { url }, scenario, deadline)
    }

    /// Like [`Self::run`], with any target.
    pub fn run_at(&self, target: &ClientTarget, scenario: Scenario, deadline: Duration) -> Run {
        let task = scenario.task.clone().unwrap_or_else(|| "go".to_owned());
        let (folder, model) = prepare(scenario);
        let arguments = ["exec", "--skip-git-repo-check", "--ephemeral", "--color", "never", &task];
        let codex = self.command(target, &folder, &arguments);
        let ended = run_to_end(codex, deadline).expect("the client can be started");
        let scenario = model.stop();

        let problem = match ended.status {
            None => Some(format!("the client still ran after {deadline:?}")),
            Some(status) if !status.success() => Some(format!("the client ended with {status}")),
            Some(_) if !scenario.turns.is_empty() => Some("the client stopped half-way".to_owned()),
            Some(_) => None,
        };
        if let Some(problem) = problem {
            let Scenario { turns, results, .. } = scenario;
            panic!(
                "reference {}: {problem}\n--- heard\n{results:#?}\n--- left to say\n{turns:#?}\n--- stdout\n{}\n--- stderr\n{}",
                self.version, ended.stdout, ended.stderr
            );
        }
        let Scenario { results, requests, .. } = scenario;
        let last_message = ended.stdout.trim_end().to_owned();
        Run { version: self.version, results, requests, last_message, folder }
    }

    /// Starts a conversation whose turns the test runs one by one.
    pub fn start_thread(&self, url: &str, scenario: Scenario, deadline: Duration) -> Thread {
        let (folder, model) = prepare(scenario);
        let codex = self.command(&ClientTarget::Server { url }, &folder, &["app-server"]);
        Thread::start(codex, folder, model, deadline)
    }

    /// Starts the reference's own executor for an environment at a rendezvous.
    pub fn start_executor(&self, url: &str, environment: &str, token: &str) -> ReferenceExecutor {
        ReferenceExecutor::start(&self.binary, url, environment, token)
    }

    fn command(&self, target: &ClientTarget, folder: &RunFolder, arguments: &[&str]) -> Command {
        let mut codex = folder.command_without_workspace(&self.binary);
        codex
            .args(arguments)
            .arg("--strict-config")
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", folder.home())
            .env("CODEX_HOME", folder.home())
            .env("SCRIPTED_MODEL_KEY", "unused");
        match target {
            ClientTarget::Server { url } => codex.env("CODEX_EXEC_SERVER_URL", url),
            ClientTarget::Rendezvous { url, environment, token } => codex
                .env("CODEX_EXEC_SERVER_NOISE_REGISTRY_URL", url)
                .env("CODEX_EXEC_SERVER_NOISE_ENVIRONMENT_ID", environment)
                .env("CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN", token),
        };
        codex
    }
}

/// The client's only environment.
#[derive(Clone, Copy, Debug)]
pub enum ClientTarget<'a> {
    /// A server that the client connects to.
    Server {
        /// The server's URL.
        url: &'a str,
    },
    /// An executor at a rendezvous.
    Rendezvous {
        /// The rendezvous' URL.
        url: &'a str,
        /// The environment.
        environment: &'a str,
        /// A harness's token.
        token: &'a str,
    },
}

/// Creates the directories and starts the model.
fn prepare(scenario: Scenario) -> (RunFolder, ScriptedModel) {
    let folder = RunFolder::create();
    for (name, content) in &scenario.files {
        folder.write(name, content);
    }
    let mut config = scenario.mcp_config(&folder.workspace());
    let name = scenario.model.clone().unwrap_or_else(|| "scripted".to_owned());
    let sandbox = scenario.sandbox_config();
    let model = ScriptedModel::start(scenario);
    config.insert_str(0, &base_config(&name, &sandbox, model.address));
    fs::write(folder.home().join("config.toml"), config).expect("the home is new and ours");
    (folder, model)
}

/// Result of a run.
#[derive(Debug)]
pub struct Run {
    /// Which client it was.
    pub version: ReferenceVersion,
    results: BTreeMap<String, ToolResult>,
    requests: Vec<Value>,
    /// The model's last message, as the client printed it.
    pub last_message: String,
    folder: RunFolder,
}

impl Run {
    /// Result of the calls with this label.
    pub fn result(&self, label: &str) -> &ToolResult {
        let result = self.results.get(label);
        result.unwrap_or_else(|| panic!("the scenario has no call `{label}`"))
    }

    /// The texts that the client sent to the model before its first answer: instructions, skills, the task.
    pub fn instructions(&self) -> String {
        self.requests.first().map(texts_of).unwrap_or_default()
    }

    /// The workspace, as it was left.
    pub fn workspace(&self) -> PathBuf {
        self.folder.workspace()
    }
}

/// All message texts of one request to the model.
fn texts_of(request: &Value) -> String {
    let items = request.as_array().into_iter().flatten();
    let parts = items.filter_map(|item| item["content"].as_array()).flatten();
    parts.filter_map(|part| part["text"].as_str()).flat_map(|text| [text, "\n"]).collect()
}

/// Disables everything that uses the network, except the scripted model and the server under test.
fn base_config(name: &str, sandbox: &str, model: SocketAddr) -> String {
    format!(
        r#"model = "{name}"
model_provider = "scripted"
check_for_update_on_startup = false
web_search = "disabled"
{sandbox}
[model_providers.scripted]
name = "scripted"
base_url = "http://{model}/v1"
wire_api = "responses"
env_key = "SCRIPTED_MODEL_KEY"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[otel]
exporter = "none"
metrics_exporter = "none"

[features]
apps = false
plugins = false
enable_request_compression = false
"#
    )
}
