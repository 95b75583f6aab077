//! Resolution of entries on this host, and rejected entries.

use super::*;
use crate::policy::compile::GlobProblem;

#[test]
fn project_roots_are_the_roots_and_never_the_directory() {
    let mut two = sandbox("write project_roots");
    two["workspaceRoots"] = json!(["file:///a", "file:///b"]);
    check_rules(&rules_of(&two), "write /a/x\n write /b/x\n deny /ws/cwd/x");
    for roots in [json!([]), Value::Null] {
        let mut none = sandbox("write project_roots\n deny glob:codex-project-roots://*");
        match roots {
            Value::Null => drop(none.as_object_mut().unwrap().remove("workspaceRoots")),
            roots => none["workspaceRoots"] = roots,
        }
        assert_eq!(rules_of(&none), rules(""));
    }
}

#[test]
fn a_subpath_stays_below_its_root() {
    for subpath in [".git", "a/b", "a//b/", "a/./b"] {
        let path: PathBuf = Path::new("/ws").join(subpath).components().collect();
        let rules = rules(&format!("read project_roots:{subpath}"));
        assert_eq!(rules.places(), [(path.as_path(), Access::Read)]);
    }
    check("write project_roots:", "write /ws/x");
}

#[test]
fn a_subpath_that_leaves_its_root_grants_nothing_and_denies_all_of_it() {
    for subpath in ["..", "../..", "a/../..", "a/..", ".", "./a", "/etc", "/ws/a"] {
        assert_eq!(rules(&format!("write project_roots:{subpath}")), rules(""), "{subpath}");
        check(
            &format!("read root\n write /ws/a\n deny project_roots:{subpath}"),
            "deny /ws\n deny /ws/x\n write /ws/a/x\n read /etc/x\n read /wsx",
        );
    }
}

#[test]
fn temporary_places_are_the_servers() {
    let mut redirected = sandbox("write tmpdir\n write slash_tmp");
    redirected["temporaryDirectories"] = json!(["file:///mine"]);
    redirected["userHomeDir"] = json!("file:///mine");
    check_rules(&rules_of(&redirected), "write /var/tmp/server/x\n write /tmp/x\n deny /mine/x");

    let bare = HostFacts { tmpdir: None, has_slash_tmp: false, ..host() };
    let policy = compile(&decoded(&redirected), &bare).unwrap();
    assert_eq!(policy.files, FilePolicy::Restricted(rules("")));
    let odd = HostFacts { tmpdir: Some("/a/../b/".into()), ..bare.clone() };
    let policy = compile(&decoded(&redirected), &odd).unwrap();
    assert_eq!(policy.files, FilePolicy::Restricted(rules("write /b")));
    let relative = HostFacts { tmpdir: Some("b".into()), ..bare };
    let policy = compile(&decoded(&redirected), &relative).unwrap();
    assert_eq!(policy.files, FilePolicy::Restricted(rules("")));
}

#[test]
fn patterns_start_in_the_directory_the_disk_the_home_or_each_root() {
    for (pattern, denied, other) in [
        ("*.env", "/ws/cwd/x.env", "/ws/x.env"),
        ("../*.env", "/ws/x.env", "/ws/cwd/x.env"),
        ("/ws/*.env", "/ws/x.env", "/ws/cwd/x.env"),
        ("~/*.env", "/home/server/x.env", "/ws/cwd/~/x.env"),
        ("~", "/home/server/x", "/home/x"),
        ("~x/*", "/ws/cwd/~x/y", "/home/server/y"),
        ("codex-project-roots://*.env", "/ws/x.env", "/ws/cwd/x.env"),
        ("codex-project-roots://sub/x", "/ws/sub/x", "/ws/x"),
        ("/**/*.env", "/x.env", "/x"),
    ] {
        let expected = format!("deny {denied}\n read {other}");
        check(&format!("read root\n deny glob:{pattern}"), &expected);
    }
}

#[test]
fn a_project_pattern_that_leaves_its_root_denies_all_of_it() {
    for pattern in ["/x.env", "../ws/*.env", "a/../../x", "./x"] {
        check(
            &format!("read root\n deny glob:codex-project-roots://{pattern}"),
            "deny /ws/x\n deny /ws\n read /x.env",
        );
    }
}

#[test]
fn entries_that_depend_on_a_directory_need_one() {
    for entry in [
        "write project_roots",
        "read project_roots:.git",
        "deny glob:*.env",
        "read glob:*.env",
        "deny glob:~/x",
        "deny glob:codex-project-roots://x",
    ] {
        let mut without = sandbox(entry);
        without.as_object_mut().unwrap().remove("cwd");
        assert_eq!(compiled(&without), Err(PolicyError::MissingCwd), "{entry}");
        without["policyContext"] = json!({"workspaceRoots": ["file:///ws"]});
        assert_eq!(compiled(&without), Err(PolicyError::MissingCwd), "{entry}");
        without["cwd"] = json!("file:///ws");
        assert!(compiled(&without).is_ok(), "{entry}");
    }
    let mut fixed = sandbox("read root\n write /ws\n deny glob:/ws/*.env\n write tmpdir");
    fixed.as_object_mut().unwrap().remove("cwd");
    assert!(compiled(&fixed).is_ok());
}

#[test]
fn a_process_may_lend_its_directory() {
    let mut without = sandbox("read root\n deny glob:*.env");
    without.as_object_mut().unwrap().remove("cwd");
    let cwd = exec_server_protocol::path_uri::PathUri::parse("file:///p").unwrap();
    let policy = compile(&decoded(&without).with_default_cwd(&cwd), &host()).unwrap();
    let FilePolicy::Restricted(rules) = policy.files else { panic!() };
    check_rules(&rules, "deny /p/x.env\n read /ws/x.env");
}

#[test]
fn the_context_decides_where_entries_are_read() {
    let mut both = sandbox("write project_roots\n deny glob:*.env");
    both["policyContext"] = json!({"cwd": "file:///c", "workspaceRoots": ["file:///c"]});
    check_rules(&rules_of(&both), "write /c/x\n deny /c/x.env\n deny /ws/x");
    both["policyContext"] = json!({"cwd": "file:///c"});
    check_rules(&rules_of(&both), "deny /c/x\n deny /ws/x");
    both["policyContext"] = Value::Null;
    check_rules(&rules_of(&both), "write /ws/x");
}

#[test]
fn paths_of_another_system_are_refused_wherever_they_are() {
    for foreign in ["file:///C:/x", "file://server/share", "file:///c%3A/x"] {
        let entry = format!("read root\n deny {foreign}");
        assert!(matches!(compiled(&sandbox(&entry)), Err(PolicyError::ForeignEntry(_))));
        let mut cwd = sandbox("read root");
        cwd["cwd"] = json!(foreign);
        assert!(matches!(compiled(&cwd), Err(PolicyError::ForeignCwd(_))));
        cwd["policyContext"] = json!({"cwd": "file:///ws"});
        assert!(compiled(&cwd).is_ok(), "the flat one is not looked at");
        let mut root = sandbox("read root");
        root["workspaceRoots"] = json!(["file:///ws", foreign]);
        assert!(matches!(compiled(&root), Err(PolicyError::ForeignWorkspaceRoot(_))));
        root["permissions"] = json!({"type": "disabled"});
        assert!(compiled(&root).is_ok(), "nothing depends on it");
    }
    let error = compiled(&sandbox("read file:///C:/x")).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "invalid sandbox permission path URI: 'file:///C:/x' is invalid on '{}'",
            std::env::consts::OS
        )
    );
}

#[test]
fn opaque_uris_hide_no_odd_paths() {
    let opaque = |path: &[u8]| {
        let uri = exec_server_protocol::path_uri::PathUri::from_posix(path);
        assert!(uri.as_str().contains("%00"), "{uri:?}");
        compiled(&sandbox(&format!("write {}", uri.as_str())))
    };
    for odd in [&b"C:/x"[..], b"/C:/x\0y", b"/C:/../ws"] {
        assert!(matches!(opaque(odd), Err(PolicyError::ForeignEntry(_))), "{odd:?}");
    }
}

#[test]
fn native_paths_count_only_where_they_are_accepted() {
    let mut native = sandbox("write project_roots");
    native["cwd"] = json!("/n");
    native["workspaceRoots"] = json!(["/n/../m"]);
    assert!(matches!(compiled(&native), Err(PolicyError::Path(_))));
    let host = HostFacts { native_paths: NativePaths::Accept, ..host() };
    let policy = compile(&decoded(&native), &host).unwrap();
    assert_eq!(policy.files, FilePolicy::Restricted(rules("write /m")));
}

#[test]
fn patterns_that_mean_nothing_are_refused() {
    for (pattern, problem) in
        [("*/../x", GlobProblem::ParentOfWildcard), ("/[b-a]", GlobProblem::EmptyRange)]
    {
        let expected = PolicyError::Glob { pattern: pattern.to_owned(), problem };
        for access in ["deny", "read"] {
            let found = compiled(&sandbox(&format!("{access} glob:{pattern}")));
            assert_eq!(found.as_ref(), Err(&expected));
        }
    }
    let homeless = HostFacts { home: None, ..host() };
    let error = compile(&decoded(&sandbox("deny glob:~/x")), &homeless).unwrap_err();
    assert_eq!(error.to_string(), "sandbox pattern `~/x` starts at a home that is not known");
}
