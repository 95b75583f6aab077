//! `user` together with `sandbox`: the policy and the rights of the user hold.

use exec_server_testkit::fs_fixture::uri;
use serde_json::{Value, json};

use super::fixture::{ANN, Accounts};

pub fn workspace(root: &std::path::Path, network: &str) -> Value {
    let special = |kind: &str, access: &str| json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access});
    json!({
        "permissions": {"type": "managed", "network": network, "file_system": {
            "type": "restricted", "entries": [special("root", "read"), special("project_roots", "write")],
        }},
        "windowsSandboxLevel": "disabled",
        "policyContext": {"cwd": uri(root), "workspaceRoots": [uri(root)]},
    })
}

#[tokio::test]
async fn a_sandboxed_process_has_the_rights_of_its_user_and_of_its_policy() {
    let Some(accounts) = Accounts::new() else { return };
    let (home, open, closed) =
        (accounts.home(), accounts.make_dir("open", 0o777), accounts.make_dir("closed", 0o700));
    std::fs::write(closed.join("secret"), "s").unwrap();
    let server = accounts.server().start().await;
    let mut client = server.client().await;
    let script = format!(
        "id -u; touch new && stat -c %u new; touch {}/new && echo escaped; cat {}/secret && echo read; \
         grep CapEff /proc/self/status; cat /proc/net/route | wc -l",
        open.display(),
        closed.display()
    );
    for network in ["restricted", "enabled"] {
        for tty in [false, true] {
            let id = format!("{network}-{tty}");
            let more = json!({
                "user": "ann", "cwd": uri(&home), "env": {"PATH": "/usr/bin:/bin"}, "tty": tty,
                "sandbox": workspace(&home, network), "detailed": true,
            });
            let started = client.start(&id, &["/bin/sh", "-c", &script], more).await.unwrap();
            assert_eq!(started["sandboxType"], "linuxSeccomp");
            let finished = client.finish(&id).await;
            let text = finished.text() + &finished.pty_text().replace("\r\n", "\n");
            let lines: Vec<_> = text.lines().filter(|line| !line.contains(": ")).collect();
            let owner = ANN.to_string();
            assert_eq!(
                lines[..3],
                [&owner, &owner, "CapEff:\t0000000000000000"],
                "{id} {finished:?}"
            );
            assert!(!text.contains("escaped") && !text.contains("read\n"), "{id} {finished:?}");
            std::fs::remove_file(home.join("new")).unwrap();
        }
    }
    assert!(!open.join("new").exists());
}

/// A sandbox of one user is never reused for another.
#[tokio::test]
async fn starts_of_different_users_do_not_share_a_sandbox() {
    let Some(accounts) = Accounts::new() else { return };
    let open = accounts.make_dir("open", 0o777);
    let server = accounts.server().start().await;
    let mut client = server.client().await;
    for round in 0..3 {
        for (name, user, expected) in
            [("root", Value::Null, 0), ("ann", json!("ann"), ANN), ("nobody", json!(65534), 65534)]
        {
            let id = format!("{name}{round}");
            let more = json!({
                "user": user, "cwd": uri(&open), "env": {"PATH": "/usr/bin:/bin"},
                "sandbox": workspace(&open, "restricted"),
            });
            let finished = client.run(&id, &["id", "-u"], more).await;
            assert_eq!(finished.text(), format!("{expected}\n"), "{id} {finished:?}");
        }
    }
}

#[tokio::test]
async fn a_workspace_that_the_user_cannot_enter_is_an_error() {
    let Some(accounts) = Accounts::new() else { return };
    let closed = accounts.make_dir("closed", 0o700);
    let server = accounts.server().start().await;
    let mut client = server.client().await;
    let more = json!({
        "user": "ann", "cwd": uri(&closed), "env": {}, "sandbox": workspace(&closed, "restricted"),
    });
    let error = client.start("p", &["/bin/true"], more).await.unwrap_err();
    assert_eq!(error["data"]["errno"], "EACCES", "{error}");
}
