//! Reads the configuration of simulated machines in temporary directories.

use std::fs;
use std::os::unix::fs::symlink;

use exec_server_protocol::path_uri::PathUri;

use super::*;

#[test]
fn layers_come_weakest_first_and_hold_only_the_selected_keys() {
    let machine = Machine::new();
    machine.write("etc/config.toml", "[mcp_servers.sys]\ncommand = \"sys\"\n");
    machine.write(
        "home/.codex/config.toml",
        "model = 'm'\n[mcp_servers.b]\nargs = [\"1\"] # why\nurl = \"u\"\n[other]\nx = 1\n",
    );
    machine.write("etc/managed_config.toml", "[mcp_servers.man]\ncommand = \"man\"\n");
    machine.write("etc/requirements.toml", "[mcp_servers.sys]\nidentity = { command = \"sys\" }\n");
    let response =
        machine.read("work", &[&["mcp_servers"]], &[&["mcp_servers"]]).expect("all is well");
    assert_eq!(
        machine.shown(&response.config),
        "system (/etc/config.toml) in file:///etc: [mcp_servers.sys]\ncommand = \"sys\"\n\
         -- cloud\n\
         user (/home/.codex/config.toml) in file:///home/.codex: [mcp_servers.b]\nargs = [\"1\"]\nurl = \"u\"\n\
         legacy managed_config.toml (/etc/managed_config.toml) in file:///etc: [mcp_servers.man]\ncommand = \"man\"\n"
    );
    assert_eq!(
        machine.shown(&response.requirements),
        "/etc/requirements.toml in file:///etc: [mcp_servers.sys.identity]\ncommand = \"sys\"\n-- cloud\n"
    );
    assert_eq!(response.hostname.as_deref(), Some("vm"));
    assert_eq!(machine.uri(&response.user_home_dir.expect("there is a home")), "file:///home");
    assert_eq!(machine.uri(&response.codex_home_dir), "file:///home/.codex");
}

#[test]
fn a_machine_without_configuration_answers_with_no_layers() {
    let response = Machine::new().read("work", &[&["a"]], &[&["b"]]).expect("all is well");
    assert_eq!((response.config, response.requirements), Default::default());
}

#[test]
fn projections_keep_what_overrides_weaker_layers() {
    let machine = Machine::new();
    for (toml, paths, expected) in [
        ("a = 's'", vec![&["a", "x"][..]], "a = \"s\"\n"),
        ("a = {}", vec![&["a", "x"]], "[a]\n"),
        ("[[a]]\nx = 1", vec![&["a", "x"]], "[[a]]\nx = 1\n"),
        ("b.z = 1\nb.a = 2\na = 1\nc = 3", vec![&["b", "a"], &["a"]], "a = 1\n\n[b]\na = 2\n"),
        ("b.a = 2\nb.z = 1", vec![&["b", "a"], &["b"], &["b", "z"]], "[b]\na = 2\nz = 1\n"),
        ("'' = 1", vec![&[""]], "\"\" = 1\n"),
        ("\u{feff}a = 1979-05-27T07:32:00Z", vec![&["a"]], "a = 1979-05-27T07:32:00Z\n"),
    ] {
        machine.write("home/.codex/config.toml", toml);
        let response = machine.read("work", &paths, &[]).expect("all is well");
        assert_eq!(response.config.layers[0].toml, expected, "{toml}");
    }
    machine.write("home/.codex/config.toml", "a = 1");
    assert_eq!(machine.read("work", &[&["b"]], &[]).expect("all is well").config.layers, []);
}

#[test]
fn the_managed_configuration_restricts() {
    let machine = Machine::new();
    machine.write(
        "etc/managed_config.toml",
        "approval_policy = 'never'\nsandbox_mode = 'workspace-write'\n",
    );
    let keys: [&[&str]; 2] = [&["allowed_approval_policies"], &["allowed_sandbox_modes"]];
    let response = machine.read("work", &[], &keys).expect("all is well");
    assert_eq!(
        machine.shown(&response.requirements),
        "-- cloud\n/etc/managed_config.toml in file:///etc: allowed_approval_policies = [\"never\"]\n\
         allowed_sandbox_modes = [\"read-only\", \"workspace-write\"]\n"
    );
}

#[test]
fn requests_without_keys_are_rejected() {
    let machine = Machine::new();
    assert_eq!(machine.error(&[], &[]), "at least one config or requirements path is required");
    let expected = "TOML paths must contain at least one key segment";
    assert_eq!(machine.error(&[&[]], &[]), expected);
    assert_eq!(machine.error(&[&["a"]], &[&[]]), expected);
}

#[test]
fn broken_files_are_named() {
    let machine = Machine::new();
    for file in [
        "home/.codex/config.toml",
        "etc/config.toml",
        "etc/managed_config.toml",
        "etc/requirements.toml",
    ] {
        machine.write(file, "a = 1\nbroken = = 1\n");
        let expected = format!(
            "failed to load executor-local config: /{file}:2:10: extra `=`, expected nothing"
        );
        assert_eq!(machine.error(&[&["a"]], &[]), expected);
        fs::remove_file(machine.path(file)).expect("it was written");
    }
    fs::create_dir_all(machine.path("etc/config.toml")).expect("the folder is ours");
    assert_eq!(
        machine.error(&[&["a"]], &[]),
        "failed to load executor-local config: Failed to read config file /etc/config.toml: \
         path `/etc/config.toml` is not a file"
    );
}

#[test]
fn codex_home_must_be_a_directory_if_it_is_set() {
    let mut machine = Machine::new();
    machine.write("file", "");
    for (name, problem) in [("missing", "does not exist"), ("file", "is not a directory")] {
        machine.codex_home = Some(name);
        let expected = format!(
            "failed to find Codex home: CODEX_HOME points to \"/{name}\", but that path {problem}"
        );
        assert_eq!(machine.error(&[&["a"]], &[]), expected);
    }
    machine.write("elsewhere/config.toml", "a = 1");
    symlink(machine.path("elsewhere"), machine.path("link")).expect("the folder is ours");
    machine.codex_home = Some("link");
    let response = machine.read("work", &[&["a"]], &[]).expect("all is well");
    assert_eq!(machine.uri(&response.codex_home_dir), "file:///elsewhere");
    assert_eq!(response.config.layers.len(), 1);
}

#[test]
fn project_settings_are_read_if_the_project_is_trusted() {
    let machine = Machine::new();
    for folder in ["", "proj/", "proj/sub/", "proj/sub/deep/"] {
        machine.write(&format!("{folder}.codex/config.toml"), &format!("a = '{folder}'"));
    }
    machine.write("proj/.git/HEAD", "ref: refs/heads/main");
    for (trust, cwd, expected) in [
        ("proj=trusted", "proj/sub/deep", "proj/ proj/sub/ proj/sub/deep/"),
        ("proj=trusted", "proj/sub/missing", "proj/ proj/sub/"),
        ("proj/sub=trusted", "proj/sub/deep", "proj/sub/"),
        ("proj=trusted proj/sub=untrusted", "proj/sub/deep", "proj/ proj/sub/deep/"),
        ("proj=untrusted proj/sub/deep=trusted", "proj/sub/deep", "proj/sub/deep/"),
        ("", "proj/sub/deep", ""),
        (".=trusted", "proj/sub/deep", ""),
    ] {
        machine.trust(trust, "");
        assert_eq!(machine.projects(cwd), expected, "{trust} {cwd}");
    }
    machine.trust("proj=trusted", "project_root_markers = []");
    assert_eq!(machine.projects("proj/sub/deep"), "proj/sub/deep/");
    machine.trust("proj=trusted", "project_root_markers = ['.hg']");
    machine.write("proj/sub/.hg/x", "");
    assert_eq!(machine.projects("proj/sub/deep"), "proj/sub/ proj/sub/deep/");
    fs::remove_file(machine.path("proj/.git/HEAD")).expect("it was written");
    machine.trust("proj=trusted", "");
    assert_eq!(machine.projects("proj/sub/deep"), "");
}

#[test]
fn a_project_cannot_set_user_only_keys_and_codex_home_is_not_a_project() {
    let machine = Machine::new();
    machine.write("proj/.git/HEAD", "");
    machine.write("proj/.codex/config.toml", "a = 1\nnotify = ['x']\n[profiles.x]\n");
    machine.trust("proj=trusted", "");
    let keys: [&[&str]; 3] = [&["a"], &["notify"], &["profiles"]];
    let response = machine.read("proj", &keys, &[]).expect("all is well");
    assert_eq!(response.config.layers[0].toml, "a = 1\n");

    machine.write("home/.git/HEAD", "");
    machine.trust("home=trusted", "a = 1");
    assert_eq!(machine.read("home", &[&["a"]], &[]).expect("all is well").config.layers.len(), 1);
}

#[test]
fn a_worktree_is_trusted_only_if_its_repository_points_back() {
    let machine = Machine::new();
    machine.trust("proj=trusted", "");
    machine.write("proj/.git/HEAD", "");
    for tree in ["tree", "claim"] {
        machine.write(&format!("{tree}/.codex/config.toml"), &format!("a = '{tree}/'"));
        let entry = machine.path("proj/.git/worktrees/tree");
        machine.write(&format!("{tree}/.git"), &format!("gitdir: {}\n", entry.display()));
    }
    let back = machine.path("tree/.git").display().to_string();
    machine.write("proj/.git/worktrees/tree/gitdir", &back);
    assert_eq!(machine.projects("tree"), "tree/");
    assert_eq!(machine.projects("claim"), "");
}

/// A temporary directory that stands for the root of a machine; expected paths omit it.
struct Machine {
    root: tempfile::TempDir,
    codex_home: Option<&'static str>,
}

impl Machine {
    fn new() -> Self {
        Self { root: tempfile::tempdir().expect("a folder can be made"), codex_home: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        if name == "." { self.root.path().to_path_buf() } else { self.root.path().join(name) }
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it is below the root"))
            .expect("the folder is ours");
        fs::write(path, text).expect("the folder is ours");
    }

    /// Writes the user's configuration, with `folder=level` for each folder.
    fn trust(&self, levels: &str, more: &str) {
        let mut text = format!("{more}\n");
        for (folder, level) in levels.split_whitespace().filter_map(|entry| entry.split_once('=')) {
            let folder = self.path(folder).display().to_string();
            text += &format!("[projects.\"{folder}\"]\ntrust_level = \"{level}\"\n");
        }
        self.write("home/.codex/config.toml", &text);
    }

    fn projects(&self, cwd: &str) -> String {
        let response = self.read(cwd, &[&["a"]], &[]).expect("all is well");
        let projects =
            response.config.layers.iter().filter(|layer| layer.source.starts_with("project ("));
        let folders: Vec<&str> = projects
            .map(|layer| layer.toml.trim().trim_start_matches("a = ").trim_matches('"'))
            .collect();
        folders.join(" ")
    }

    fn read(
        &self,
        cwd: &str,
        config: &[&[&str]],
        requirements: &[&[&str]],
    ) -> Result<EnvironmentConfigReadResponse, EnvironmentConfigError> {
        let owned = |paths: &[&[&str]]| {
            paths.iter().map(|path| path.iter().map(|key| (*key).to_owned()).collect()).collect()
        };
        let cwd = self.path(cwd);
        let params = EnvironmentConfigReadParams {
            cwd: path_uri(&cwd),
            config_paths: owned(config),
            requirements_paths: owned(requirements),
        };
        let paths = ConfigPaths {
            home: Some(self.path("home")),
            codex_home: self.codex_home.map(|name| self.path(name)),
            system: self.path("etc"),
            hostname: Some("vm".to_owned()),
        };
        read(&params, &cwd, &paths)
    }

    fn error(&self, config: &[&[&str]], requirements: &[&[&str]]) -> String {
        let error = self.read("work", config, requirements).expect_err("something is wrong");
        self.without_root(&error.to_string())
    }

    fn without_root(&self, text: &str) -> String {
        text.replace(self.root.path().to_str().expect("test paths are text"), "")
    }

    fn uri(&self, uri: &PathUri) -> String {
        self.without_root(uri.as_str())
    }

    fn shown(&self, layers: &ConfigLayers) -> String {
        let mut lines: Vec<String> = layers
            .layers
            .iter()
            .map(|layer| format!("{} in {}: {}", layer.source, layer.base_dir.as_str(), layer.toml))
            .collect();
        lines.insert(layers.cloud_insertion_index, "-- cloud\n".to_owned());
        self.without_root(&lines.concat())
    }
}
