//! Borders between crates: dependencies, and how many files a method is written in.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// All dependencies of a crate; `None` without cargo, as for another user.
fn dependencies(package: &str, more: &[&str]) -> Option<Vec<String>> {
    let output = Command::new(option_env!("CARGO").unwrap_or("cargo"))
        .args(["tree", "--offline", "--locked", "--edges", "normal", "--prefix", "none"])
        .args(["--package", package])
        .args(more)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .ok()?;
    if !output.status.success() {
        eprintln!("skipped: cargo tree failed: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let name = |line: &str| line.split_whitespace().next().map(str::to_owned);
    Some(text.lines().filter_map(name).collect())
}

fn check_free_of(package: &str, more: &[&str], forbidden: &[&str]) {
    let Some(names) = dependencies(package, more) else { return };
    assert!(names.iter().any(|name| name == package), "{names:?}");
    for forbidden in forbidden {
        assert!(!names.iter().any(|name| name == forbidden), "{package} depends on {forbidden}");
    }
}

#[test]
fn an_embedder_of_the_executor_compiles_neither_clap_nor_sqlite() {
    let forbidden = ["clap", "rusqlite", "libsqlite3-sys", "exec-server-rendezvous"];
    check_free_of("exec-server-executor", &[], &forbidden);
}

#[test]
fn a_client_compiles_nothing_of_the_server() {
    let server =
        ["exec-server-os", "exec-server-fs", "exec-server-sandbox", "exec-server-executor"];
    check_free_of("exec-server-client", &[], &server);
    check_free_of(
        "exec-server-client",
        &[],
        &["clap", "rusqlite", "landlock", "prometheus-client"],
    );
    check_free_of("exec-server-rendezvous", &[], &server);
    check_free_of("exec-server-e2b", &[], &server);
}

#[test]
fn the_schema_is_compiled_only_for_those_who_ask_for_it() {
    for package in ["exec-server-protocol", "exec-server-client", "exec-server-executor"] {
        check_free_of(package, &[], &["schemars"]);
    }
}

#[test]
fn only_the_program_compiles_opentelemetry() {
    let opentelemetry =
        ["opentelemetry", "opentelemetry_sdk", "opentelemetry-otlp", "opentelemetry-proto"];
    for package in ["exec-server-client", "exec-server-executor", "exec-server-rendezvous"] {
        check_free_of(package, &[], &opentelemetry);
    }
    check_free_of("exec-server", &["--no-default-features"], &opentelemetry);
    check_free_of("exec-server", &[], &["reqwest", "tonic", "ring", "openssl"]);
}

#[test]
fn processes_know_no_files_and_neither_knows_the_sandbox() {
    let above = ["exec-server-sandbox", "exec-server-executor", "landlock"];
    check_free_of("exec-server-os", &[], &above);
    check_free_of("exec-server-os", &[], &["exec-server-fs"]);
    check_free_of("exec-server-fs", &[], &above);
}

#[test]
fn what_touches_the_kernel_knows_neither_requests_nor_sessions() {
    for package in ["exec-server-os", "exec-server-fs", "exec-server-sandbox"] {
        let forbidden = ["exec-server-core", "exec-server-transport", "exec-server-executor"];
        check_free_of(package, &[], &forbidden);
        check_free_of(package, &[], &["hyper", "tokio-websockets", "clap", "rusqlite"]);
    }
}

#[test]
fn the_rules_and_the_pure_part_of_the_relay_are_free_of_tokio() {
    check_free_of("exec-server-core", &[], &["tokio", "hyper"]);
    check_free_of("exec-server-protocol", &[], &["tokio", "hyper"]);
    check_free_of("exec-server-relay", &["--no-default-features"], &["tokio", "hyper"]);
}

/// `docs/adding-a-method.md` promises this for its three examples.
#[test]
fn a_method_is_named_in_four_source_files_and_where_it_is_done() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates are beside it");
    let sources: Vec<PathBuf> = std::fs::read_dir(crates)
        .expect("the sources are there")
        .flat_map(|package| rust_files(&package.unwrap().path().join("src")))
        .collect();
    let naming = |words: &[&str]| -> BTreeSet<String> {
        let names = |path: &&PathBuf| {
            let text = std::fs::read_to_string(path).expect("a source file");
            words.iter().any(|word| text.contains(word))
        };
        let short = |path: &PathBuf| path.strip_prefix(crates).unwrap().display().to_string();
        sources.iter().filter(names).map(short).collect()
    };
    // The words are the variants of the method, of its call and of what the call becomes.
    for (words, files) in [
        (
            &["FsTruncate", "fs_truncate", "FsRequest::Truncate", "content::truncate"][..],
            &[
                "exec-server-client/src/files.rs",
                "exec-server-fs/src/request.rs",
                "exec-server-protocol/src/fs/write.rs",
                "exec-server-protocol/src/methods.rs",
            ][..],
        ),
        (
            &["ProcessResize", "Call::Resize", "Command::Resize", "handle_resize"],
            &[
                "exec-server-client/src/process.rs",
                "exec-server-executor/src/dispatch.rs",
                "exec-server-executor/src/process/task/commands.rs",
                "exec-server-protocol/src/methods.rs",
                "exec-server-protocol/src/process.rs",
            ],
        ),
        (
            &["HttpCancel", "HttpCall::Cancel"],
            &[
                "exec-server-client/src/http.rs",
                "exec-server-executor/src/egress.rs",
                "exec-server-protocol/src/http.rs",
                "exec-server-protocol/src/methods.rs",
            ],
        ),
    ] {
        let expected = files.iter().map(|file| (*file).to_owned()).collect();
        assert_eq!(naming(words), expected, "{words:?}");
    }
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

#[test]
fn the_oldest_supported_rust_is_the_same_everywhere() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap_or_default();
    let cargo = read("Cargo.toml");
    let version =
        cargo.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let version = version.expect("the workspace names a version");
    // Clippy compares the library calls of a crate with the version that the crate names.
    for dir in std::fs::read_dir(root.join("crates")).unwrap() {
        let manifest = std::fs::read_to_string(dir.unwrap().path().join("Cargo.toml")).unwrap();
        assert!(manifest.contains("\nrust-version.workspace = true\n"), "{manifest}");
    }
    assert!(read("docs/install.md").contains(&format!("({version} or newer)")));
    assert!(read("RELEASING.md").contains(&format!("cargo +{version} check")));
}
