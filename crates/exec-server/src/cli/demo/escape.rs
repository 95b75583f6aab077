//! Third act: a sandboxed command tries to leave its sandbox.

use std::process::Stdio;

use exec_server_sandbox::Mechanism;

use super::Outcome;
use super::command::Shown;
use super::narrator::Narrator;
use super::stage::Stage;
use crate::cli::Failure;
use crate::cli::token::quoted;

/// Content of the file that must stay as it is.
const PRECIOUS: &str = "do not lose me";

/// Lets a command attack the machine from a read-only sandbox.
pub async fn play(stage: &Stage, narrator: &Narrator) -> Result<Outcome, Failure> {
    narrator.act(3, "A command tries to break out of its sandbox").await;
    if let Err(error) = exec_server_sandbox::sandbox_trial(Mechanism::Namespaces) {
        narrator.event("this machine cannot make sandboxes, so that such commands are refused:");
        narrator.output(&error.to_string());
        let text = "not shown here; `exec-server doctor` says what is missing and how to allow it";
        narrator.verdict(Outcome::Skipped, text).await;
        return Ok(Outcome::Skipped);
    }
    let precious = stage.write("precious.txt", PRECIOUS)?;
    let token = stage.write("token", "a-token-that-only-the-demo-knows")?;
    let (precious_text, token_text) = (precious.to_string_lossy(), token.to_string_lossy());
    let words = [
        "--listen",
        "ws://127.0.0.1:0",
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        &*token_text,
    ];
    let (url, server) = stage.serve(&words).await?;
    let pid = stage.pid(server);
    let program = std::env::current_exe()
        .map_err(|error| Failure::local("could not find the path of this program", error))?;
    let attempts = [
        ("reads a file, which it may", format!("cat {}; echo", quoted(&precious_text)), true),
        ("overwrites it", format!("echo broken > {}", quoted(&precious_text)), false),
        ("reads the token of the server", format!("cat {}", quoted(&token_text)), false),
        ("kills the server", format!("kill -9 {pid}"), false),
        (
            "asks the server for a command without a sandbox",
            format!(
                "{} run -n {url} -- rm {}",
                quoted(&program.to_string_lossy()),
                quoted(&precious_text)
            ),
            false,
        ),
    ];
    narrator.prompt(&format!("exec-server run --sandbox read-only {url} -- sh -c '…'")).await;
    let mut is_confined = true;
    for (what, script, is_allowed) in attempts {
        narrator.event(&format!("it {what}"));
        let mut line =
            stage.command(&["run", "-n", "--token-file", &token_text, "--sandbox", "read-only"]);
        line.args([url.as_str(), "--", "sh", "-c", script.as_str()]);
        let code = Shown::start(line, stage, narrator)?.finish().await?;
        is_confined &= (code == 0) == is_allowed;
        narrator.pause(1).await;
    }
    let is_unchanged = std::fs::read_to_string(&precious).is_ok_and(|text| text == PRECIOUS);
    let is_serving = answers(stage, &url, &token_text).await;
    if is_confined && is_unchanged && is_serving {
        let text = "the file is unchanged, and the server still serves";
        narrator.verdict(Outcome::Shown, text).await;
        return Ok(Outcome::Shown);
    }
    let text = format!(
        "expected failures only: as expected {is_confined}, file unchanged {is_unchanged}, server serving {is_serving}"
    );
    narrator.verdict(Outcome::Failed, &text).await;
    Ok(Outcome::Failed)
}

async fn answers(stage: &Stage, url: &str, token: &str) -> bool {
    let mut command = stage.command(&["run", "-n", "--token-file", token, url, "--", "true"]);
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status().await;
    status.is_ok_and(|status| status.success())
}
