//! Fixtures that need input from the client: in several rounds, or by requests to the client in the older revision.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use rmcp::ErrorData;
use rmcp::model::*;
use serde_json::{Value, json};

use super::{Context, from, text_result};

/// Answers a tool that returns `input_required` until it has what it needs.
pub fn call(
    request: &CallToolRequestParams,
    capabilities: &Value,
) -> Option<Result<CallToolResponse, ErrorData>> {
    let given = request.input_responses.as_ref();
    let given = |key: &str| given.and_then(|given| given.get(key)).filter(|it| it.is_object());
    let state = request.request_state.as_deref();
    Some(match &*request.name {
        "test_input_required_result_elicitation" | "test_streaming_elicitation" => {
            match given("user_name").and_then(|it| it["content"]["name"].as_str()) {
                Some(name) => Ok(text_result(format!("Hello, {name}!"))),
                None => {
                    Ok(required(json!({"user_name": question("What is your name?", "name")}), None))
                }
            }
        }
        "test_input_required_result_sampling" => match given("capital_question") {
            Some(answer) => Ok(text_result(answer.to_string())),
            None => Ok(required(
                json!({"capital_question": sample("What is the capital of France?")}),
                None,
            )),
        },
        "test_input_required_result_list_roots" => match given("client_roots") {
            Some(answer) => Ok(text_result(answer.to_string())),
            None => Ok(required(json!({"client_roots": roots()}), None)),
        },
        "test_input_required_result_request_state"
        | "test_input_required_result_tampered_state" => match state {
            None => Ok(required(json!({"confirm": confirmation()}), Some("confirm"))),
            Some(state) => opened(state).map(|_| text_result("state-ok")),
        },
        "test_input_required_result_multiple_inputs" => match state {
            None => {
                let all = json!({"user_name": question("What is your name?", "name"),
                    "greeting": sample("Generate a greeting"), "client_roots": roots()});
                Ok(required(all, Some("all")))
            }
            Some(state) => opened(state).map(|_| text_result("all inputs are there")),
        },
        "test_input_required_result_multi_round" => match state.map(opened) {
            None => {
                let first = json!({"step1": question("Step 1: What is your name?", "name")});
                Ok(required(first, Some("1")))
            }
            Some(Ok("1")) => {
                let second = question("Step 2: What is your favorite color?", "color");
                Ok(required(json!({ "step2": second }), Some("2")))
            }
            Some(Ok(_)) => Ok(text_result("both steps are done")),
            Some(Err(error)) => Err(error),
        },
        "test_input_required_result_capabilities" => {
            let mut all = json!({});
            if capabilities["sampling"].is_object() {
                all["sample"] = sample("Say something");
            }
            if capabilities["elicitation"].is_object() {
                all["question"] = question("What is your name?", "name");
            }
            Ok(required(all, None))
        }
        _ => return None,
    })
}

/// A prompt that needs input.
pub fn prompt(request: &GetPromptRequestParams) -> GetPromptResponse {
    let given = request.input_responses.as_ref().and_then(|given| given.get("user_context"));
    match given {
        Some(answer) => {
            let content = json!({"type": "text", "text": answer.to_string()});
            from::<GetPromptResult>(json!({"resultType": "complete", "messages": [{"role": "user", "content": content}]}))
                .into()
        }
        None => {
            let asked = question("What context should the prompt use?", "context");
            let all =
                json!({"resultType": "input_required", "inputRequests": {"user_context": asked}});
            from::<InputRequiredResult>(all).into()
        }
    }
}

/// Sends a request to the client, as servers of the older revision may.
pub async fn ask_client(
    request: &CallToolRequestParams,
    context: &Context,
) -> Result<CallToolResponse, ErrorData> {
    let arguments = Value::from(request.arguments.clone().unwrap_or_default());
    let asked = match &*request.name {
        "test_sampling" => sample(arguments["prompt"].as_str().unwrap_or_default()),
        "test_elicitation" => {
            let text = |what: &str| json!({"type": "string", "description": what});
            let properties =
                json!({"username": text("User's response"), "email": text("User's email address")});
            elicit(&arguments["message"], properties, &["username", "email"])
        }
        "test_elicitation_sep1034_defaults" => elicit(&"Defaults".into(), defaults(), &[]),
        _ => elicit(&"Choices".into(), choices(), &[]),
    };
    let answer = context.peer.send_request(from(asked)).await;
    let answer = answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    let answer = serde_json::to_value(&answer).expect("plain data");
    Ok(text_result(match &*request.name {
        "test_sampling" => format!("LLM response: {}", answer["content"]["text"]),
        "test_elicitation" => {
            format!("User response: action: {}, content: {}", answer["action"], answer["content"])
        }
        _ => format!(
            "Elicitation completed: action={}, content={}",
            answer["action"].as_str().unwrap_or_default(),
            answer["content"]
        ),
    }))
}

fn defaults() -> Value {
    json!({
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": true},
    })
}

fn choices() -> Value {
    let plain = json!(["option1", "option2", "option3"]);
    let titled = |first: &str| {
        json!([{"const": "value1", "title": first}, {"const": "value2", "title": "Second"},
            {"const": "value3", "title": "Third"}])
    };
    json!({
        "untitledSingle": {"type": "string", "enum": plain},
        "titledSingle": {"type": "string", "oneOf": titled("First Option")},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"]},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled("First Choice")}},
    })
}

/// A result that asks for input, with a sealed state.
fn required(requests: Value, state: Option<&str>) -> CallToolResponse {
    let mut result = json!({"resultType": "input_required", "inputRequests": requests});
    if let Some(state) = state {
        result["requestState"] = format!("{state}.{:x}", seal(state)).into();
    }
    from::<InputRequiredResult>(result).into()
}

/// The content of a state that this process has sealed.
fn opened(state: &str) -> Result<&str, ErrorData> {
    let (content, tag) = state.split_once('.').unwrap_or((state, ""));
    match tag == format!("{:x}", seal(content)) {
        true => Ok(content),
        false => Err(ErrorData::invalid_params("the requestState is not one of this server", None)),
    }
}

fn seal(content: &str) -> u64 {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    KEY.hash_one(content)
}

/// A request for one text.
pub fn question(message: &str, member: &str) -> Value {
    elicit(&message.into(), json!({ member: {"type": "string"} }), &[member])
}

fn confirmation() -> Value {
    elicit(&"Please confirm".into(), json!({"ok": {"type": "boolean"}}), &["ok"])
}

fn elicit(message: &Value, properties: Value, required: &[&str]) -> Value {
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    json!({"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}})
}

fn sample(text: &str) -> Value {
    let message = json!({"role": "user", "content": {"type": "text", "text": text}});
    json!({"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 100}})
}

fn roots() -> Value {
    json!({"method": "roots/list", "params": {}})
}
