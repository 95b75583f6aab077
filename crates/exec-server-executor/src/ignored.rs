//! Finds the members of a request that this server does not know.
//!
//! The params are decoded a second time, so this runs only for clients that ask for the report.

use exec_server_protocol::escape_untrusted::escape_untrusted;
use exec_server_protocol::fs::FsBatchParams;
use exec_server_protocol::methods::{Family, Method, MethodVisitor};
use exec_server_protocol::sandbox::SandboxParams;
use exec_server_protocol::trace_context::META;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_ignored::Path;
use serde_json::Value;

/// Bounds the report, because a request may have thousands of unknown members.
const MAX_NAMES: usize = 32;
/// Bounds each reported name, because the client chooses it.
const MAX_NAME_CHARS: usize = 128;

/// The unknown members as paths below the params, such as `limits.memory`.
pub fn members(method: Method, raw: &str) -> Vec<String> {
    let mut found = Vec::new();
    if method.reports_ignored() {
        find(method, raw, "", &mut found);
    }
    if method == Method::FsBatch {
        find_in_batch(raw, &mut found);
    }
    found
}

fn find_in_batch(raw: &str, found: &mut Vec<String>) {
    let Ok(batch) = serde_json::from_str::<FsBatchParams>(raw) else { return };
    for (place, request) in batch.requests.iter().enumerate() {
        let method = Method::by_name(&request.method);
        if let Some(method) = method.filter(|method| method.family() == Family::FileSystem) {
            let prefix = format!("requests.{place}.params.");
            find(method, request.params.get(), &prefix, found);
        }
    }
}

fn find(method: Method, raw: &str, prefix: &str, found: &mut Vec<String>) {
    method.visit(Finder { raw, prefix, found });
    if method.takes_sandbox() && method != Method::HttpRequest {
        find_in_sandbox(raw, prefix, found);
    }
}

/// The members of a sandbox object; those below `permissions` are tagged forms, which are decoded as a whole.
fn find_in_sandbox(raw: &str, prefix: &str, found: &mut Vec<String>) {
    #[derive(Deserialize)]
    struct WithSandbox {
        #[serde(default)]
        sandbox: Value,
    }
    let Ok(WithSandbox { sandbox: Value::Object(mut members) }) = serde_json::from_str(raw) else {
        return;
    };
    let is_older_form = members.remove("sandboxPolicy").is_some() || members.contains_key("type");
    if is_older_form && !members.contains_key("permissions") {
        members.remove("type");
    }
    let mut note = |path: Path| push(&format!("{prefix}sandbox.{}", dotted(&path)), found);
    // The inherent function, which leaves the older spellings alone.
    let sandbox = Value::Object(members);
    let _ = SandboxParams::deserialize(serde_ignored::Deserializer::new(&sandbox, &mut note));
}

fn push(name: &str, found: &mut Vec<String>) {
    if found.len() < MAX_NAMES {
        found.push(escape_untrusted(name, MAX_NAME_CHARS));
    }
}

/// Decodes params and collects the members that their type does not have.
struct Finder<'a> {
    raw: &'a str,
    prefix: &'a str,
    found: &'a mut Vec<String>,
}

impl MethodVisitor for Finder<'_> {
    type Output = ();

    fn visit<Params: DeserializeOwned, Response>(self) {
        let Self { raw, prefix, found } = self;
        let mut json = serde_json::Deserializer::from_str(raw);
        // A decode error is ignored here, because the handler rejects the request.
        let _ = serde_ignored::deserialize::<_, _, Params>(&mut json, |path| {
            let name = dotted(&path);
            if name != META {
                push(&format!("{prefix}{name}"), found);
            }
        });
    }
}

/// The names and indexes of a path, without the decoder's own steps such as options and newtypes.
fn dotted(path: &Path) -> String {
    let (parent, step) = match path {
        Path::Root => return String::new(),
        Path::Seq { parent, index } => (parent, index.to_string()),
        Path::Map { parent, key } => (parent, key.clone()),
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => return dotted(parent),
    };
    let before = dotted(parent);
    if before.is_empty() { step } else { format!("{before}.{step}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_members_are_found_at_any_depth() {
        let start = r#"{"processId":"p","argv":["x"],"cwd":"file:///","env":{"NEW":"1"},"tty":false,"colour":1,
            "size":{"rows":1,"cols":2,"depth":3},"sandbox":{"anything":1}}"#;
        assert_eq!(
            members(Method::ProcessStart, start),
            ["colour", "size.depth", "sandbox.anything"]
        );
        let write = r#"{"path":"file:///f","dataBase64":"","sandbox":{"x":1},"modeBit":1}"#;
        assert_eq!(members(Method::FsWriteFile, write), ["modeBit", "sandbox.x"]);
        let read = r#"{"path":"file:///f","sandbox":{"permissions":{"type":"disabled"},"windowsSandboxLevel":"disabled",
            "useLegacyLandlock":false,"policyContext":{"cwd":"file:///","depth":1}}}"#;
        assert_eq!(members(Method::FsReadFile, read), ["sandbox.policyContext.depth"]);
        let older = r#"{"path":"file:///f","sandbox":{"sandboxPolicy":{"type":"read-only"},"cwd":"file:///"}}"#;
        assert_eq!(members(Method::FsReadFile, older), [""; 0]);
        let bare = r#"{"path":"file:///f","sandbox":{"type":"read-only"}}"#;
        assert_eq!(members(Method::FsReadFile, bare), [""; 0]);
        let batch = r#"{"requests":[{"method":"fs/readFile","params":{"path":"file:///f","a":1},"b":2}],"c":3}"#;
        assert_eq!(members(Method::FsBatch, batch), ["requests.0.b", "c", "requests.0.params.a"]);
        let request = r#"{"method":"GET","url":"http://a/","requestId":"","headers":[{"name":"a","value":"b","c":1}]}"#;
        assert_eq!(members(Method::HttpRequest, request), ["headers.0.c"]);
        assert_eq!(members(Method::FsReadFile, r#"{"path":"file:///f","_meta":{"a":1}}"#), [""; 0]);
        assert_eq!(members(Method::ProcessRead, r#"{"x":1}"#), [""; 0]);
        assert_eq!(members(Method::FsOpen, r#"["h","file:///a"]"#), [""; 0]);
    }

    #[test]
    fn every_fs_method_reports_unknown_members() {
        for method in Method::ALL {
            if method.name().starts_with("fs/") {
                // The unknown member is reported before the decoder fails on missing members.
                assert_eq!(members(*method, r#"{"unknown":1}"#), ["unknown"], "{}", method.name());
            }
        }
    }

    #[test]
    fn names_are_few_and_short() {
        let many: Vec<String> =
            (0..100).map(|at| format!("\"{at}{}\":1", "x".repeat(500))).collect();
        let found = members(Method::FsClose, &format!("{{{}}}", many.join(",")));
        assert_eq!(found.len(), MAX_NAMES);
        assert!(found.iter().all(|name| name.chars().count() <= MAX_NAME_CHARS + 1));
    }
}
