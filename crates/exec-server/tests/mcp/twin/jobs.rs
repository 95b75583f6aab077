//! Fixtures of the tasks extension.

use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::*;
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use serde_json::{Value, json};

use super::input::question;
use super::{Context, from, text_result};

/// The running jobs.
#[derive(Clone, Default)]
pub struct Jobs {
    pub tasks: TaskManager,
}

impl Jobs {
    pub async fn call(
        &self,
        request: &CallToolRequestParams,
        context: &Context,
    ) -> Option<Result<CallToolResponse, ErrorData>> {
        let name = request.name.to_string();
        let arguments = Value::from(request.arguments.clone().unwrap_or_default());
        if name == "greet" {
            let name = arguments["name"].as_str().unwrap_or_default();
            return Some(Ok(text_result(format!("Hello, {name}!"))));
        }
        if name == "test_tool_with_task" {
            return Some(Ok(self.after_input(request)));
        }
        let jobs =
            ["slow_compute", "failing_job", "protocol_error_job", "confirm_delete", "multi_input"];
        if !jobs.contains(&name.as_str()) {
            return None;
        }
        let knows_tasks = context.client_capabilities().is_some_and(|it| it.supports_tasks());
        let seconds = arguments["seconds"].as_u64().unwrap_or(0);
        if !knows_tasks {
            return Some(match name.as_str() {
                "slow_compute" => {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    Ok(text_result("computed"))
                }
                _ => {
                    let needed = ClientCapabilities::builder().enable_tasks().build();
                    Err(ErrorData::missing_required_client_capability(needed))
                }
            });
        }
        let task = self.tasks.spawn(TaskOptions::new(), move |context| {
            Box::pin(async move { run(&name, seconds, context).await })
        });
        Some(Ok(CreateTaskResult::new(task).into()))
    }

    /// Asks for a name, and then greets it in a task.
    fn after_input(&self, request: &CallToolRequestParams) -> CallToolResponse {
        let given = request.input_responses.as_ref().and_then(|given| given.get("user_name"));
        let Some(name) = given.and_then(|given| given["content"]["name"].as_str()) else {
            let asked = json!({"user_name": question("What is your name?", "name")});
            let result = json!({"resultType": "input_required", "inputRequests": asked});
            return from::<InputRequiredResult>(result).into();
        };
        let greeting = format!("Hello, {name}!");
        let task = self.tasks.spawn(TaskOptions::new(), |_| {
            Box::pin(async { Ok(CallToolResult::success(vec![ContentBlock::text(greeting)])) })
        });
        CreateTaskResult::new(task).into()
    }
}

async fn run(name: &str, seconds: u64, context: TaskContext) -> Result<CallToolResult, TaskExit> {
    let ask =
        async |key: &str| context.request_input(key, from(question("Really?", "confirm"))).await;
    match name {
        "slow_compute" => tokio::select! {
            () = context.cancelled() => return Err(TaskExit::Cancelled),
            () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
        },
        "failing_job" => {
            tokio::time::sleep(Duration::from_secs(1)).await;
            return Ok(CallToolResult::error(vec![ContentBlock::text("the job failed")]));
        }
        "protocol_error_job" => {
            return Err(ErrorData::internal_error("the job broke", Some(json!({}))).into());
        }
        "confirm_delete" => drop(ask("confirm").await?),
        _ => {
            let (first, second) = tokio::join!(ask("first"), ask("second"));
            first?;
            second?;
        }
    }
    Ok(CallToolResult::success(vec![ContentBlock::text("done")]))
}
