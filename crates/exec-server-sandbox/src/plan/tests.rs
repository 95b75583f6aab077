//! Tests of the mounts that a policy produces.

use super::*;

fn sandboxes() -> Sandboxes {
    Sandboxes::new(SandboxSettings {
        native_paths: NativePaths::Accept,
        mechanism: Mechanism::Namespaces,
        allow: Allowances::default(),
        state_dir: None,
        journal: PlaceholderJournal::unshared(),
        secret_files: &[],
        own_socket: None,
    })
}

fn path_uri(path: &Path) -> PathUri {
    PathUri::from_posix(path.as_os_str().as_encoded_bytes())
}

/// A policy with these entries and the machine's network.
fn policy(sandboxes: &Sandboxes, entries: &Value) -> Policy {
    let sandbox = serde_json::json!({
        "permissions": {"type": "managed", "network": "enabled",
            "file_system": {"type": "restricted", "entries": entries}},
        "windowsSandboxLevel": "disabled",
    });
    let cwd = path_uri(Path::new("/"));
    sandboxes.for_process(Some(&sandbox), &cwd).unwrap().unwrap()
}

/// The rootfs of a command or a worker, where `needed` is the path that programs need.
fn view_of(needed: &Path, entries: &Value, class: Class) -> RootfsSpec {
    let mut sandboxes = sandboxes();
    sandboxes.facts.minimal = vec![needed.to_owned()];
    let policy = policy(&sandboxes, entries);
    match class {
        Class::Write => sandboxes.confine(&policy).unwrap().setup.view,
        Class::Read => sandboxes.confine_worker(&policy, class).unwrap().setup.view,
    }
}

#[test]
fn a_worker_for_files_has_no_network() {
    let sandboxes = sandboxes();
    let policy = policy(&sandboxes, &serde_json::json!([]));
    let worker = sandboxes.confine_worker(&policy, Class::Read).unwrap();
    assert_eq!(worker.setup.network, Network::Isolated);
    let process = sandboxes.confine(&policy).unwrap();
    assert_eq!(process.setup.network, Network::Host);
}

#[test]
fn minimal_opens_no_denied_path() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let (store, link) = (root.join("all/store"), root.join("link"));
    std::fs::create_dir_all(&store).unwrap();
    std::os::unix::fs::symlink(&store, &link).unwrap();
    let minimal = serde_json::json!({"path": {"type": "special", "value": {"kind": "minimal"}}, "access": "read"});
    let denied = serde_json::json!(
        {"path": {"type": "path", "path": path_uri(&root.join("all"))}, "access": "deny"}
    );
    for needed in [&store, &link] {
        for class in [Class::Write, Class::Read] {
            let shown =
                |entries| view_of(needed, &entries, class).places.contains(&read_only(needed));
            assert!(shown(serde_json::json!([minimal])));
            assert!(!shown(serde_json::json!([minimal, denied])), "{needed:?} {class:?}");
        }
    }
}
