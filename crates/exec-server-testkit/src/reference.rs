//! Runs the unmodified reference client against a server under test, with a scripted model in place of a real one.
//!
//! Owner: the test that calls [`ReferenceClient::run`]; when that returns or panics, the client process, the model's
//! threads and the folders of the run are gone.
//!
//! ```text
//!   Scenario ──▶ ScriptedModel ◀──HTTP, SSE──▶ codex exec ◀──websocket──▶ server under test
//!                     │ what the tools said, as the model got it
//!                     ▼
//!                    Run
//! ```
//!
//! Invariant: nothing here waits for time to pass. Output that is late is polled for until it is there, and one
//! deadline bounds the whole run.

mod child;
mod install;
mod model;
mod scenario;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use child::run_to_end;
use install::{find_binary, reference_folder};
use model::ScriptedModel;
pub use scenario::{Scenario, ToolCall, ToolResult};

/// Names the reference's native binary; set it where there is no npm or no network.
pub const REFERENCE_BIN: &str = "EXEC_SERVER_REFERENCE_BIN";

/// The reference client's binary, ready to run.
#[derive(Clone, Debug)]
pub struct ReferenceClient {
    binary: PathBuf,
}

impl ReferenceClient {
    /// Finds the client, or installs it below the target folder, or says on stderr why there is none.
    ///
    /// Panics if `EXEC_SERVER_REFERENCE_BIN` is set but names no file: to skip would then hide a mistake.
    pub fn find() -> Option<Self> {
        static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        match FOUND.get_or_init(find_binary) {
            Ok(binary) => Some(Self { binary: binary.clone() }),
            Err(reason) => {
                eprintln!("skipped, no reference client: {reason}");
                None
            }
        }
    }

    /// Plays the scenario through one `codex exec` whose only environment is the server at `url`.
    ///
    /// Panics with all that was said so far if the client fails, stops half-way, or outlives `deadline`.
    pub fn run(&self, url: &str, scenario: Scenario, deadline: Duration) -> Run {
        let folder = RunFolder::create();
        let (home, workspace) = (folder.subfolder("home"), folder.subfolder("workspace"));
        let mut config = scenario.mcp_config(&workspace);
        for (name, text) in &scenario.files {
            fs::write(workspace.join(name), text).expect("the workspace is new and ours");
        }
        let model = ScriptedModel::start(scenario);
        config.insert_str(0, &base_config(model.address));
        fs::write(home.join("config.toml"), config).expect("the home is new and ours");

        let mut codex = Command::new(&self.binary);
        codex
            .args(["exec", "--strict-config", "--skip-git-repo-check"])
            .args(["--ephemeral", "--color", "never", "go"])
            .current_dir(&workspace)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &home)
            .env("CODEX_HOME", &home)
            .env("CODEX_EXEC_SERVER_URL", url)
            .env("SCRIPTED_MODEL_KEY", "unused");
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
                "{problem}\n--- heard\n{results:#?}\n--- left to say\n{turns:#?}\n--- stdout\n{}\n--- stderr\n{}",
                ended.stdout, ended.stderr
            );
        }
        Run { results: scenario.results, last_message: ended.stdout.trim_end().to_owned() }
    }
}

/// What came out of a run.
#[derive(Debug)]
pub struct Run {
    results: BTreeMap<String, ToolResult>,
    /// The model's last message, as the client printed it.
    pub last_message: String,
}

impl Run {
    /// What the model was told about the calls with this label.
    pub fn result(&self, label: &str) -> &ToolResult {
        let result = self.results.get(label);
        result.unwrap_or_else(|| panic!("the scenario has no call `{label}`"))
    }
}

/// All that would reach for the network is off; the scripted model and the server under test remain.
fn base_config(model: SocketAddr) -> String {
    format!(
        r#"model = "scripted"
model_provider = "scripted"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
web_search = "disabled"

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

/// The folder of one run, removed with it.
struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Below the target folder, because the client keeps no helpers in a home below the temporary folder.
    fn create() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let name =
                format!("run-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = reference_folder().join(name);
            match fs::create_dir(&path) {
                Ok(()) => return Self { path },
                // A test that was killed left it behind, and its process id has come round again.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => panic!("could not create `{}`: {error}", path.display()),
            }
        }
    }

    fn subfolder(&self, name: &str) -> PathBuf {
        let path = self.path.join(name);
        fs::create_dir(&path).expect("the run's folder is new and ours");
        path
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("could not remove `{}`: {error}", self.path.display());
        }
    }
}
