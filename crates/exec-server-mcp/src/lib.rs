//! An MCP server beside an agent: its tools run commands and handle files on the machine of an exec-server.
//!
//! | look here | for |
//! |---|---|
//! | [`McpServer`] | the handler; serve it over stdio or HTTP |
//! | [`McpOptions`] | which tools there are, and what confines them |
//! | `tools` | names, descriptions and schemas |
//! | `processes`, `process`, `output_log` | commands, and what is kept of their output |
//! | `caller` | which client a call is from, and which processes it sees |
//! | `tasks` | the tasks extension |
//! | `files`, `lines` | the tools about files |
//! | [`http`] | the streamable HTTP transport |
//!
//! One MCP server owns one exec-server session. A lost link is resumed by the client below MCP.

mod arguments;
mod call;
mod caller;
mod files;
pub mod http;
mod lines;
mod output_log;
mod paths;
mod process;
mod processes;
mod tasks;
mod tools;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use exec_server_client::{
    ExecServerClient, ExecServerError, ExecutorFileSystem, TraceContext, with_trace_context,
};
use exec_server_protocol::environment::EnvironmentInfo;
use exec_server_protocol::sandbox::SandboxParams;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CancelTaskParams, GetTaskParams, GetTaskResult,
    Implementation, ListToolsResult, PaginatedRequestParams, ProgressNotificationParam,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, Tool,
    UpdateTaskParams,
};
use rmcp::service::{RequestContext, RoleServer, ServiceExt};
use rmcp::{ErrorData, ServerHandler};

use caller::{Caller, Viewer};
use paths::Paths;
use processes::Processes;
use tasks::Tasks;

/// Which tools there are, and what confines them.
#[derive(Debug, Clone, Default)]
pub struct McpOptions {
    /// Only these tools; `None` means all.
    pub allow: Option<Vec<String>>,
    /// Whether tools that change something are left out.
    pub read_only: bool,
    /// The directory that paths of tools must be in.
    pub root: Option<String>,
    /// Where relative paths and commands start; the root or the server's directory without it.
    pub cwd: Option<String>,
    /// The sandbox of every command and every access to a file.
    pub sandbox: Option<SandboxParams>,
    /// Bytes of output in one answer; 40,000 without it.
    pub max_output: Option<usize>,
}

/// Bytes of output in one answer: about 10,000 tokens.
const DEFAULT_MAX_OUTPUT: usize = 40_000;

/// How often a call with a progress token reports the seconds that it has taken.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Why an MCP server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum McpError {
    /// A tool of `--allow` does not exist.
    #[error("there is no tool `{0}`; the tools are {1}")]
    UnknownTool(String, String),
    /// The exec-server cannot be used.
    #[error(transparent)]
    Client(#[from] ExecServerError),
    /// The transport failed.
    #[error("{0}")]
    Transport(String),
}

/// The handler of MCP requests; cheap to clone, and all clones share one session.
#[derive(Clone)]
pub struct McpServer {
    shared: Arc<Shared>,
    viewer: Viewer,
}

struct Shared {
    client: ExecServerClient,
    files: ExecutorFileSystem,
    paths: Paths,
    shell: String,
    sandbox: Option<SandboxParams>,
    info: Option<EnvironmentInfo>,
    processes: Processes,
    tasks: Tasks,
    /// How many clients have been served by [`McpServer::for_one_of_many`].
    viewers: AtomicU64,
    tools: Vec<Tool>,
    max_output: usize,
    instructions: String,
}

impl McpServer {
    /// Checks the options against the server that `client` is connected to.
    pub async fn new(client: ExecServerClient, options: McpOptions) -> Result<Self, McpError> {
        let info = client.remote().known_environment().await?;
        let shell = info.as_ref().map_or("/bin/sh", |info| &info.shell.path).to_owned();
        let paths = Paths::new(&options, info.as_ref());
        let tools = tools::selected(&options)?;
        let files = match &options.sandbox {
            Some(sandbox) => client.fs().with_sandbox(sandbox),
            None => client.fs(),
        };
        let instructions = instructions(info.as_ref(), &shell, &paths, &options);
        let shared = Shared {
            client,
            files,
            paths,
            shell,
            sandbox: options.sandbox,
            info,
            processes: Processes::default(),
            tasks: Tasks::default(),
            viewers: AtomicU64::new(0),
            tools,
            max_output: options.max_output.unwrap_or(DEFAULT_MAX_OUTPUT),
            instructions,
        };
        Ok(Self { shared: Arc::new(shared), viewer: Viewer::Only })
    }

    /// A handler for one of several clients: it lists only the processes of this client, whose ids cannot be guessed.
    #[must_use]
    pub fn for_one_of_many(&self) -> Self {
        let number = self.shared.viewers.fetch_add(1, Ordering::Relaxed);
        Self { shared: self.shared.clone(), viewer: Viewer::OneOf(number) }
    }

    /// Serves one client over stdin and stdout until its end of input; then ends the commands that it started.
    pub async fn serve_stdio(self) -> Result<(), McpError> {
        let broken = |error: String| McpError::Transport(error);
        let shared = self.shared.clone();
        let running = self
            .serve(rmcp::transport::stdio_pipes())
            .await
            .map_err(|error| broken(error.to_string()))?;
        let ended = running.waiting().await.map_err(|error| broken(error.to_string()));
        shared.close().await;
        ended.map(drop)
    }

    /// Ends the commands that were started, and the session.
    pub async fn close(&self) {
        self.shared.close().await;
    }
}

impl Shared {
    async fn close(&self) {
        self.tasks.manager.shutdown();
        self.processes.end_all().await;
        self.client.close().await;
    }
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_tasks().build();
        let implementation = Implementation::new("exec-server", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(capabilities)
            .with_server_info(implementation)
            .with_instructions(self.shared.instructions.clone())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.shared.tools.clone()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.shared.tools.iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if !self.shared.tools.iter().any(|tool| tool.name == request.name) {
            let text = format!("there is no tool `{}`", request.name);
            return Err(ErrorData::invalid_params(text, None));
        }
        let arguments = request.arguments.unwrap_or_default();
        let knows_tasks = context.client_capabilities().is_some_and(|it| it.supports_tasks());
        let caller = Caller { viewer: self.viewer, knows_tasks };
        let progress_token = context.meta.get_progress_token();
        let started = Instant::now();
        // Not `interval`: its first tick, although due at once, takes up to a millisecond.
        let first = started + PROGRESS_INTERVAL;
        let mut tick = tokio::time::interval_at(first.into(), PROGRESS_INTERVAL);
        let meta = &context.meta.0;
        let trace = meta
            .get_traceparent()
            .and_then(|parent| TraceContext::parse(parent, meta.get_tracestate()));
        let call = call::call(&self.shared, caller, &request.name, arguments);
        let mut call = pin!(async {
            match trace {
                Some(trace) => with_trace_context(trace, call).await,
                None => call.await,
            }
        });
        loop {
            tokio::select! {
                biased;
                response = &mut call => return Ok(response),
                () = context.ct.cancelled() => {
                    let text = "the call was cancelled; a command that it started goes on";
                    return Err(ErrorData::internal_error(text, None));
                }
                _ = tick.tick(), if progress_token.is_some() => {
                    let Some(token) = progress_token.clone() else { continue };
                    let seconds = started.elapsed().as_secs_f64();
                    let progress = ProgressNotificationParam::new(token, seconds);
                    // A client that is gone needs no progress.
                    let _ = context.peer.notify_progress(progress).await;
                }
            }
        }
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let text = format!("there is no resource `{}`", request.uri);
        Err(ErrorData::invalid_params(text, Some(serde_json::json!({"uri": request.uri}))))
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.shared.tasks.manager.get_task(&request.task_id).map(GetTaskResult::new)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.shared.tasks.manager.update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.shared.tasks.manager.cancel_task(&request.task_id)
    }
}

fn instructions(
    info: Option<&EnvironmentInfo>,
    shell: &str,
    paths: &Paths,
    options: &McpOptions,
) -> String {
    let host = info.and_then(|info| info.host.as_ref());
    let fact = |fact: Option<&String>| fact.cloned().unwrap_or_else(|| "unknown".to_owned());
    let name = fact(host.and_then(|host| host.name.as_ref()));
    let kernel = fact(host.and_then(|host| host.kernel.as_ref()));
    let system = info.and_then(|info| info.platform_os.as_ref());
    let mut text = format!(
        "Commands and files on the machine {name} ({}, kernel {kernel}). Commands run in {shell}; relative paths start in {}.",
        fact(system),
        paths.base()
    );
    if let Some(root) = &options.root {
        text.push_str(&format!(" Only paths below {root} can be used."));
    }
    if options.sandbox.is_some() {
        text.push_str(" A sandbox confines commands and files.");
    }
    text.push_str(
        " A command that is not over after the yield time goes on; use its process_id with read_output, write_input and stop_process.",
    );
    text
}
