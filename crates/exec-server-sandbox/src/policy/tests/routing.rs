//! Which policies need a file worker, and which are equivalent.

use exec_server_protocol::sandbox::Network;

use super::*;

fn profile(permissions: Value) -> Policy {
    compiled(&json!({"permissions": permissions, "windowsSandboxLevel": "disabled"})).unwrap()
}

/// Whether reads and writes are unrestricted.
fn route(script: &str) -> (bool, bool) {
    let files = compiled(&sandbox(script)).unwrap().files;
    (files.reads_everything(), files.writes_everything())
}

#[test]
fn each_profile_says_what_is_left_to_guard() {
    let unrestricted = json!({"type": "unrestricted"});
    for (permissions, network) in [
        (json!({"type": "disabled"}), Network::Enabled),
        (json!({"type": "external", "network": "restricted"}), Network::Restricted),
        (json!({"type": "external", "network": "enabled"}), Network::Enabled),
        (
            json!({"type": "managed", "file_system": unrestricted, "network": "restricted"}),
            Network::Restricted,
        ),
        (
            json!({"type": "managed", "file_system": unrestricted, "network": "enabled"}),
            Network::Enabled,
        ),
    ] {
        let policy = profile(permissions.clone());
        assert_eq!((policy.network, &policy.files), (network, &FilePolicy::Unrestricted));
        assert_eq!(policy.allows_everything(), network == Network::Enabled, "{permissions}");
        assert!(policy.files.reads_everything() && policy.files.writes_everything());
    }
    assert!(!compiled(&sandbox("write root")).unwrap().allows_everything());
}

#[test]
fn only_the_special_root_opens_the_full_disk() {
    assert_eq!(route("write root"), (true, true));
    assert_eq!(route("read root"), (true, false));
    assert_eq!(route("read /"), (false, false));
    assert_eq!(route("write /"), (false, false));
    assert_eq!(route("read root\n write /"), (true, false));
    assert_eq!(route("deny root\n write root"), (false, false));
    assert_eq!(route(""), (false, false));
    assert_eq!(route("read minimal"), (false, false));
}

#[test]
fn reads_are_narrowed_by_denials_only() {
    assert_eq!(route("read root\n read /ws\n write /ws\n write tmpdir"), (true, false));
    assert_eq!(route("write root\n read /ws"), (true, false));
    for denial in ["deny /ws", "deny /", "deny glob:*.env", "deny glob:x", "deny tmpdir", "none /x"]
    {
        for root in ["read root", "write root"] {
            assert_eq!(route(&format!("{root}\n {denial}")), (false, false), "{root} {denial}");
        }
    }
}

#[test]
fn some_entries_narrow_nothing() {
    for entry in [
        "read minimal",
        "deny minimal",
        "deny unknown",
        "read unknown",
        "write /ws",
        "read /ws\n write /ws",
        "read glob:*.env",
        "read project_roots:..",
        "deny project_roots:x",
    ] {
        let mut sandbox = sandbox(&format!("write root\n {entry}"));
        sandbox["workspaceRoots"] = json!([]);
        let files = compiled(&sandbox).unwrap().files;
        assert!(files.writes_everything(), "{entry}");
    }
}

#[test]
fn policies_that_mean_the_same_have_the_same_digest() {
    let digest = |script: &str| compiled(&sandbox(script)).unwrap().digest();
    for (one, other) in [
        ("write /a\n read /b", "read /b\n write /a\n write /a"),
        ("deny /a/x\n read /a", "none /a/x\n read /a"),
        ("write project_roots", "write /ws"),
        ("write /ws\n read /ws/.git", "write /ws"),
        ("read root\n read /a\n read /a/b", "read root"),
        ("read /a\n deny /b", "read /a"),
        ("deny root\n read /a", "read /a"),
        ("read /a\n deny /a/b\n deny /a/b/c", "read /a\n deny /a/b"),
        ("read /a\n write /a", "write /a"),
        ("read root\n deny glob:x", "read root\n deny /ws/cwd/x"),
        ("read root\n deny glob:{a,b}*", "read root\n deny glob:b**\n deny glob:/ws/cwd/a*"),
        ("read root\n deny glob:[ab]/*", "read root\n deny glob:[baa]/*/"),
        ("write root\n write /a", "write root"),
        ("write tmpdir", "write /var/tmp/server"),
        ("read root\n read minimal", "read root"),
    ] {
        assert_eq!(digest(one), digest(other), "{one} | {other}");
    }
    let mut context = sandbox("write project_roots");
    context["policyContext"] = json!({"cwd": "file:///q", "workspaceRoots": ["file:///ws/"]});
    context["userHomeDir"] = json!("file:///h");
    assert_eq!(compiled(&context).unwrap().digest(), digest("write /ws"));

    let open = profile(json!({"type": "external", "network": "restricted"})).digest();
    assert_eq!(open, digest("write root"));
}

#[test]
fn policies_that_mean_something_else_have_another_digest() {
    let scripts = [
        "",
        "read root",
        "write root",
        "read /",
        "write /",
        "read minimal",
        "read /a",
        "write /a",
        "write /a\n write /a/.git",
        "write /a\n write /a/b",
        "read /ab",
        "read /a\n read /b",
        "read root\n deny /a",
        "read root\n deny glob:a*",
        "read root\n deny glob:a?",
        "read root\n deny glob:a/*",
        "read root\n deny glob:a/**",
        "read root\n deny glob:\\**a",
        "read root\n deny glob:a*\n deny glob:b*",
    ];
    let mut seen = std::collections::BTreeMap::new();
    for script in scripts {
        let mut sandbox = sandbox(script);
        let restricted = compiled(&sandbox).unwrap().digest();
        assert_eq!(seen.insert(restricted, script), None, "{script}");
        sandbox["permissions"]["network"] = json!("enabled");
        let enabled = compiled(&sandbox).unwrap().digest();
        assert_eq!(seen.insert(enabled, script), None, "{script}");
    }
    let mut bounded = sandbox("read root\n deny glob:a/**");
    bounded["permissions"]["file_system"]["glob_scan_max_depth"] = json!(1);
    assert_eq!(seen.insert(compiled(&bounded).unwrap().digest(), "bounded"), None);
}
