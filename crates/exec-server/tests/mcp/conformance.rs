//! The official conformance suite against the shipped server.
//!
//! Most scenarios call fixture tools that only a server made for the suite has. The baseline files name what fails for
//! that reason; every other check must pass, and a check that passes must not be in the file. A twin of the server with
//! the fixtures, in `twin.rs`, passes all of them.

use std::path::Path;

use exec_server_testkit::TestExecutor;

use crate::npm::NodeProgram;
use crate::transports::listening;

/// The suite, or none where it cannot be installed.
pub fn suite() -> Option<NodeProgram> {
    let package = "@modelcontextprotocol/conformance@0.2.0-alpha.12";
    let script = "@modelcontextprotocol/conformance/dist/index.js";
    NodeProgram::find("mcp-conformance", package, script)
}

#[tokio::test]
async fn what_needs_no_fixtures_passes() {
    let Some(suite) = suite() else { return };
    let server = TestExecutor::start().await;
    let (_child, address) = listening(&server, &[]).await;
    for revision in ["2025-11-25", "2026-07-28"] {
        let baseline = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/baseline");
        let output = suite
            .command()
            .args(["server", "--url", &format!("http://{address}/mcp"), "--requirements", revision])
            .arg("--expected-failures")
            .arg(baseline.join(format!("{revision}.yml")))
            .output()
            .expect("the suite can be started");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{revision}: {text}");
        assert!(text.contains("✓ tools-list:"), "{revision}: {text}");
    }
}
