//! What a sandboxed process can and cannot do, decided by the kernel.

use std::path::Path;

use exec_server_testkit::desk::{Desk, on_each_file_system, uri};
use exec_server_testkit::{Finished, TestClient};
use serde_json::{Value, json};

mod calling_back;
mod files;
mod model;
mod running;

/// A policy that reads everything and writes below `roots`, as the reference client sends it.
fn workspace_write(roots: &[&Path], network: &str) -> Value {
    let special = |kind: &str, access: &str| json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access});
    json!({
        "permissions": {"type": "managed", "network": network, "file_system": {
            "type": "restricted",
            "entries": [special("root", "read"), special("project_roots", "write")],
        }},
        "windowsSandboxLevel": "disabled",
        "policyContext": {
            "cwd": uri(roots[0]),
            "workspaceRoots": roots.iter().map(|root| uri(root)).collect::<Vec<_>>(),
        },
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
