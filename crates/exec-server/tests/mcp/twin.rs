//! A twin of the MCP server for the conformance suite: the same handler and HTTP layer, with the suite's fixtures added.
//!
//! It passes every scenario without a baseline, which shows that the layers of the shipped server break nothing.

mod content;
mod input;
mod jobs;

use std::sync::Arc;

use exec_server_client::ExecServerClient;
use exec_server_mcp::http::HttpEndpoint;
use exec_server_mcp::{McpOptions, McpServer};
use exec_server_testkit::TestExecutor;
use rmcp::model::*;
use rmcp::service::{RequestContext, RoleServer, SubscriptionContext};
use rmcp::{ErrorData, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use jobs::Jobs;

type Context = RequestContext<RoleServer>;

/// The shipped handler, with fixtures.
#[derive(Clone)]
struct Twin {
    inner: McpServer,
    jobs: Jobs,
    /// What a diagnostic tool has changed.
    changes: broadcast::Sender<Change>,
    tools: Arc<Vec<Tool>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Tools,
    Prompts,
}

/// A type of the protocol from its JSON.
fn from<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"))
}

fn text_result(text: impl Into<String>) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text.into())]).into()
}

/// The capabilities of the client, as JSON.
fn capabilities(context: &Context) -> Value {
    serde_json::to_value(context.client_capabilities()).expect("plain data")
}

impl Twin {
    async fn fixture(
        &self,
        request: &CallToolRequestParams,
        context: &Context,
    ) -> Option<Result<CallToolResponse, ErrorData>> {
        let name = &*request.name;
        if let Some(result) = content::tool_result(name) {
            return Some(Ok(from::<CallToolResult>(result).into()));
        }
        if let Some(answer) = input::call(request, &capabilities(context)) {
            return Some(answer);
        }
        if let Some(answer) = self.jobs.call(request, context).await {
            return Some(answer);
        }
        Some(match name {
            "test_tool_with_progress" => content::progress(context).await,
            "test_tool_with_logging" => content::log(context).await,
            "test_sampling"
            | "test_elicitation"
            | "test_elicitation_sep1034_defaults"
            | "test_elicitation_sep1330_enums" => input::ask_client(request, context).await,
            "test_missing_capability" => match capabilities(context)["sampling"].is_object() {
                true => Ok(text_result("the client can sample")),
                false => {
                    let needed = from(json!({"sampling": {}}));
                    Err(ErrorData::missing_required_client_capability(needed))
                }
            },
            // It logs only for a request with a log level, and the suite sends none.
            "test_logging_tool" => Ok(text_result("nothing was logged")),
            "test_trigger_tool_change" => Ok(self.change(Change::Tools)),
            "test_trigger_prompt_change" => Ok(self.change(Change::Prompts)),
            "json_schema_2020_12_tool" | "test_custom_headers" => Ok(text_result("called")),
            _ => return None,
        })
    }

    fn change(&self, change: Change) -> CallToolResponse {
        // Without a subscription there is no receiver.
        let _ = self.changes.send(change);
        text_result("changed")
    }
}

#[allow(deprecated, reason = "the older revision has logging and subscriptions")]
impl ServerHandler for Twin {
    fn get_info(&self) -> ServerConfig {
        let mut info = self.inner.get_info();
        info.capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_completions()
            .enable_logging()
            .enable_tasks()
            .build();
        info
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: Context,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut list = self.inner.list_tools(request, context).await?;
        list.tools.extend(self.tools.iter().cloned());
        Ok(list)
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let fixture = self.tools.iter().find(|tool| tool.name == name).cloned();
        fixture.or_else(|| self.inner.get_tool(name))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: Context,
    ) -> Result<CallToolResponse, ErrorData> {
        match self.fixture(&request, &context).await {
            Some(answer) => answer,
            None => self.inner.call_tool(request, context).await,
        }
    }

    async fn set_level(&self, _: SetLevelRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::with_all_items(from(content::prompts())))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: Context,
    ) -> Result<GetPromptResponse, ErrorData> {
        if request.name == "test_input_required_result_prompt" {
            return Ok(input::prompt(&request));
        }
        let arguments = Value::from(request.arguments.clone().unwrap_or_default());
        match content::prompt(&request.name, &arguments) {
            Some(prompt) => Ok(from::<GetPromptResult>(prompt).into()),
            None => Err(ErrorData::invalid_params("there is no such prompt", None)),
        }
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(from(content::resources())))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(from(content::templates())))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: Context,
    ) -> Result<ReadResourceResponse, ErrorData> {
        match content::resource(&request.uri) {
            Some(contents) => {
                let result = json!({"resultType": "complete", "contents": [contents], "ttlMs": 0,
                    "cacheScope": "private"});
                Ok(from::<ReadResourceResult>(result).into())
            }
            None => self.inner.read_resource(request, context).await,
        }
    }

    async fn subscribe(&self, _: SubscribeRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(&self, _: UnsubscribeRequestParams, _: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.subscribe();
        loop {
            let change = tokio::select! {
                () = context.cancelled() => return Ok(()),
                change = changes.recv() => change,
            };
            // A stream that asked for something else refuses the notification.
            let _ = match change {
                Ok(Change::Tools) => context.sink().notify_tool_list_changed().await,
                Ok(Change::Prompts) => context.sink().notify_prompt_list_changed().await,
                Err(_) => return Ok(()),
            };
        }
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: Context,
    ) -> Result<GetTaskResult, ErrorData> {
        match self.jobs.tasks.get_task(&request.task_id) {
            Ok(task) => Ok(GetTaskResult::new(task)),
            Err(_) => self.inner.get_task(request, context).await,
        }
    }

    async fn update_task(&self, request: UpdateTaskParams, _: Context) -> Result<(), ErrorData> {
        self.jobs.tasks.update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: Context,
    ) -> Result<(), ErrorData> {
        match self.jobs.tasks.cancel_task(&request.task_id) {
            Ok(()) => Ok(()),
            Err(_) => self.inner.cancel_task(request, context).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_the_fixtures_passes_everything() {
    let Some(suite) = crate::conformance::suite() else { return };
    let server = TestExecutor::start().await;
    let client = ExecServerClient::connect(server.url()).await.unwrap();
    let inner = McpServer::new(client, McpOptions::default()).await.unwrap();
    let endpoint = HttpEndpoint::bind("127.0.0.1:0".parse().unwrap(), None).await.unwrap();
    let url = endpoint.url().unwrap();
    let (jobs, changes) = (Jobs::default(), broadcast::Sender::new(16));
    let tools: Arc<Vec<Tool>> = Arc::new(from(content::tools()));
    let handler = move || Twin {
        inner: inner.for_one_of_many(),
        jobs: jobs.clone(),
        changes: changes.clone(),
        tools: tools.clone(),
    };
    let serving = tokio::spawn(endpoint.serve(Arc::new(|_, _| true), handler));
    for revision in ["2025-11-25", "2026-07-28"] {
        let mut command = suite.command();
        command.args(["server", "--url", &url, "--requirements", revision]);
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = output.await.unwrap().expect("the suite can be started");
        let text = String::from_utf8_lossy(&output.stdout);
        let failed: Vec<&str> = text.lines().filter(|line| line.starts_with('✗')).collect();
        assert!(failed.is_empty(), "{revision}: {failed:#?}\n{text}");
        assert!(output.status.success() && text.contains("✓ tools-call-simple-text:"), "{text}");
    }
    serving.abort();
}
