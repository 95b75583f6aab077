//! Combinations of entries.

use super::*;

#[test]
fn nothing_is_allowed_that_no_entry_allows() {
    check("", "deny /\n deny /ws\n deny /etc/hostname");
    check("read /ws", "deny /\n deny /w\n deny /wsx\n read /ws\n read /ws/a/b");
}

#[test]
fn the_longest_place_decides() {
    check(
        "read root
         deny /ws/private
         write /ws
         read /ws/docs
         write /ws/docs/drafts
         read /ws/private/public",
        "read /etc/passwd
         write /ws/x
         read /ws/docs/x
         write /ws/docs/drafts/x
         deny /ws/private
         deny /ws/private/x
         read /ws/private/public/x",
    );
}

#[test]
fn for_one_place_deny_counts_more_than_write_and_write_more_than_read() {
    for (script, expected) in [
        ("read /a\n write /a", "write /a/x"),
        ("write /a\n read /a", "write /a/x"),
        ("write /a\n deny /a", "deny /a/x"),
        ("none /a\n write /a\n read /a", "deny /a/x"),
        ("read root\n write /", "write /x"),
        ("write root\n read /", "write /x"),
        ("read root\n deny root", "deny /x"),
        ("write root\n deny /", "deny /x"),
    ] {
        check(script, expected);
    }
}

#[test]
fn an_approved_command_writes_everything_but_what_is_denied() {
    let script = "write root\n deny /home/u/.ssh\n write /.git\n write /.agents\n write /.codex\n write /.aws";
    check(
        script,
        "write /\n write /.git/x\n write /.git/.git/x\n write /.aws/.codex\n write /home/u/.git/x
         deny /home/u/.ssh/id\n write /etc/x",
    );
    // A protected name inside an opened one would have to be created by the server before the sandbox can create the
    // outer one.
    assert!(rules(script).protected_names().is_empty());
    let opened = rules("write /ws\n write /ws/.git");
    let names: Vec<_> = opened.protected_names().iter().map(|it| it.root.join(it.name)).collect();
    assert_eq!(names, ["/ws/.agents", "/ws/.codex", "/ws/.aws"].map(PathBuf::from));
}

#[test]
fn what_is_denied_as_a_whole_can_be_opened_in_part() {
    check("deny root\n read /ws", "deny /x\n read /ws/x");
    check("deny /\n read /ws", "deny /x\n read /ws/x");
}

#[test]
fn paths_are_compared_by_name_and_after_normalisation() {
    check(
        "write file:///ws/./a/../b%20c/
         deny file:///ws/b%20c/%2e%2e/d",
        "write /ws/b c/x\n deny /ws/b\n deny /ws/d\n deny /ws/a",
    );
    check(
        "write /ws",
        "deny /ws/../etc\n write /x/../ws/y\n write /ws//y/.\n deny ws/x\n deny /WS/x",
    );
}

#[test]
fn minimal_opens_what_programs_need_and_narrows_nothing() {
    check("read minimal", "read /etc/hostname\n read /usr\n deny /opt\n deny /");
    check("write minimal", "read /etc/hostname");
    check("deny minimal\n read minimal", "deny /etc/hostname");
    check("write root\n read minimal\n deny /x", "write /usr/bin");
    check("read root\n deny minimal", "read /etc/hostname");
    check(
        "read minimal\n deny /etc\n write /usr/local",
        "deny /etc/x\n write /usr/local/x\n read /usr/bin",
    );
    assert!(rules("read root\n read minimal").minimal().is_empty());
    assert_eq!(rules("read minimal").minimal(), ["/etc", "/usr"].map(PathBuf::from));
}

#[test]
fn unknown_places_are_left_out() {
    assert_eq!(rules("read root\n deny unknown\n write unknown"), rules("read root"));
}

#[test]
fn the_names_below_a_writable_root_that_rule_other_tools_stay_read_only() {
    check(
        "read root\n write /ws",
        "write /ws/x
         read /ws/.git
         read /ws/.git/config
         read /ws/.agents/x
         read /ws/.codex/config.toml
         read /ws/.aws/credentials
         write /ws/sub/.git/config
         write /ws/.GIT/config
         write /ws/.github/x
         write /ws/.ssh
         write /ws/.env
         write /ws/.gitignore",
    );
}

#[test]
fn protected_names_are_below_every_writable_root() {
    check(
        "write /ws\n write /ws/sub\n write tmpdir\n write slash_tmp",
        "read /ws/sub/.git/x
         write /ws/sub/deep/.git
         read /tmp/.aws
         read /var/tmp/server/.codex",
    );
    check("write /", "write /x\n read /.git");
    check("read /ws", "read /ws/.git");
}

#[test]
fn an_entry_for_a_protected_name_or_below_it_says_what_holds() {
    check("write /ws\n write /ws/.git", "write /ws/.git/config\n read /ws/.aws");
    check(
        "write /ws\n write /ws/.git/hooks",
        "read /ws/.git\n read /ws/.git/config\n write /ws/.git/hooks/x",
    );
    check("write /ws\n deny /ws/.git", "deny /ws/.git/config");
    check("write /ws\n read /ws/.git", "read /ws/.git/config");
    check("write /ws\n deny /ws/.git\n write /ws/.git", "deny /ws/.git/config");
}

#[test]
fn protected_names_give_nothing_back() {
    check("write /ws\n deny /ws", "deny /ws/.git");
    check("write /ws\n deny glob:/**/ws", "deny /ws/x\n deny /ws/.git/x");
}

#[test]
fn the_full_disk_has_protected_names_only_if_something_narrows_it() {
    check("write root\n write /ws", "write /ws/.git/x\n write /.git");
    check("write root\n write /ws\n deny /x", "read /ws/.git/x\n read /.git\n write /other/.git");
}

#[test]
fn patterns_deny_what_they_match_as_an_entry_would() {
    check(
        "read root\n write /ws\n deny glob:/ws/**/*.env",
        "deny /ws/x.env\n deny /ws/a/b/.env\n write /ws/env\n read /x.env",
    );
    check("read root\n deny glob:/ws/*.env\n read /ws/x.env", "deny /ws/x.env");
    check(
        "read root\n deny glob:/ws/*.env\n read /ws/d.env/open",
        "deny /ws/d.env/x\n read /ws/d.env/open/x",
    );
    check("read root\n deny glob:/ws/x", "deny /ws/x/y\n read /ws");
    check("read minimal\n deny glob:/etc/*.key", "deny /etc/x.key\n read /etc/x");
    check("write /ws\n deny glob:/ws/.g*", "deny /ws/.git/config\n write /ws/x");
}

#[test]
fn patterns_that_do_not_deny_say_nothing() {
    assert_eq!(rules("read root\n read glob:**/*.lock\n write glob:/ws/**"), rules("read root"));
}

#[test]
fn a_scan_can_be_bounded() {
    let mut bounded = sandbox("read root\n deny glob:**/*.env");
    bounded["permissions"]["file_system"]["glob_scan_max_depth"] = json!(2);
    let rules = rules_of(&bounded);
    check_rules(&rules, "deny /ws/cwd/x.env\n deny /ws/cwd/a/x.env\n read /ws/cwd/a/b/x.env");
    let glob = rules.deny_globs().next().unwrap();
    assert_eq!((glob.base(), glob.scan_depth()), (Path::new("/ws/cwd"), Some(2)));
}

#[test]
fn the_workspace_policy_of_the_reference_client_means_what_it_says() {
    check(
        "read root\n write project_roots\n write slash_tmp\n write tmpdir
         read project_roots:.git\n read project_roots:.agents\n read project_roots:.codex\n read project_roots:.aws",
        "read /etc/passwd
         write /ws/src/main.rs
         read /ws/.git/HEAD
         read /ws/.aws
         write /tmp/x
         write /var/tmp/server/x
         read /var/tmp/x",
    );
}

#[cfg(unix)]
#[test]
fn paths_that_are_not_utf8_are_paths() {
    use std::os::unix::ffi::OsStrExt;
    let rules = rules("write file:///ws/bad-%FF");
    let path = |bytes| Path::new(std::ffi::OsStr::from_bytes(bytes));
    assert_eq!(rules.access(path(b"/ws/bad-\xff/x")), Access::Write);
    assert_eq!(rules.access(path(b"/ws/bad-\xfe/x")), Access::None);
}

#[test]
fn a_thousand_entries_are_no_trouble() {
    // Each path is looked up by its own ancestors, so the work is linear in the number of entries.
    let script: String = (0..1000)
        .map(|n| match n % 4 {
            0 => format!("write /ws/{n}\n"),
            1 => format!("deny /ws/{}/private/{n}\n", n - 1),
            2 => format!("read /ws/{}/docs/{n}\n", n - 2),
            _ => format!("deny glob:/ws/{}/**/*.{n}\n", n - 3),
        })
        .collect();
    let rules = rules(&script);
    for n in (0..1000).step_by(4) {
        let asked = format!(
            "write /ws/{n}/x\n read /ws/{n}/.git/x\n deny /ws/{n}/private/{}/x\n read /ws/{n}/docs/{}/x\n deny /ws/{n}/a/x.{}",
            n + 1,
            n + 2,
            n + 3
        );
        check_rules(&rules, &asked);
    }
}

#[test]
fn a_policy_has_a_size_that_counts_what_its_entries_come_to() {
    let policy = |count: usize, roots: usize| {
        let lines: String = (0..count).map(|number| format!("deny /ws/{number}\n")).collect();
        let mut sandbox = sandbox(&format!("read root\nwrite project_roots\n{lines}"));
        sandbox["workspaceRoots"] =
            (0..roots).map(|number| format!("file:///ws-{number}")).collect();
        compile(&serde_json::from_value::<SandboxParams>(sandbox).unwrap(), &host())
    };
    // The root, one writable root and its four protected names.
    assert!(policy(MAX_POLICY_PLACES - 6, 1).is_ok());
    assert_eq!(policy(MAX_POLICY_PLACES - 5, 1), Err(PolicyError::TooLarge));
    assert_eq!(policy(0, MAX_POLICY_PLACES), Err(PolicyError::TooLarge));
    assert_eq!(policy(0, MAX_POLICY_PLACES / 5 + 1), Err(PolicyError::TooLarge));
    assert!(policy(0, MAX_POLICY_PLACES / 5 - 1).is_ok());
}
