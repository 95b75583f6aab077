//! Routes a call to its tool; failures of tools are results that say what to do next.

use exec_server_client::ExecServerError;
use rmcp::model::{CallToolResponse, CallToolResult, ContentBlock, JsonObject};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::Shared;
use crate::arguments::RunCommand;
use crate::caller::Caller;

/// A failure that the model reads.
#[derive(Debug)]
pub struct ToolError(pub String);

impl From<ExecServerError> for ToolError {
    fn from(error: ExecServerError) -> Self {
        Self(error.to_string())
    }
}

/// What a tool answers: text for the model, and the same as data.
pub struct Answer {
    text: String,
    data: Value,
}

impl Answer {
    pub fn new(text: impl Into<String>, data: &impl Serialize) -> Self {
        let data = serde_json::to_value(data).expect("answers are plain data");
        Self { text: text.into(), data }
    }
}

/// Calls a tool that exists.
pub async fn call(
    shared: &Shared,
    caller: Caller,
    name: &str,
    arguments: JsonObject,
) -> CallToolResponse {
    let answer = match name {
        "run_command" => return run_command(shared, caller, read(arguments)).await,
        "read_output" => shared.read_output(read(arguments)).await,
        "write_input" => shared.write_input(read(arguments)).await,
        "stop_process" => shared.stop_process(read(arguments)).await,
        "list_processes" => shared.list_processes(caller, read(arguments)),
        "read_file" => shared.read_file(read(arguments)).await,
        "write_file" => shared.write_file(read(arguments)).await,
        "edit_file" => shared.edit_file(read(arguments)).await,
        "list_directory" => shared.list_directory(read(arguments)).await,
        "search_files" => shared.search_files(read(arguments)).await,
        "file_info" => shared.file_info(read(arguments)).await,
        "wait_for_change" => shared.wait_for_change(read(arguments)).await,
        "machine_info" => shared.machine_info(read(arguments)),
        other => unreachable!("{other} is not in the table of tools"),
    };
    result(answer).into()
}

/// A command that outlasts its call becomes a task for a client that knows tasks.
async fn run_command(
    shared: &Shared,
    caller: Caller,
    arguments: Arguments<RunCommand>,
) -> CallToolResponse {
    let process = match shared.start_command(caller, arguments).await {
        Ok(process) => process,
        Err(error) => return result(Err(error)).into(),
    };
    let task = match process.is_running() && caller.knows_tasks {
        true => shared.tasks.follow(process.clone(), shared.max_output),
        false => None,
    };
    match task {
        Some(task) => CallToolResponse::Task(task),
        None => result(Ok(process.report(0, shared.max_output).await)).into(),
    }
}

/// The result that a client gets.
pub fn result(answer: Result<Answer, ToolError>) -> CallToolResult {
    match answer {
        Ok(Answer { text, data }) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
            result.structured_content = Some(data);
            result
        }
        Err(ToolError(text)) => CallToolResult::error(vec![ContentBlock::text(text)]),
    }
}

/// Decoded arguments, or what is wrong with them.
pub type Arguments<T> = Result<T, ToolError>;

fn read<T: DeserializeOwned>(arguments: JsonObject) -> Arguments<T> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| ToolError(format!("the arguments do not fit the tool: {error}")))
}
