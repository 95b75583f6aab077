//! Discovers plugins and skills in temporary trees; expected paths omit the temporary directory.

use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};

use super::*;
use crate::codex::config::ConfigPaths;

#[test]
fn a_plugin_is_its_manifest_its_configuration_and_its_skills() {
    let tree = Tree::new();
    tree.write("p/.codex-plugin/plugin.json", r#"{"name":"p"}"#);
    tree.write("p/.claude-plugin/plugin.json", r#"{"name":"other"}"#);
    tree.write("p/.mcp.json", "M");
    tree.write("p/.app.json", "A");
    tree.write("p/SKILL.md", "root");
    tree.write("p/skills/a/SKILL.md", "a");
    tree.write("p/skills/a/agents/openai.yaml", "m: 1");
    tree.write("p/.hidden/h/SKILL.md", "h");
    let manifest =
        json!({"path": "file:///p/.codex-plugin/plugin.json", "contents": r#"{"name":"p"}"#});
    assert_eq!(
        tree.discover("p"),
        json!({
            "id": "p",
            "path": "file:///p",
            "plugin": {
                "manifest": manifest,
                "mcpConfig": {"path": "file:///p/.mcp.json", "contents": "M"},
                "appsConfig": {"path": "file:///p/.app.json", "contents": "A"},
            },
            "skills": [
                {"instructions": {"path": "file:///p/.hidden/h/SKILL.md", "contents": "h"}, "metadata": null},
                {"instructions": {"path": "file:///p/SKILL.md", "contents": "root"}, "metadata": null},
                {
                    "instructions": {"path": "file:///p/skills/a/SKILL.md", "contents": "a"},
                    "metadata": {"path": "file:///p/skills/a/agents/openai.yaml", "contents": "m: 1"},
                },
            ],
            "namespaceManifests": [manifest],
            "warnings": [],
            "error": null,
        })
    );
}

#[test]
fn plugins_below_the_root_only_give_their_names() {
    let tree = Tree::new();
    tree.write("r/b/.cursor-plugin/plugin.json", "{}");
    tree.write("r/b/.mcp.json", "M");
    tree.write("r/a/.claude-plugin/plugin.json", "{}");
    fs::create_dir_all(tree.path("r/a/.codex-plugin/plugin.json")).expect("the folder is ours");
    let found = tree.discover("r");
    assert_eq!(found["plugin"], Value::Null);
    let manifests = found["namespaceManifests"].as_array().expect("it is a list");
    let paths: Vec<&str> = manifests.iter().filter_map(|file| file["path"].as_str()).collect();
    assert_eq!(
        paths,
        ["file:///r/a/.claude-plugin/plugin.json", "file:///r/b/.cursor-plugin/plugin.json"]
    );
}

#[test]
fn a_manifest_can_name_its_configuration_but_nothing_outside() {
    let tree = Tree::new();
    tree.write("r/.mcp.json", "default");
    tree.write("r/x/m.json", "named");
    let below = "path must remain below the capability root";
    for (servers, expected, problem) in [
        (r#""./x/m.json""#, json!("named"), ""),
        (r#""././x//m.json""#, json!("named"), ""),
        (r#""./missing""#, Value::Null, ""),
        (r#""./x""#, Value::Null, ""),
        (r#"{"inline": {}}"#, Value::Null, ""),
        ("null", json!("default"), ""),
        ("5", json!("default"), ""),
        (r#""x/m.json""#, json!("default"), "path must start with `./`"),
        (r#""/etc/hostname""#, json!("default"), "path must start with `./`"),
        (r#""./x/../x/m.json""#, json!("default"), below),
        (r#""./""#, json!("default"), below),
        (r#""./\u0000""#, json!("default"), below),
    ] {
        tree.write("r/.codex-plugin/plugin.json", &format!(r#"{{"mcpServers": {servers}}}"#));
        let found = tree.discover("r");
        assert_eq!(found["plugin"]["mcpConfig"]["contents"], expected, "{servers}");
        let warnings = match problem {
            "" => json!([]),
            problem => json!([format!(
                "ignoring mcpServers in file:///r/.codex-plugin/plugin.json: {problem}"
            )]),
        };
        assert_eq!(found["warnings"], warnings, "{servers}");
    }
    tree.write("r/.codex-plugin/plugin.json", "{broken");
    assert_eq!(tree.discover("r")["plugin"]["mcpConfig"]["contents"], "default");
}

#[test]
fn a_root_that_is_not_a_directory_is_an_error_of_that_root() {
    let tree = Tree::new();
    tree.write("file", "");
    assert_eq!(tree.discover("file")["error"], "capability root file:///file is not a directory");
    assert_eq!(
        tree.discover("missing")["error"],
        "failed to inspect capability root file:///missing: No such file or directory (os error 2)"
    );
}

#[test]
fn links_between_folders_are_followed_once() {
    let tree = Tree::new();
    tree.write("r/m/SKILL.md", "m");
    tree.write("out/o/SKILL.md", "o");
    for (target, link) in
        [(".", "r/self"), ("..", "r/up"), ("m", "r/a_link"), ("nowhere", "r/dangling")]
    {
        symlink(target, tree.path(link)).expect("the folder is ours");
    }
    symlink("../m/SKILL.md", tree.path("out/SKILL.md")).expect("the folder is ours");
    assert_eq!(tree.skills("r"), ["r/a_link/SKILL.md", "r/up/out/o/SKILL.md"]);
}

#[test]
fn only_regular_files_are_read() {
    let tree = Tree::new();
    for folder in ["r/fifo", "r/dir/SKILL.md", "r/.codex-plugin", "r/good/agents"] {
        fs::create_dir_all(tree.path(folder)).expect("the folder is ours");
    }
    tree.write("r/good/SKILL.md", "good");
    for fifo in ["r/fifo/SKILL.md", "r/.codex-plugin/plugin.json", "r/good/agents/openai.yaml"] {
        let made = Command::new("mkfifo").arg(tree.path(fifo)).status();
        assert!(made.is_ok_and(|status| status.success()), "mkfifo works");
    }
    let found = tree.discover("r");
    assert_eq!(tree.skills("r"), ["r/good/SKILL.md"]);
    assert_eq!((&found["plugin"], &found["warnings"]), (&Value::Null, &json!([])));
}

#[test]
fn files_that_are_too_long_or_not_utf8_cause_warnings() {
    let tree = Tree::new();
    tree.write("r/fits/SKILL.md", &"a".repeat(1 << 20));
    tree.write("r/long/SKILL.md", &"a".repeat((1 << 20) + 1));
    fs::create_dir(tree.path("r/bytes")).expect("the folder is ours");
    fs::write(tree.path("r/bytes/SKILL.md"), b"\xff").expect("the folder is ours");
    assert_eq!(tree.skills("r"), ["r/fits/SKILL.md"]);
    assert_eq!(
        tree.discover("r")["warnings"],
        json!([
            "capability file file:///r/bytes/SKILL.md is not UTF-8: invalid utf-8 sequence of 1 bytes from index 0",
            "capability file file:///r/long/SKILL.md exceeds the 1048576-byte limit",
        ])
    );
}

#[test]
fn the_files_of_a_root_have_a_common_limit() {
    let tree = Tree::new();
    for index in 0..20 {
        tree.write(&format!("r/{index:02}/SKILL.md"), &"a".repeat(1_000_000));
    }
    let root =
        CapabilityRoot { id: "r".to_owned(), path: path_uri(&tree.path("r")), sandbox: None };
    let found = discover_root(&root, &tree.path("r"));
    assert_eq!(found.skills.len(), 16);
    assert_eq!(found.warnings, ["capability root bundle exceeds the 16777216-byte limit"]);
}

#[test]
fn the_walk_ends_at_its_limits() {
    let tree = Tree::new();
    tree.write("deep/1/2/3/4/5/6/SKILL.md", "in");
    tree.write("deep/1/2/3/4/5/6/7/SKILL.md", "out");
    assert_eq!(tree.skills("deep"), ["deep/1/2/3/4/5/6/SKILL.md"]);

    for index in 0..2001 {
        fs::create_dir_all(tree.path(&format!("wide/{index:04}"))).expect("the folder is ours");
    }
    tree.write("wide/1998/SKILL.md", "in");
    tree.write("wide/1999/SKILL.md", "out");
    assert_eq!(tree.skills("wide"), ["wide/1998/SKILL.md"]);
    let expected = json!(["capability scan reached its traversal limit (root: file:///wide)"]);
    assert_eq!(tree.discover("wide")["warnings"], expected);
}

#[test]
fn installed_plugins_and_skills_are_summed_up() {
    let tree = Tree::new();
    tree.write(
        "home/.codex/plugins/cache/mk/p/1.10.0/.codex-plugin/plugin.json",
        r#"{"name":"p","interface":{"displayName":"P!"}}"#,
    );
    tree.write("home/.codex/plugins/cache/mk/p/1.9.0/.codex-plugin/plugin.json", "{}");
    tree.write(
        "home/.codex/plugins/cache/mk/p/1.10.0/skills/s/SKILL.md",
        "---\nname: s\ndescription: d\n---\n",
    );
    tree.write("home/.codex/skills/.system/x/SKILL.md", "---\ndescription: 'x  y'\n---\n");
    tree.write(
        "home/.codex/skills/.system/x/agents/openai.yaml",
        "dependencies:\n  tools:\n    - type: mcp\n      value: srv\n      url: u\n    - type: mcp\n\
         policy:\n  allow_implicit_invocation: false\n  products: [codex]\n",
    );
    let plugin_root = "file:///home/.codex/plugins/cache/mk/p/1.10.0";
    assert_eq!(
        tree.installed(),
        json!({
            "plugins": [{
                "id": "p@mk",
                "displayName": "P!",
                "remotePluginId": null,
                "version": "1.10.0",
                "root": plugin_root,
                "files": {
                    "manifest": {
                        "path": format!("{plugin_root}/.codex-plugin/plugin.json"),
                        "contents": r#"{"name":"p","interface":{"displayName":"P!"}}"#,
                    },
                    "mcpConfig": null,
                    "appsConfig": null,
                },
                "skills": [{
                    "name": "p:s",
                    "description": "d",
                    "shortDescription": null,
                    "path": format!("{plugin_root}/skills/s/SKILL.md"),
                    "dependencies": null,
                    "policy": null,
                }],
            }],
            "skills": [{
                "name": "x",
                "description": "x y",
                "shortDescription": null,
                "path": "file:///home/.codex/skills/.system/x/SKILL.md",
                "discoveryRoot": {"id": "codex-home-skills", "path": "file:///home/.codex/skills"},
                "dependencies": {"tools": [{
                    "type": "mcp",
                    "value": "srv",
                    "description": null,
                    "transport": null,
                    "command": null,
                    "url": "u",
                    "oauthCallbackPort": null,
                }]},
                "policy": {"allowImplicitInvocation": false, "products": ["codex"]},
            }],
            "warnings": [],
        })
    );
}

#[test]
fn every_skill_directory_has_its_id() {
    let tree = Tree::new();
    for place in ["home/.agents", "home/.codex", "etc"] {
        tree.write(&format!("{place}/skills/s/SKILL.md"), "---\ndescription: d\n---\n");
    }
    tree.write("home/.codex/skills/.codex-plugin/plugin.json", r#"{"name":"n"}"#);
    let installed = tree.installed();
    let skills = installed["skills"].as_array().expect("it is a list");
    let shown: Vec<String> = skills
        .iter()
        .map(|skill| format!("{} {}", skill["discoveryRoot"]["id"], skill["name"]))
        .collect();
    assert_eq!(
        shown,
        [r#""codex-home-skills" "n:s""#, r#""user-agent-skills" "s""#, r#""system-skills" "s""#]
    );
}

#[test]
fn invalid_plugins_and_skills_cause_warnings() {
    let tree = Tree::new();
    tree.write("home/.codex/plugins/cache/mk/bad/local/.codex-plugin/plugin.json", "{");
    tree.write("home/.codex/plugins/cache/mk/.staging/local/.codex-plugin/plugin.json", "{}");
    tree.write("etc/skills/s/SKILL.md", "no front matter");
    assert_eq!(
        tree.installed(),
        json!({"plugins": [], "skills": [], "warnings": [
            "plugin bad@mk is skipped: it has no usable manifest",
            "skill file:///etc/skills/s/SKILL.md is skipped: \
             it does not start with front matter between lines of `---`",
        ]})
    );
}

#[test]
fn front_matter_with_unquoted_colons_is_read() {
    for (yaml, expected) in [
        ("name: n\ndescription: d # why", "n|d|"),
        ("name: n: m\ndescription: use: this", "n: m|use: this|"),
        ("name: 'q''q'\ndescription: \"d\\né\"", "q'q|d é|"),
        ("name: n\ndescription: >\n  folded\n  text\n\n  more", "n|folded text more|"),
        ("name: n\ndescription: |\n  lit\n    text", "n|lit text|"),
        ("name: 123\ndescription: true\nmetadata:\n  short-description: s", "123|true|s"),
        ("name: n\ndescription: a: b\nmetadata:\n  short-description: s: t", "n|a: b|s: t"),
        ("name: ''\ndescription: d", "|d|"),
        ("name: n\ndescription: @at\nx: [a, b", "n|@at|"),
        ("name: n\ndescription: &x d\nother: *x", "n|d|"),
        ("name: n", "it has no description"),
        ("name: [n]\ndescription: d", "its `name` is not a string"),
        (
            &format!("name: {}\ndescription: d", "n".repeat(65)),
            "its name is longer than 64 characters",
        ),
        (&format!("{}x", "- ".repeat(100)), "its front matter is not YAML"),
    ] {
        let text = format!("---\n{yaml}\n---\nbody");
        let shown = match skill_text::front_matter(&text) {
            Ok(front) => {
                let [name, short] =
                    [front.name, front.short_description].map(Option::unwrap_or_default);
                format!("{name}|{}|{short}", front.description)
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(shown, expected, "{yaml}");
    }
}

#[test]
fn a_policy_that_a_client_would_reject_is_omitted() {
    for yaml in [
        "policy:\n  products: [bogus]",
        "policy:\n  allow_implicit_invocation: 'no'",
        "policy: [",
        "",
    ] {
        assert_eq!(skill_text::policy(yaml), None, "{yaml}");
    }
    let bomb = "a: &a [x, x]\nb: &b [*a, *a]\npolicy: {products: *b}";
    assert_eq!(skill_text::policy(bomb), None);
    assert_eq!(skill_text::dependencies("dependencies:\n  tools:\n    - text\n"), None);
}

/// A temporary directory that stands for the root of a machine.
struct Tree {
    root: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        Self { root: tempfile::tempdir().expect("a folder can be made") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it is below the root"))
            .expect("the folder is ours");
        fs::write(path, text).expect("the folder is ours");
    }

    fn discover(&self, name: &str) -> Value {
        let path = self.path(name);
        let root = CapabilityRoot { id: name.to_owned(), path: path_uri(&path), sandbox: None };
        self.shown(&discover_root(&root, &path))
    }

    fn skills(&self, name: &str) -> Vec<String> {
        let found = self.discover(name);
        let skills = found["skills"].as_array().expect("it is a list");
        let paths = skills.iter().filter_map(|skill| skill["instructions"]["path"].as_str());
        paths.map(|path| path.trim_start_matches("file:///").to_owned()).collect()
    }

    fn installed(&self) -> Value {
        self.shown(&discover_installed(&ConfigPaths {
            home: Some(self.path("home")),
            codex_home: None,
            system: self.path("etc"),
            hostname: None,
        }))
    }

    fn shown(&self, value: &impl serde::Serialize) -> Value {
        let text = serde_json::to_string(value).expect("it can be written");
        let root = self.root.path().to_str().expect("test paths are text");
        serde_json::from_str(&text.replace(root, "")).expect("it was written as JSON")
    }
}
