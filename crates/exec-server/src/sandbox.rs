//! What a request may touch: until this server can enforce a policy, every policy that would need it is refused.

use serde_json::Value;

use crate::errors::RequestError;

/// A process may run under a policy that asks for nothing.
pub fn check_process(sandbox: Option<&Value>) -> Result<(), RequestError> {
    match sandbox.map(profile) {
        None | Some(Some("disabled" | "external")) => Ok(()),
        Some(_) => Err(RequestError::SandboxUnsupported),
    }
}

/// Files have no network, so a policy that leaves all of them open asks for nothing either.
pub fn check_files(sandbox: Option<&Value>) -> Result<(), RequestError> {
    match sandbox {
        Some(sandbox) if leaves_files_open(sandbox) => Ok(()),
        other => check_process(other),
    }
}

fn profile(sandbox: &Value) -> Option<&str> {
    sandbox.pointer("/permissions/type").and_then(Value::as_str)
}

fn leaves_files_open(sandbox: &Value) -> bool {
    let files = sandbox.pointer("/permissions/file_system/type").and_then(Value::as_str);
    profile(sandbox) == Some("managed") && files == Some("unrestricted")
}
