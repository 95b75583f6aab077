//! The command line of the official inspector, which starts the server over stdio.

use std::process::Output;

use exec_server_testkit::TestExecutor;
use exec_server_testkit::executor::binary;
use serde_json::{Value, json};

use crate::npm::NodeProgram;

fn inspect(inspector: &NodeProgram, url: &str, arguments: &[&str]) -> Output {
    let mut command = inspector.command();
    exec_server_testkit::isolation::isolate(&mut command);
    let server = [binary().to_str().expect("a path"), "mcp", url].map(str::to_owned);
    command.arg("--cli").args(server).args(arguments).output().expect("it can be started")
}

fn answer(output: &Output) -> Value {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).expect("the inspector prints JSON")
}

#[tokio::test]
async fn the_inspector_lists_and_calls_tools() {
    let package = "@modelcontextprotocol/inspector@2.12.0";
    let script = "@modelcontextprotocol/inspector/clients/launcher/build/index.js";
    let Some(inspector) = NodeProgram::find("mcp-inspector", package, script) else { return };
    let server = TestExecutor::start().await;
    let url = server.url().to_owned();
    let inspecting = move || {
        let listed = answer(&inspect(&inspector, &url, &["--method", "tools/list"]));
        assert_eq!(listed["tools"].as_array().expect("a list").len(), 13);
        let call = ["--method", "tools/call", "--tool-name", "run_command"];
        let run = [&call[..], &["--tool-arg", "command=echo $((40 + 2))"]].concat();
        let ran = answer(&inspect(&inspector, &url, &run));
        assert_eq!(ran["structuredContent"]["output"], "42\n", "{ran}");
        assert_eq!(ran["structuredContent"]["exit_code"], json!(0));
        let unknown = ["--method", "tools/call", "--tool-name", "levitate"];
        assert!(!inspect(&inspector, &url, &unknown).status.success());
    };
    tokio::task::spawn_blocking(inspecting).await.expect("the inspector works");
}
