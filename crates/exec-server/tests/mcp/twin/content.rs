//! Fixtures that only have content: tools, prompts and resources as the suite describes them.

use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::*;
use serde_json::{Value, json};

use super::{Context, from, text_result};

/// A picture of one red pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJggg==";
/// A sound without samples.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";

/// The table of fixture tools.
pub fn tools() -> Value {
    let plain = [
        "test_simple_text",
        "test_image_content",
        "test_audio_content",
        "test_embedded_resource",
        "test_multiple_content_types",
        "test_error_handling",
        "test_tool_with_progress",
        "test_tool_with_logging",
        "test_elicitation_sep1034_defaults",
        "test_elicitation_sep1330_enums",
        "test_missing_capability",
        "test_streaming_elicitation",
        "test_logging_tool",
        "test_trigger_tool_change",
        "test_trigger_prompt_change",
        "test_input_required_result_elicitation",
        "test_input_required_result_sampling",
        "test_input_required_result_list_roots",
        "test_input_required_result_request_state",
        "test_input_required_result_multiple_inputs",
        "test_input_required_result_multi_round",
        "test_input_required_result_tampered_state",
        "test_input_required_result_capabilities",
        "failing_job",
        "protocol_error_job",
        "multi_input",
        "test_tool_with_task",
    ];
    let text = json!({"type": "string"});
    let with = |name: &str, properties: Value, required: &[&str]| {
        let schema = json!({"type": "object", "properties": properties, "required": required});
        json!({"name": name, "description": "A fixture.", "inputSchema": schema})
    };
    let mut tools: Vec<Value> = plain.map(|name| with(name, json!({}), &[])).to_vec();
    tools.push(with("test_sampling", json!({"prompt": text}), &["prompt"]));
    tools.push(with("test_elicitation", json!({"message": text}), &["message"]));
    tools.push(with("greet", json!({"name": text}), &["name"]));
    tools.push(with("confirm_delete", json!({"filename": text}), &[]));
    let seconds = json!({"seconds": {"type": "integer"}, "label": text});
    tools.push(with("slow_compute", seconds, &["seconds"]));
    let header = json!({"region": {"type": "string", "x-mcp-header": "Region"}});
    tools.push(with("test_custom_headers", header, &["region"]));
    tools.push(json!({
        "name": "json_schema_2020_12_tool",
        "description": "A schema with keywords of 2020-12.",
        "inputSchema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"city": text}}},
            "properties": {"address": {"$ref": "#/$defs/address"}, "phone": text, "email": text},
            "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
            "if": {"required": ["phone"]}, "then": {"required": ["phone"]}, "else": {"required": ["email"]},
            "additionalProperties": false,
        },
    }));
    tools.into()
}

/// The result of a tool that always says the same.
pub fn tool_result(name: &str) -> Option<Value> {
    let text = |text: &str| json!({"type": "text", "text": text});
    let image = json!({"type": "image", "data": PNG, "mimeType": "image/png"});
    let resource = |uri: &str, kind: &str, text: &str| json!({"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": text}});
    let content = match name {
        "test_simple_text" => json!([text("This is a simple text response for testing.")]),
        "test_image_content" => json!([image]),
        "test_audio_content" => {
            json!([{"type": "audio", "data": WAV, "mimeType": "audio/wav"}])
        }
        "test_embedded_resource" => json!([resource(
            "test://embedded-resource",
            "text/plain",
            "This is an embedded resource content."
        )]),
        "test_multiple_content_types" => json!([
            text("Multiple content types test:"),
            image,
            resource(
                "test://mixed-content-resource",
                "application/json",
                r#"{"test":"data","value":123}"#
            )
        ]),
        "test_error_handling" => {
            let content = [text("This tool intentionally returns an error for testing")];
            return Some(json!({"resultType": "complete", "content": content, "isError": true}));
        }
        _ => return None,
    };
    Some(json!({"resultType": "complete", "content": content}))
}

/// Reports 0, 50 and 100 of 100.
pub async fn progress(context: &Context) -> Result<CallToolResponse, ErrorData> {
    for progress in [0.0, 50.0, 100.0] {
        if let Some(token) = context.meta.get_progress_token() {
            let progress = ProgressNotificationParam::new(token, progress).with_total(100.0);
            let _ = context.peer.notify_progress(progress).await;
        }
        pause().await;
    }
    Ok(text_result("the work is done"))
}

/// Sends three log messages.
pub async fn log(context: &Context) -> Result<CallToolResponse, ErrorData> {
    for text in ["Tool execution started", "Tool processing data", "Tool execution completed"] {
        let params = json!({"level": "info", "data": text});
        let message = json!({"method": "notifications/message", "params": params});
        let _ = context.peer.send_notification(from(message)).await;
        pause().await;
    }
    Ok(text_result("three messages were logged"))
}

/// The suite wants messages of one call to be apart.
async fn pause() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

pub fn prompts() -> Value {
    let argument =
        |name: &str| json!({"name": name, "description": "An argument.", "required": true});
    let prompt = |name: &str, arguments: Value| json!({"name": name, "description": "A fixture.", "arguments": arguments});
    json!([
        prompt("test_simple_prompt", json!([])),
        prompt("test_prompt_with_arguments", json!([argument("arg1"), argument("arg2")])),
        prompt("test_prompt_with_embedded_resource", json!([argument("resourceUri")])),
        prompt("test_prompt_with_image", json!([])),
        prompt("test_input_required_result_prompt", json!([])),
    ])
}

pub fn prompt(name: &str, arguments: &Value) -> Option<Value> {
    let text = |text: &str| json!({"role": "user", "content": {"type": "text", "text": text}});
    let argument = |name: &str| arguments[name].as_str().unwrap_or_default().to_owned();
    let messages = match name {
        "test_simple_prompt" => json!([text("This is a simple prompt for testing.")]),
        "test_prompt_with_arguments" => {
            let (first, second) = (argument("arg1"), argument("arg2"));
            json!([text(&format!("Prompt with arguments: arg1='{first}', arg2='{second}'"))])
        }
        "test_prompt_with_embedded_resource" => {
            let resource = json!({"uri": argument("resourceUri"), "mimeType": "text/plain",
                "text": "Embedded resource content for testing."});
            let embedded = json!({"type": "resource", "resource": resource});
            json!([{"role": "user", "content": embedded}, text("Please process the embedded resource above.")])
        }
        "test_prompt_with_image" => {
            let image = json!({"type": "image", "data": PNG, "mimeType": "image/png"});
            json!([{"role": "user", "content": image}, text("Please analyze the image above.")])
        }
        _ => return None,
    };
    Some(json!({"resultType": "complete", "messages": messages}))
}

pub fn resources() -> Value {
    let row = |uri: &str, kind: &str| json!({"uri": uri, "name": uri, "description": "A fixture.", "mimeType": kind});
    json!([
        row("test://static-text", "text/plain"),
        row("test://static-binary", "image/png"),
        row("test://watched-resource", "text/plain"),
    ])
}

pub fn templates() -> Value {
    json!([{"uriTemplate": "test://template/{id}/data", "name": "template", "description": "A fixture.",
        "mimeType": "application/json"}])
}

pub fn resource(uri: &str) -> Option<Value> {
    let id = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
    if let Some(id) = id {
        let text = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
        return Some(json!({"uri": uri, "mimeType": "application/json", "text": text.to_string()}));
    }
    match uri {
        "test://static-text" => Some(json!({"uri": uri, "mimeType": "text/plain",
            "text": "This is the content of the static text resource."})),
        "test://static-binary" => Some(json!({"uri": uri, "mimeType": "image/png", "blob": PNG})),
        "test://watched-resource" => {
            Some(json!({"uri": uri, "mimeType": "text/plain", "text": "watched"}))
        }
        _ => None,
    }
}
