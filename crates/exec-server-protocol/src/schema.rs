//! The JSON Schema of the protocol, generated from the wire types.
//!
//! | look here | for |
//! |---|---|
//! | [`document`] | the schema of all messages, with tables of methods, error kinds and limits |
//! | [`reference()`] | the same as Markdown, for `docs/protocol.md` |
//!
//! What a client sends has the schema of the decoder, what a server sends that of the encoder: a member with a default is
//! optional in a request and, unless it can be left out, always present in a reply.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::envelope::RequestId;
use crate::environment::Capabilities;
use crate::error_kinds::ErrorKind;
use crate::errors::{ErrorCode, RpcError};
use crate::fs::FsMissingChangedNotification;
use crate::http::HttpBodyDeltaNotification;
use crate::methods::{
    FS_MISSING_CHANGED, HTTP_BODY_DELTA, INITIALIZED, Lane, Method, MethodVisitor, PROCESS_CLOSED,
    PROCESS_EXITED, PROCESS_OUTPUT, Payload, SESSION_MOVED,
};
use crate::process::{
    Empty, ProcessClosedNotification, ProcessExitedNotification, ProcessOutputNotification,
};

mod definitions;
mod hand_written;
mod limits;
mod members;
mod reference;

use definitions::{Definitions, reference_to};
pub use reference::reference;

/// The text of `docs/protocol.schema.json`.
pub fn text() -> String {
    let mut text = serde_json::to_string_pretty(&document()).expect("JSON serialises");
    text.push('\n');
    text
}

/// The schema of every message (draft 2020-12).
///
/// Members with `x-` describe what a schema cannot: the methods with their params and results, the notifications, the
/// capabilities, the error codes and kinds, and the limits.
pub fn document() -> Value {
    let mut generators = Generators::new();
    let mut methods: Map<String, Value> = Method::ALL
        .iter()
        .map(|method| (method.name().to_owned(), generators.method(*method)))
        .collect();
    let mut notifications = generators.notifications();
    let (id, error) = (generators.sent::<RequestId>(), generators.sent::<RpcError>());
    let capabilities = capabilities();
    for (name, method) in &mut methods {
        method["capability"] = capability_of(name, &capabilities);
    }
    let mut definitions = generators.finish();
    for method in methods.values_mut() {
        definitions.rename_sent(&mut method["result"]);
    }
    for notification in notifications.values_mut() {
        definitions.rename_sent(&mut notification["params"]);
    }
    let requests: Vec<Value> =
        methods.iter().map(|(name, method)| request(name, &method["params"], &id)).collect();
    let events: Vec<Value> = notifications
        .iter()
        .map(|(name, notification)| event(name, &notification["params"]))
        .collect();
    let messages = [
        ("ClientRequest", "A request of a client.", json!({"oneOf": requests})),
        ("ClientNotification", "The only notification of a client.", initialized()),
        (
            "ServerReply",
            "The reply to a request that succeeded; `x-methods` has the result of each method.",
            reply("result", &json!({"type": "object"}), &id),
        ),
        (
            "ServerError",
            "The reply to a request that failed; `id` is -1 if the message could not be read.",
            reply("error", &error, &id),
        ),
        ("ServerNotification", "A notification of the server.", json!({"oneOf": events})),
    ];
    let kinds = messages.each_ref().map(|(name, ..)| reference_to(name));
    for (name, description, schema) in messages {
        definitions.insert(name, description, schema);
    }
    definitions.insert(
        "TraceContext",
        "The W3C trace context of a request; a server with `--otlp` continues it.",
        trace(),
    );
    // The order of members must not depend on the features of serde_json in this build.
    sorted(json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "exec-server protocol",
        "description": "One JSON-RPC message per websocket message or per line. Receivers ignore members that they do not know.",
        "anyOf": kinds,
        "$defs": definitions.into_value(),
        "x-methods": methods,
        "x-notifications": notifications,
        "x-capabilities": capabilities,
        "x-error-codes": error_codes(),
        "x-error-kinds": error_kinds(),
        "x-limits": limits::values(),
    }))
}

/// One generator for what clients send, one for what servers send.
struct Generators {
    received: SchemaGenerator,
    sent: SchemaGenerator,
}

impl Generators {
    fn new() -> Self {
        let settings = SchemaSettings::draft2020_12();
        Self {
            received: settings.clone().for_deserialize().into_generator(),
            sent: settings.for_serialize().into_generator(),
        }
    }

    fn sent<T: JsonSchema>(&mut self) -> Value {
        self.sent.subschema_for::<T>().to_value()
    }

    fn method(&mut self, method: Method) -> Value {
        let (params, result) = method.visit(Payloads(self));
        json!({
            "description": method.description(),
            "params": params,
            "result": result,
            "takesSandbox": method.takes_sandbox(),
            "reportsIgnored": method.reports_ignored(),
            "controlLane": method.lane() == Lane::Control,
        })
    }

    fn notifications(&mut self) -> Map<String, Value> {
        let rows = [
            (PROCESS_OUTPUT, "Output of a process.", self.sent::<ProcessOutputNotification>()),
            (
                PROCESS_EXITED,
                "The root process has exited; output of its descendants may follow.",
                self.sent::<ProcessExitedNotification>(),
            ),
            (
                PROCESS_CLOSED,
                "All streams of the process have ended; no further event follows.",
                self.sent::<ProcessClosedNotification>(),
            ),
            (
                HTTP_BODY_DELTA,
                "A part of the body of a streamed response.",
                self.sent::<HttpBodyDeltaNotification>(),
            ),
            (
                FS_MISSING_CHANGED,
                "One of the paths of `fs/watchMissing` has changed.",
                self.sent::<FsMissingChangedNotification>(),
            ),
            (
                SESSION_MOVED,
                "Another connection took the session over, and this one closes. Sent to clients with \
                 `clientCapabilities.sessionMoved`.",
                self.sent::<Empty>(),
            ),
        ];
        rows.into_iter()
            .map(|(name, description, params)| {
                (name.to_owned(), json!({"description": description, "params": params}))
            })
            .collect()
    }

    fn finish(mut self) -> Definitions {
        let mut received = self.received.take_definitions(true);
        let mut sent = self.sent.take_definitions(true);
        members::as_encoded(&mut sent);
        members::as_decoded(&mut received);
        members::describe(&mut received);
        members::describe(&mut sent);
        Definitions::merge(received, sent)
    }
}

struct Payloads<'a>(&'a mut Generators);

impl MethodVisitor for Payloads<'_> {
    type Output = (Value, Value);

    fn visit<Params: Payload, Response: Payload>(self) -> Self::Output {
        (self.0.received.subschema_for::<Params>().to_value(), self.0.sent::<Response>())
    }
}

/// Descriptions of the capabilities by name.
fn capabilities() -> Map<String, Value> {
    let schema = schemars::schema_for!(Capabilities).to_value();
    let members = schema["properties"].as_object().expect("capabilities are members");
    members.iter().map(|(name, member)| (name.clone(), member["description"].clone())).collect()
}

/// The capability that announces a method; null for a method of every server.
fn capability_of(method: &str, capabilities: &Map<String, Value>) -> Value {
    let method = Method::by_name(method).expect("it is in the table");
    if method.is_announced_by(&Capabilities::default()) {
        return Value::Null;
    }
    let announces = |name: &&String| {
        let only = serde_json::from_value(json!({name.as_str(): true}));
        method.is_announced_by(&only.expect("every capability is a boolean"))
    };
    capabilities.keys().find(announces).expect("a capability announces it").as_str().into()
}

fn request(name: &str, params: &Value, id: &Value) -> Value {
    let is_optional = params == &reference_to("NoParams");
    let required: &[&str] =
        if is_optional { &["id", "method"] } else { &["id", "method", "params"] };
    json!({
        "type": "object",
        "properties": {"jsonrpc": {}, "id": id, "method": {"const": name}, "params": params, "trace": reference_to("TraceContext")},
        "required": required,
    })
}

fn trace() -> Value {
    let text = |description: &str| json!({"type": ["string", "null"], "description": description});
    json!({
        "type": ["object", "null"],
        "properties": {
            "traceparent": text("As in the W3C recommendation."),
            "tracestate": text("As in the W3C recommendation."),
        },
    })
}

fn event(name: &str, params: &Value) -> Value {
    json!({
        "type": "object",
        "properties": {"jsonrpc": {"const": "2.0"}, "method": {"const": name}, "params": params},
        "required": ["method", "params"],
        "not": {"required": ["id"]},
    })
}

fn initialized() -> Value {
    json!({
        "type": "object",
        "properties": {"jsonrpc": {}, "method": {"const": INITIALIZED}, "params": {}},
        "required": ["method"],
        "not": {"required": ["id"]},
    })
}

fn reply(member: &str, value: &Value, id: &Value) -> Value {
    json!({
        "type": "object",
        "properties": {"jsonrpc": {"const": "2.0"}, "id": id, member: value},
        "required": ["id", member],
    })
}

fn error_codes() -> Value {
    let codes: Map<String, Value> = ErrorCode::ALL
        .iter()
        .map(|code| ((*code as i64).to_string(), code.description().into()))
        .collect();
    codes.into()
}

fn error_kinds() -> Value {
    let kinds: Map<String, Value> =
        ErrorKind::all().map(|kind| (kind.name().to_owned(), kind.description().into())).collect();
    kinds.into()
}

fn sorted(value: Value) -> Value {
    match value {
        Value::Array(items) => items.into_iter().map(sorted).collect(),
        Value::Object(members) => {
            let mut members: Vec<(String, Value)> =
                members.into_iter().map(|(name, value)| (name, sorted(value))).collect();
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(members.into_iter().collect())
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
