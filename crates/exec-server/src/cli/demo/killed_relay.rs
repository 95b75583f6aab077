//! Second act: the relay between client and machine is killed.

use std::time::Duration;

use serde::Deserialize;

use super::Outcome;
use super::command::Shown;
use super::cut_link::{OUTAGE, SCRIPT, judge};
use super::narrator::Narrator;
use super::stage::Stage;
use crate::cli::Failure;

/// Between two questions whether the executor is attached.
const POLL: Duration = Duration::from_millis(100);

/// Enough for an executor on a loaded machine to attach.
const MAX_POLLS: u32 = 200;

/// Runs a command through a relay that is killed and started again.
pub async fn play(stage: &Stage, narrator: &Narrator) -> Result<Outcome, Failure> {
    narrator.act(2, "The relay is killed while a command runs behind it").await;
    let data = stage.path("relay").to_string_lossy().into_owned();
    let (url, relay) =
        stage.serve(&["rendezvous", "--listen", "http://127.0.0.1:0", "--data", &data]).await?;
    let executor = token(stage, &data, "executor").await?;
    let harness = token(stage, &data, "harness").await?;
    let mut machine = stage.command(&["--remote", &url, "--environment-id", "demo"]);
    machine.env("EXEC_SERVER_REMOTE_TOKEN", executor);
    // Its state is apart from that of the client, as on two machines.
    machine.env("EXEC_SERVER_STATE_DIR", stage.path("state/executor"));
    stage.start(machine)?;
    wait_until_online(stage, &data).await?;
    narrator.prompt(&format!("exec-server run --remote {url} env:demo -- sh -c '{SCRIPT}'")).await;
    let mut client =
        stage.command(&["run", "--remote", &url, "env:demo", "--", "sh", "-c", SCRIPT]);
    client.env("EXEC_SERVER_REMOTE_TOKEN", harness);
    let mut command = Shown::start(client, stage, narrator)?;
    command.show_until(2).await?;
    let pid = stage.kill(relay).await?;
    narrator.event(&format!("kill -9 {pid}: the relay is gone, in the middle of both connections"));
    command.show_for(OUTAGE).await?;
    stage.serve(&["rendezvous", "--listen", &url, "--data", &data]).await?;
    narrator.event("the relay is started again, after 2 s; both ends find it");
    let code = command.finish().await?;
    narrator.output(&format!("exit code {code}"));
    judge(narrator, &command.lines, code, Some("through a new relay process, encrypted end to end"))
        .await
}

#[derive(Deserialize)]
struct Made {
    secret: String,
}

/// A token for one end of the relay.
async fn token(stage: &Stage, data: &str, role: &str) -> Result<String, Failure> {
    let words =
        ["token", "create", "--data", data, "--environment", "demo", "--role", role, "-o", "json"];
    let made: Option<Made> = asked(stage, &words).await;
    Ok(made.ok_or_else(|| stage.broken("the relay made no token"))?.secret)
}

#[derive(Deserialize)]
struct Environment {
    online: Option<bool>,
}

async fn wait_until_online(stage: &Stage, data: &str) -> Result<(), Failure> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Answer {
        List(Vec<Environment>),
        Object { environments: Vec<Environment> },
    }
    for _ in 0..MAX_POLLS {
        let answer: Option<Answer> =
            asked(stage, &["environments", "--data", data, "-o", "json"]).await;
        let (Some(Answer::List(found)) | Some(Answer::Object { environments: found })) = answer
        else {
            continue;
        };
        if found.iter().any(|environment| environment.online == Some(true)) {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
    Err(stage.broken("the executor of the demo did not attach to the relay"))
}

/// The JSON that a command prints.
async fn asked<T: serde::de::DeserializeOwned>(stage: &Stage, words: &[&str]) -> Option<T> {
    let output = stage.command(words).output().await.ok()?;
    serde_json::from_slice(&output.stdout).ok()
}
