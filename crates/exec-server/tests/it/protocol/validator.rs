//! Checks messages against the generated schema.

use std::sync::OnceLock;

use exec_server_protocol::schema;
use serde_json::{Value, json};

/// The schema of this build.
pub fn document() -> &'static Value {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    DOCUMENT.get_or_init(schema::document)
}

/// Checks a value against a definition; members that the definition does not have are allowed.
pub fn check(name: &str, value: &Value) {
    check_in(&document()["$defs"], &reference(name), value);
}

/// Checks a request of a client.
pub fn check_request(request: &Value) {
    // The definition of one method, because errors of a `oneOf` name none of its forms.
    let method = request["method"].as_str().expect("a request has a method");
    let entry = document()["x-methods"].get(method);
    let entry = entry.unwrap_or_else(|| panic!("{method} is not in the schema"));
    if let Some(params) = request.get("params") {
        check_in(&document()["$defs"], &entry["params"], params);
    }
    check("ClientRequest", request);
}

/// Checks the result of a method, which has only members of the schema.
pub fn check_result(method: &str, result: &Value) {
    check_in(strict(), &document()["x-methods"][method]["result"], result);
}

/// Checks an error reply, whose kind is one of the schema.
pub fn check_error(error: &Value) {
    check_in(strict(), &reference("RpcError"), error);
    let kind = error["data"]["kind"].as_str().expect("every error has a kind");
    assert!(document()["x-error-kinds"].get(kind).is_some(), "{kind} is not in the schema");
    let code = error["code"].to_string();
    assert!(document()["x-error-codes"].get(&code).is_some(), "{code} is not in the schema");
}

/// Checks a notification of a server.
pub fn check_notification(message: &Value) {
    let method = message["method"].as_str().expect("a notification has a method");
    let entry = document()["x-notifications"].get(method);
    let entry = entry.unwrap_or_else(|| panic!("{method} is not in the schema"));
    check_in(strict(), &entry["params"], &message["params"]);
    check("ServerNotification", message);
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/$defs/{name}")})
}

fn check_in(definitions: &Value, schema: &Value, value: &Value) {
    let mut schema = schema.clone();
    schema["$schema"] = document()["$schema"].clone();
    schema["$defs"] = definitions.clone();
    let validator = jsonschema::validator_for(&schema).expect("the schema is valid");
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{} at {}", error, error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{errors:#?} in {value:#}");
}

/// The definitions without room for members that they do not name.
fn strict() -> &'static Value {
    static STRICT: OnceLock<Value> = OnceLock::new();
    STRICT.get_or_init(|| {
        let mut definitions = document()["$defs"].clone();
        close(&mut definitions);
        definitions
    })
}

fn close(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(close),
        Value::Object(members) => {
            members.values_mut().for_each(close);
            if members.get("properties").is_some_and(Value::is_object)
                && members.get("type").is_some_and(|kind| kind == "object")
            {
                members.entry("unevaluatedProperties").or_insert(Value::Bool(false));
            }
        }
        _ => {}
    }
}

#[test]
fn the_validator_refuses_what_the_schema_does_not_allow() {
    let refused = |check: &dyn Fn()| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).expect_err("it is refused");
    };
    check_result("environment/status", &json!({"status": "ready"}));
    refused(&|| check_result("environment/status", &json!({"status": "ready", "more": 1})));
    refused(&|| check_result("environment/status", &json!({"status": "asleep"})));
    refused(&|| check_result("environment/status", &json!({})));
    refused(&|| check_error(&json!({"code": -32600, "message": "x", "data": {"kind": "odd"}})));
    refused(&|| check_request(&json!({"id": 1, "method": "process/read", "params": {}})));
    refused(&|| check_request(&json!({"id": 1.5, "method": "environment/status"})));
    let output = |chunk: &str| {
        let params = json!({"processId": "p", "seq": 1, "stream": "pty", "chunk": chunk});
        json!({"method": "process/output", "params": params})
    };
    check_notification(&output("aGk="));
    refused(&|| check_notification(&output("a-_")));
}
