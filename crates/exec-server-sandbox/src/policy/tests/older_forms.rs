//! The policy forms of early protocol versions.

use exec_server_protocol::sandbox::Network;

use super::*;

fn rules_and_network(sandbox: &Value) -> (FileRules, Network) {
    (rules_of(sandbox), compiled(sandbox).unwrap().network)
}

#[test]
fn read_only_reads_everything_and_nothing_else() {
    for name in ["read-only", "ReadOnly"] {
        let (found, network) = rules_and_network(&json!({"type": name}));
        assert_eq!((found, network), (rules("read root"), Network::Restricted));
    }
}

#[test]
fn workspace_write_writes_the_project_and_temporary_places() {
    let mut older = json!({
        "sandboxPolicy": {"type": "workspace-write"}, "cwd": "file:///ws",
        "windowsSandboxLevel": "disabled",
    });
    let (found, network) = rules_and_network(&older);
    assert_eq!(found, rules("read root\n write /ws\n write slash_tmp\n write tmpdir"));
    assert_eq!(network, Network::Restricted);
    check_rules(&found, "read /ws/.git/config\n write /ws/x\n read /etc/x");

    older["sandboxPolicy"] = json!({
        "type": "WorkspaceWrite", "writable_roots": ["file:///more"], "network_access": true,
        "exclude_tmpdir_env_var": true, "exclude_slash_tmp": true,
    });
    let (found, network) = rules_and_network(&older);
    assert_eq!(found, rules("read root\n write /ws\n write /more"));
    assert_eq!(network, Network::Enabled);
}

#[test]
fn the_project_of_an_older_policy_is_its_roots_else_its_directory_else_nothing() {
    let mut older = json!({"type": "workspace-write", "exclude_tmpdir_env_var": true, "exclude_slash_tmp": true});
    assert_eq!(rules_of(&older), rules("read root"));
    older = json!({"permissions": older, "windowsSandboxLevel": "disabled", "cwd": "file:///c"});
    assert_eq!(rules_of(&older), rules("read root\n write /c"));
    older["workspaceRoots"] = json!(["file:///r"]);
    assert_eq!(rules_of(&older), rules("read root\n write /r"));
}

#[test]
fn older_policies_without_a_guard_stay_without_one() {
    let full = compiled(&json!({"type": "danger-full-access"})).unwrap();
    assert!(full.allows_everything());
    let external = compiled(&json!({"type": "external-sandbox"})).unwrap();
    assert_eq!(external.files, FilePolicy::Unrestricted);
    assert_eq!(external.network, Network::Restricted);
}

#[test]
fn paths_of_older_policies_obey_the_same_rules() {
    let older = |root: &str| json!({"type": "workspace-write", "writable_roots": [root]});
    assert!(matches!(compiled(&older("/native")), Err(PolicyError::Path(_))));
    assert!(matches!(compiled(&older("file:///C:/x")), Err(PolicyError::ForeignEntry(_))));
    let lenient = HostFacts { native_paths: NativePaths::Accept, ..host() };
    assert!(compile(&decoded(&older("/native")), &lenient).is_ok());
}
