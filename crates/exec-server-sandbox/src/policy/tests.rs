//! The rules of the policy language, one test each; entries are written as `<access> <what>`.

use std::path::{Path, PathBuf};

use exec_server_protocol::path_uri::NativePaths;
use exec_server_protocol::sandbox::SandboxParams;
use serde_json::{Value, json};

use super::{
    Access, FilePolicy, FileRules, HostFacts, MAX_POLICY_PLACES, Policy, PolicyError, compile,
};

mod meaning;
mod older_forms;
mod places;
mod resolution;
mod routing;

fn host() -> HostFacts {
    HostFacts {
        tmpdir: Some("/var/tmp/server".into()),
        has_slash_tmp: true,
        home: Some("/home/server".into()),
        minimal: ["/etc", "/usr"].map(PathBuf::from).into(),
        native_paths: NativePaths::Reject,
    }
}

/// One entry per line: `read root`, `write /ws`, `deny *.env`, `read project_roots:.git`, `write file:///x`.
fn entries(script: &str) -> Value {
    let lines = script.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let (access, what) = line.split_once(' ').unwrap();
            let (kind, subpath) = what.split_once(':').map_or((what, None), |(k, s)| (k, Some(s)));
            let path = match kind {
                "root" | "minimal" | "tmpdir" | "slash_tmp" => {
                    json!({"type": "special", "value": {"kind": kind}})
                }
                "project_roots" => {
                    json!({"type": "special", "value": {"kind": kind, "subpath": subpath}})
                }
                "unknown" => json!({"type": "special", "value": {"kind": kind, "path": ":x"}}),
                "glob" => json!({"type": "glob_pattern", "pattern": subpath.unwrap()}),
                _ if what.starts_with("file:") => json!({"type": "path", "path": what}),
                _ => json!({"type": "path", "path": format!("file://{what}")}),
            };
            json!({"path": path, "access": access})
        })
        .collect()
}

/// A policy of the project `/ws`, asked for from `/ws/cwd`.
fn sandbox(script: &str) -> Value {
    json!({
        "permissions": {
            "type": "managed", "network": "restricted",
            "file_system": {"type": "restricted", "entries": entries(script)},
        },
        "cwd": "file:///ws/cwd", "workspaceRoots": ["file:///ws"], "windowsSandboxLevel": "disabled",
    })
}

fn decoded(sandbox: &Value) -> SandboxParams {
    serde_json::from_value(sandbox.clone()).unwrap()
}

fn compiled(sandbox: &Value) -> Result<Policy, PolicyError> {
    compile(&decoded(sandbox), &host())
}

fn rules_of(sandbox: &Value) -> FileRules {
    match compiled(sandbox).unwrap().files {
        FilePolicy::Restricted(rules) => rules,
        FilePolicy::Unrestricted => panic!("{sandbox} restricts nothing"),
    }
}

fn rules(script: &str) -> FileRules {
    rules_of(&sandbox(script))
}

/// Checks paths: `write /ws/x` expects that `/ws/x` is writable.
fn check_rules(rules: &FileRules, expected: &str) {
    for line in expected.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (access, path) = line.split_once(' ').unwrap();
        let access = match access {
            "deny" => Access::None,
            "read" => Access::Read,
            "write" => Access::Write,
            other => panic!("{other}"),
        };
        assert_eq!(rules.access(Path::new(path)), access, "{path}");
    }
}

fn check(script: &str, expected: &str) {
    check_rules(&rules(script), expected);
}
