//! Dependency borders: an embedder of the executor compiles neither clap nor SQLite.

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
    check_free_of("exec-server-client", &[], &["clap", "rusqlite", "landlock"]);
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
