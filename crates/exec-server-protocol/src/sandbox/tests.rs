//! The object as clients send it, and the values that are rejected.

use serde_json::{Value, json};

use super::*;
use crate::params;

fn decode(sandbox: &Value) -> Result<SandboxParams, String> {
    params::decode(&sandbox.to_string())
}

fn uri(text: &str) -> PathUri {
    PathUri::parse(text).unwrap()
}

fn managed(entries: Value) -> Value {
    json!({"type": "managed", "network": "restricted", "file_system": {"type": "restricted", "entries": entries}})
}

fn with(permissions: Value) -> Value {
    json!({"permissions": permissions, "windowsSandboxLevel": "disabled"})
}

fn special(kind: &str, access: &str) -> Value {
    json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
}

/// What the reference client sends for a process in workspace-write mode.
fn as_the_reference_client_writes_it() -> Value {
    let protected = |name: &str| {
        json!({
            "path": {"type": "special", "value": {"kind": "project_roots", "subpath": name}},
            "access": "read", "missing_path_behavior": "skip",
        })
    };
    json!({
        "permissions": managed(json!([
            special("root", "read"), special("project_roots", "write"),
            special("slash_tmp", "write"), special("tmpdir", "write"),
            protected(".git"), protected(".agents"), protected(".codex"), protected(".aws"),
        ])),
        "cwd": "file:///ws", "workspaceRoots": ["file:///ws"], "windowsSandboxLevel": "disabled",
        "windowsSandboxProxySettingsMode": "reconcile", "useLegacyLandlock": false,
    })
}

#[test]
fn messages_of_the_reference_client_survive_a_round_trip() {
    let for_a_process = as_the_reference_client_writes_it();
    let mut for_a_file = for_a_process.clone();
    for_a_file["policyContext"] = json!({"cwd": "file:///ws", "workspaceRoots": ["file:///ws"]});
    for_a_file["userHomeDir"] = json!("file:///home/u");
    let mut read_only = for_a_process.clone();
    read_only["permissions"] = managed(json!([special("root", "read")]));
    for sent in [for_a_process, for_a_file, read_only] {
        assert_eq!(serde_json::to_value(decode(&sent).unwrap()).unwrap(), sent);
    }
}

#[test]
fn every_member_of_the_object_survives_a_round_trip() {
    let all = json!({
        "permissions": {"type": "managed", "network": "enabled", "file_system": {
            "type": "restricted", "glob_scan_max_depth": 3, "entries": [
                {"path": {"type": "path", "path": "file:///a"}, "access": "deny"},
                {"path": {"type": "glob_pattern", "pattern": "**/*.env"}, "access": "deny"},
                special("minimal", "read"),
                {"path": {"type": "special", "value": {"kind": "unknown", "path": ":x", "subpath": "s"}}, "access": "read"},
            ],
        }},
        "sandboxOverride": "bypassSandboxFirstAttempt",
        "policyContext": {"workspaceRoots": []},
        "temporaryDirectories": ["file:///tmp"],
        "windowsSandboxLevel": "restricted-token",
        "windowsSandboxProxySettingsMode": "preserve",
        "useLegacyLandlock": true,
    });
    let decoded = decode(&all).unwrap();
    assert_eq!(decoded.windows_sandbox_proxy_settings_mode, Some(ProxySettingsMode::Preserve));
    assert_eq!(serde_json::to_value(decoded).unwrap(), all);
    for profile in [
        json!({"type": "disabled"}),
        json!({"type": "external", "network": "restricted"}),
        json!({"type": "managed", "file_system": {"type": "unrestricted"}, "network": "enabled"}),
    ] {
        let sandbox = decode(&with(profile.clone())).unwrap();
        assert_eq!(serde_json::to_value(sandbox.permissions).unwrap(), profile);
    }
}

#[test]
fn other_spellings_mean_the_same() {
    let deny = decode(&with(managed(json!([special("project_roots", "deny")])))).unwrap();
    let none =
        decode(&with(managed(json!([special("current_working_directory", "none")])))).unwrap();
    assert_eq!(deny, none);
}

#[test]
fn unknown_members_are_ignored_everywhere() {
    let mut entry = special("root", "read");
    entry["extra"] = json!(1);
    entry["path"]["extra"] = json!(1);
    entry["path"]["value"]["extra"] = json!(1);
    let mut sandbox = with(managed(json!([entry])));
    sandbox["permissions"]["extra"] = json!({});
    sandbox["permissions"]["file_system"]["extra"] = json!([]);
    sandbox["windowsSandboxPrivateDesktop"] = json!(true);
    sandbox["additionalPermissions"] = json!(null);
    sandbox["type"] = json!("danger-full-access");
    sandbox["sandboxPolicy"] = json!({"type": "danger-full-access"});
    let plain = decode(&with(managed(json!([special("root", "read")])))).unwrap();
    assert_eq!(decode(&sandbox), Ok(plain));
    assert!(decode(&with(json!({"type": "disabled", "network": "nonsense"}))).is_ok());
}

#[test]
fn null_is_as_good_as_absent_only_for_some_members() {
    for (member, is_accepted) in [
        ("permissions", false),
        ("windowsSandboxLevel", false),
        ("workspaceRoots", false),
        ("sandboxOverride", false),
        ("useLegacyLandlock", false),
        ("policyContext", true),
        ("cwd", true),
        ("userHomeDir", true),
        ("temporaryDirectories", true),
        ("windowsSandboxProxySettingsMode", true),
    ] {
        let mut sandbox = with(json!({"type": "disabled"}));
        sandbox[member] = Value::Null;
        assert_eq!(decode(&sandbox).is_ok(), is_accepted, "{member}");
    }
    let mut context = with(json!({"type": "disabled"}));
    context["policyContext"] = json!({"cwd": null});
    assert!(decode(&context).is_ok());
    context["policyContext"] = json!({"workspaceRoots": null});
    assert!(decode(&context).is_err());
}

#[test]
fn unknown_words_of_the_object_are_refused() {
    for (member, value) in [
        ("windowsSandboxLevel", json!("restrictedToken")),
        ("windowsSandboxLevel", json!("Disabled")),
        ("sandboxOverride", json!("none")),
        ("windowsSandboxProxySettingsMode", json!("ignore")),
        ("useLegacyLandlock", json!("no")),
        ("cwd", json!("relative")),
        ("workspaceRoots", json!("file:///ws")),
        ("userHomeDir", json!("~")),
        ("temporaryDirectories", json!([1])),
        ("policyContext", json!("file:///ws")),
    ] {
        let mut sandbox = with(json!({"type": "disabled"}));
        sandbox[member] = value.clone();
        assert!(decode(&sandbox).is_err(), "{member}: {value}");
    }
    assert_eq!(
        decode(&json!({"permissions": {"type": "disabled"}})).unwrap_err(),
        "missing field `windowsSandboxLevel`"
    );
    assert_eq!(
        decode(&json!({"windowsSandboxLevel": "disabled"})).unwrap_err(),
        "missing field `permissions`"
    );
    for sandbox in [json!("read-only"), json!(true), json!({}), json!(7)] {
        assert!(decode(&sandbox).is_err(), "{sandbox}");
    }
}

#[test]
fn unknown_words_of_a_profile_are_refused() {
    let unrestricted = json!({"type": "unrestricted"});
    for profile in [
        json!({}),
        json!("disabled"),
        json!(["managed"]),
        json!({"type": "Disabled"}),
        json!({"type": "unmanaged"}),
        json!({"type": "read_only"}),
        json!({"network": {"enabled": true}, "file_system": {"entries": []}}),
        json!({"type": "external"}),
        json!({"type": "external", "network": "open"}),
        json!({"type": "managed", "network": "enabled"}),
        json!({"type": "managed", "file_system": unrestricted}),
        json!({"type": "managed", "file_system": unrestricted, "network": null}),
        json!({"type": "managed", "file_system": unrestricted, "network": true}),
        json!({"type": "managed", "file_system": unrestricted, "network": "Enabled"}),
        json!({"type": "managed", "file_system": {"type": "open"}, "network": "enabled"}),
        json!({"type": "managed", "file_system": {"entries": []}, "network": "enabled"}),
        json!({"type": "managed", "file_system": {"type": "restricted"}, "network": "enabled"}),
        managed(json!(null)),
    ] {
        assert!(decode(&with(profile.clone())).is_err(), "{profile}");
    }
    for (depth, is_accepted) in
        [(json!(null), true), (json!(1), true), (json!(0), false), (json!(-1), false)]
    {
        let mut profile = managed(json!([]));
        profile["file_system"]["glob_scan_max_depth"] = depth.clone();
        assert_eq!(decode(&with(profile)).is_ok(), is_accepted, "{depth}");
    }
}

#[test]
fn unknown_words_of_an_entry_are_refused() {
    let path = json!({"type": "path", "path": "file:///a"});
    let of_kind =
        |value: Value| json!({"path": {"type": "special", "value": value}, "access": "read"});
    for entry in [
        json!("root"),
        json!({"path": path}),
        json!({"access": "read"}),
        json!({"path": "file:///a", "access": "read"}),
        json!({"path": path, "access": "Read"}),
        json!({"path": path, "access": "execute"}),
        json!({"path": path, "access": null}),
        json!({"path": path, "access": "read", "missing_path_behavior": "create"}),
        json!({"path": {"type": "path"}, "access": "read"}),
        json!({"path": {"type": "path", "path": "http://h/a"}, "access": "read"}),
        json!({"path": {"type": "path", "path": "a"}, "access": "read"}),
        json!({"path": {"type": "regex", "pattern": "x"}, "access": "deny"}),
        json!({"path": {"type": "glob_pattern"}, "access": "deny"}),
        json!({"path": {"type": "glob_pattern", "pattern": null}, "access": "deny"}),
        json!({"path": {"type": "generated_default_path", "path": "file:///a"}, "access": "read"}),
        json!({"path": {"type": "special", "kind": "root"}, "access": "read"}),
        of_kind(json!("root")),
        of_kind(json!({"kind": "home"})),
        of_kind(json!({"kind": "Root"})),
        of_kind(json!({"kind": "unknown"})),
        of_kind(json!({"kind": "project_roots", "subpath": 1})),
    ] {
        assert!(decode(&with(managed(json!([entry])))).is_err(), "{entry}");
    }
    let lenient = json!({"path": path, "access": "read", "missing_path_behavior": null});
    assert!(decode(&with(managed(json!([lenient])))).is_ok());
    let null_subpath = of_kind(json!({"kind": "project_roots", "subpath": null}));
    assert!(decode(&with(managed(json!([null_subpath])))).is_ok());
}

#[test]
fn the_context_comes_before_the_flat_members() {
    let mut sandbox = with(json!({"type": "disabled"}));
    sandbox["cwd"] = json!("file:///flat");
    sandbox["workspaceRoots"] = json!(["file:///flat"]);
    let flat = decode(&sandbox).unwrap();
    assert_eq!(flat.policy_cwd(), Some(&uri("file:///flat")));
    assert_eq!(flat.policy_roots(), [uri("file:///flat")]);

    sandbox["policyContext"] = json!({"cwd": "file:///c", "workspaceRoots": ["file:///r"]});
    let context = decode(&sandbox).unwrap();
    assert_eq!(context.policy_cwd(), Some(&uri("file:///c")));
    assert_eq!(context.policy_roots(), [uri("file:///r")]);

    // The reference falls back for the directory, and never for the roots.
    sandbox["policyContext"] = json!({});
    let empty = decode(&sandbox).unwrap();
    assert_eq!(empty.policy_cwd(), Some(&uri("file:///flat")));
    assert!(empty.policy_roots().is_empty());
}

#[test]
fn a_process_lends_its_directory_only_if_the_sandbox_has_none() {
    let bare = decode(&with(json!({"type": "disabled"}))).unwrap();
    let lent = bare.with_default_cwd(&uri("file:///p"));
    assert_eq!(lent.policy_cwd(), Some(&uri("file:///p")));
    assert_eq!(lent.with_default_cwd(&uri("file:///q")).policy_cwd(), Some(&uri("file:///p")));
}

#[test]
fn the_older_tagged_forms_are_read_in_all_their_places() {
    let policy = json!({
        "type": "workspace-write", "writable_roots": ["/extra", "file:///more"],
        "network_access": true, "exclude_tmpdir_env_var": true, "exclude_slash_tmp": true,
    });
    let expected = PermissionProfile::WorkspaceWrite(WorkspaceWrite {
        writable_roots: vec![uri("/extra"), uri("file:///more")],
        network_access: true,
        exclude_tmpdir_env_var: true,
        exclude_slash_tmp: true,
    });
    let beside_a_level = json!({
        "sandboxPolicy": policy, "cwd": "file:///ws", "windowsSandboxLevel": "elevated",
        "windowsSandboxPrivateDesktop": false,
    });
    for sandbox in [policy.clone(), json!({"sandboxPolicy": policy}), with(policy)] {
        assert_eq!(decode(&sandbox).unwrap(), SandboxParams::new(expected.clone()), "{sandbox}");
    }
    let full = decode(&beside_a_level).unwrap();
    assert_eq!(full.permissions, expected);
    assert_eq!(full.windows_sandbox_level, WindowsSandboxLevel::Elevated);
    assert_eq!(full.policy_cwd(), Some(&uri("file:///ws")));
}

#[test]
fn the_older_forms_have_two_names_each_and_careful_defaults() {
    let decode = |policy: Value| decode(&policy).map(|sandbox| sandbox.permissions);
    for (names, expected) in [
        (["read-only", "ReadOnly"], PermissionProfile::ReadOnly { network_access: false }),
        (
            ["workspace-write", "WorkspaceWrite"],
            PermissionProfile::WorkspaceWrite(WorkspaceWrite::default()),
        ),
        (["danger-full-access", "DangerFullAccess"], PermissionProfile::DangerFullAccess),
        (
            ["external-sandbox", "ExternalSandbox"],
            PermissionProfile::ExternalSandbox { network_access: Network::Restricted },
        ),
    ] {
        for name in names {
            assert_eq!(decode(json!({"type": name})).as_ref(), Ok(&expected), "{name}");
        }
    }
    for policy in [
        json!({"type": "workspace-write", "network_access": "yes"}),
        json!({"type": "workspace-write", "writable_roots": ["relative"]}),
        json!({"type": "workspace-write", "exclude_slash_tmp": null}),
        json!({"type": "external-sandbox", "network_access": true}),
        json!({"type": "workspaceWrite"}),
        json!({"type": "full"}),
        // These were never valid as a bare policy.
        json!({"type": "disabled"}),
        json!({"sandboxPolicy": {"type": "external", "network": "enabled"}}),
        json!({"sandboxPolicy": null, "windowsSandboxLevel": "disabled"}),
        json!({"sandboxPolicy": {"type": "read-only"}, "windowsSandboxLevel": "none"}),
    ] {
        assert!(decode(policy.clone()).is_err(), "{policy}");
    }
}
