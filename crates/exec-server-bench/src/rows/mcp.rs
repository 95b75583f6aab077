//! What `exec-server mcp` adds to a command: the same command by a tool and by the Rust client, in turns.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use exec_server_client::ExecServerClient;
use serde_json::{Value, json};
use tokio::runtime::Builder;

use super::{EVERY_ROUND, Group};
use crate::contestant::Seat;
use crate::failure::{Failure, Result};
use crate::row::rows;
use crate::scene::{Readings, Scene};
use crate::stats::{ms, percentile};

rows! {
    TOOL = "mcp.run": "`sh -c true` by the MCP tool run_command, p50", Lower "ms";
    DIRECT = "mcp.direct": "… by the Rust client, in turns", Lower "ms";
    ADDED = "mcp.added": "… difference", Lower "ms", AtMost(1.0, Unit);
}

/// Consecutive commands over stdio.
pub const GROUP: Group = Group { name: "mcp", most_rounds: EVERY_ROUND, rows: ROWS, measure };

fn measure(scene: &Scene<'_>, readings: &mut Readings) -> Result<()> {
    // Other contestants have no MCP server.
    if scene.contestant.seat != Seat::Ours {
        return Ok(());
    }
    let url = format!("ws://{}", scene.server.address);
    let mut agent = Agent::start(scene.contestant.program(), &url)?;
    scene.warden.watch(agent.child.id());
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(ExecServerClient::connect(url)).map_err(failed)?;
    let shell = runtime.block_on(client.environment_info()).map_err(failed)?.shell.path;
    let mut command = client.command(shell);
    command.args(["-c", "true"]);
    let direct = || -> Result<Duration> {
        let begun = Instant::now();
        let output = runtime.block_on(command.output()).map_err(failed)?;
        match output.status.success() {
            true => Ok(begun.elapsed()),
            false => Err(Failure::new(format!("`true` ended with {}", output.status))),
        }
    };
    for _ in 0..20 {
        agent.run()?;
        direct()?;
    }
    let (mut by_tool, mut by_client) = (Vec::new(), Vec::new());
    scene.effort.pace(1000, Duration::from_secs(8)).run(|| {
        by_tool.push(ms(agent.run()?));
        by_client.push(ms(direct()?));
        Ok(())
    })?;
    let (tool, direct) = (percentile(&by_tool, 0.5), percentile(&by_client, 0.5));
    readings.enter(TOOL, tool);
    readings.enter(DIRECT, direct);
    readings.enter(ADDED, tool - direct);
    Ok(())
}

/// A running `exec-server mcp`, ended with its stdin.
struct Agent {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    last_id: u64,
}

impl Agent {
    fn start(program: &std::ffi::OsStr, url: &str) -> Result<Self> {
        let mut child = Command::new(program)
            .args(["mcp", url])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("it was asked for"));
        let mut agent = Self { child, stdin, stdout, last_id: 0 };
        let client = json!({"name": "bench", "version": "1"});
        let params =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        agent.request("initialize", &params)?;
        agent.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))?;
        Ok(agent)
    }

    /// Runs one command to its end.
    fn run(&mut self) -> Result<Duration> {
        let params = json!({"name": "run_command", "arguments": {"command": "true"}});
        let begun = Instant::now();
        let answer = self.request("tools/call", &params)?;
        let time = begun.elapsed();
        match answer["result"]["structuredContent"]["exit_code"] == 0 {
            true => Ok(time),
            false => Err(Failure::new(format!("the tool answered {answer}"))),
        }
    }

    fn request(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.last_id += 1;
        let id = self.last_id;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))?;
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line)? == 0 {
                return Err(Failure::new("the MCP server has exited"));
            }
            let message: Value = serde_json::from_str(&line)?;
            if message["id"] == id {
                return Ok(message);
            }
        }
    }

    fn send(&mut self, message: &Value) -> Result<()> {
        let stdin = self.stdin.as_mut().expect("it is open until the drop");
        Ok(stdin.write_all(format!("{message}\n").as_bytes())?)
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

fn failed(error: exec_server_client::ExecServerError) -> Failure {
    Failure::new(format!("the client failed: {error}"))
}
