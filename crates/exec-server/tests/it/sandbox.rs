//! Sandbox tests: what the kernel allows and denies a sandboxed process.
//!
//! Each attack runs twice: with the sandbox off it must succeed, or it proves nothing; with the sandbox on it must not.
//!
//! | look here | for |
//! |---|---|
//! | [`fixture`] | the directories, servers and users that the tests run on |
//! | [`attempt`] | attacks that need system calls of their own |
//! | [`running`], [`terminals`], [`endings`], [`in_turn`], [`neighbours`] | what must work inside, and what is left afterwards |
//! | [`bounds`], [`resources`] | what a sandbox can use up |
//! | [`policies`], [`protected`], [`missing`] | what a policy means |
//! | [`escalated`] | commands that were approved to run with fewer limits |
//! | [`every_method`] | which requests a policy can come with |
//! | [`allowed`] | what the operator allows in addition |
//! | [`landlock_level`] | the attacks again, where Landlock is the only lock |
//! | [`escapes`], [`secrets`], [`privileges`], [`processes`], [`network`], [`kernel`], [`filters`], [`races`], [`placeholder_races`], [`file_attacks`], [`own_secrets`] | attacks |

use std::path::Path;

use exec_server_testkit::fs_fixture::{FsFixture, on_each_file_system, uri};
use exec_server_testkit::{Finished, TestClient};
use serde_json::{Value, json};

mod allowed;
mod attempt;
mod bounds;
mod calling_back;
mod dialling;
mod endings;
mod escalated;
mod escapes;
mod every_method;
mod file_attacks;
mod files;
mod filters;
mod fixture;
mod in_turn;
mod kernel;
mod landlock_level;
mod missing;
mod model;
mod neighbours;
mod network;
mod other_namespaces;
mod own_secrets;
mod placeholder_races;
mod policies;
mod privileges;
mod processes;
mod protected;
mod races;
mod resources;
mod running;
mod secrets;
mod terminals;

/// A policy that reads everything and writes below `roots`, as the reference client sends it.
pub fn workspace_write(roots: &[&Path], network: &str) -> Value {
    with_entries(roots, network, &[special("root", "read"), special("project_roots", "write")])
}

/// A policy with these entries and these workspace roots.
fn with_entries(roots: &[&Path], network: &str, entries: &[Value]) -> Value {
    json!({
        "permissions": {"type": "managed", "network": network, "file_system": {
            "type": "restricted", "entries": entries,
        }},
        "windowsSandboxLevel": "disabled",
        "policyContext": {
            "cwd": uri(roots[0]),
            "workspaceRoots": roots.iter().map(|root| uri(root)).collect::<Vec<_>>(),
        },
    })
}

/// An entry for a place with a name of its own.
fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

/// An entry for a path.
fn at(path: &Path, access: &str) -> Value {
    json!({"path": {"type": "path", "path": uri(path)}, "access": access})
}

/// An entry for a pattern.
fn glob(pattern: &str) -> Value {
    json!({"path": {"type": "glob_pattern", "pattern": pattern}, "access": "deny"})
}

/// The policy that restricts no file.
fn unrestricted(network: &str) -> Value {
    json!({
        "permissions": {"type": "managed", "network": network, "file_system": {"type": "unrestricted"}},
        "windowsSandboxLevel": "disabled",
    })
}

/// Runs a shell script in a sandbox, in the given directory.
async fn run_in(
    client: &mut TestClient,
    id: &str,
    sandbox: Value,
    cwd: &Path,
    script: &str,
) -> Finished {
    let more = json!({"sandbox": sandbox, "cwd": uri(cwd), "env": {"PATH": "/usr/bin:/bin"}});
    client.run(id, &["/bin/sh", "-c", script], more).await
}
