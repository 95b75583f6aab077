//! Random policies: the kernel enforces what the model predicts, for every path, read and write.

use std::path::PathBuf;

use exec_server_protocol::path_uri::NativePaths;
use exec_server_sandbox::policy::{Access, FilePolicy, HostFacts, compile};
use exec_server_testkit::fs_fixture::content;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

/// Directories, each of which holds a file `f`.
const DIRECTORIES: [&str; 7] = ["a", "a/b", "a/b/c", "a/d", "e", "e/b", "e/b/c"];

/// One policy entry: a directory or file, and its access.
#[derive(Debug, Clone)]
struct Entry {
    place: String,
    access: &'static str,
}

fn entries() -> impl Strategy<Value = (bool, Vec<Entry>)> {
    let place = prop::sample::select(
        DIRECTORIES
            .iter()
            .flat_map(|dir| [(*dir).to_owned(), format!("{dir}/f")])
            .collect::<Vec<_>>(),
    );
    let access = prop::sample::select(vec!["read", "write", "deny"]);
    let entry = (place, access).prop_map(|(place, access)| Entry { place, access });
    (any::<bool>(), prop::collection::vec(entry, 0..6))
}

#[test]
fn the_kernel_enforces_the_policy() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let fixture = std::cell::RefCell::new(runtime.block_on(FsFixture::new()));
    let config = Config { cases: 60, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&entries(), |(reads_root, entries)| {
        runtime.block_on(try_policy(&mut fixture.borrow_mut(), reads_root, &entries))
    });
    result.unwrap();
}

async fn try_policy(
    fixture: &mut FsFixture,
    reads_root: bool,
    entries: &[Entry],
) -> Result<(), TestCaseError> {
    for dir in DIRECTORIES {
        std::fs::create_dir_all(fixture.path(dir)).unwrap();
        fixture.put(&format!("{dir}/f"), "before");
    }
    let sandbox = policy(fixture, reads_root, entries);
    let params = serde_json::from_value(sandbox.clone()).unwrap();
    let compiled = compile(&params, &HostFacts::gather(NativePaths::Reject)).unwrap();
    let FilePolicy::Restricted(rules) = compiled.files else { panic!("it is restricted") };
    for dir in DIRECTORIES {
        let name = format!("{dir}/f");
        let access = rules.access(&fixture.path(&name));
        let more = json!({"sandbox": sandbox});
        let read = fixture.call("fs/readFile", &name, more.clone()).await;
        let can_read = read.as_ref().is_ok_and(|read| content(&read["dataBase64"]) == b"before");
        prop_assert_eq!(can_read, access >= Access::Read, "read {} {:?}: {:?}", name, access, read);
        let written = fixture.write(&name, b"after", more).await;
        let is_changed = fixture.get(&name) == b"after";
        prop_assert_eq!(is_changed, access == Access::Write, "write {}: {:?}", name, written);
        prop_assert_eq!(written.is_ok(), is_changed, "{} says {:?}", name, written);
    }
    Ok(())
}

fn policy(fixture: &FsFixture, reads_root: bool, entries: &[Entry]) -> Value {
    let path = |path: PathBuf| json!({"type": "path", "path": uri(&path)});
    let mut all: Vec<Value> = entries
        .iter()
        .map(|entry| json!({"path": path(fixture.path(&entry.place)), "access": entry.access}))
        .collect();
    if reads_root {
        let root = json!({"type": "special", "value": {"kind": "root"}});
        all.push(json!({"path": root, "access": "read"}));
    }
    json!({
        "permissions": {"type": "managed", "network": "restricted",
            "file_system": {"type": "restricted", "entries": all}},
        "windowsSandboxLevel": "disabled",
    })
}
