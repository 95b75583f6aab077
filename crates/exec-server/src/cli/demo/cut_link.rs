//! First act: the network breaks while a command runs.

use std::net::SocketAddr;
use std::time::Duration;

use super::Outcome;
use super::command::Shown;
use super::link::Link;
use super::narrator::Narrator;
use super::stage::Stage;
use crate::cli::Failure;

/// Lines of the command that is interrupted.
pub const LINES: usize = 6;

/// The exit code of that command, so that it is seen to arrive.
pub const CODE: i32 = 7;

/// A command that prints a line every half second.
pub const SCRIPT: &str =
    "for i in 1 2 3 4 5 6; do echo \"line $i, pid $$\"; sleep 0.5; done; exit 7";

/// How long the link or the relay is away: four lines.
pub const OUTAGE: Duration = Duration::from_secs(2);

/// Runs a command over a link that is cut and mended.
pub async fn play(stage: &Stage, narrator: &Narrator) -> Result<Outcome, Failure> {
    narrator.act(1, "The network fails while a command runs").await;
    let (url, _) = stage.serve(&["--listen", "ws://127.0.0.1:0"]).await?;
    let server: Option<SocketAddr> = url.strip_prefix("ws://").and_then(|it| it.parse().ok());
    let server = server.ok_or_else(|| stage.broken("the server printed no address"))?;
    let link =
        Link::to(server).await.map_err(|error| Failure::local("could not make a link", error))?;
    let url = format!("ws://{}", link.address());
    narrator.prompt(&format!("exec-server run {url} -- sh -c '{SCRIPT}'")).await;
    let mut command =
        Shown::start(stage.command(&["run", &url, "--", "sh", "-c", SCRIPT]), stage, narrator)?;
    command.show_until(2).await?;
    link.cut();
    narrator.event("the link is cut: its connection is closed, and new ones too");
    command.show_for(OUTAGE).await?;
    let lost = link.connections();
    link.mend();
    narrator.event("the link works again, after 2 s in which the command went on");
    let code = command.finish().await?;
    narrator.output(&format!("exit code {code}"));
    let is_new = link.connections() > lost;
    judge(narrator, &command.lines, code, is_new.then_some("over a second connection")).await
}

/// Whether every line came once and in order from one process, with the exit code.
pub async fn judge(
    narrator: &Narrator,
    lines: &[String],
    code: i32,
    way: Option<&str>,
) -> Result<Outcome, Failure> {
    let pids: Vec<&str> = lines.iter().filter_map(|line| line.rsplit(' ').next()).collect();
    let is_one = pids.windows(2).all(|pair| pair[0] == pair[1]);
    let in_order =
        (1..=LINES).zip(lines).all(|(number, line)| line.starts_with(&format!("line {number},")));
    match way {
        Some(way) if lines.len() == LINES && in_order && is_one && code == CODE => {
            let text =
                format!("all {LINES} lines, each once, of one process, and its exit code: {way}");
            narrator.verdict(Outcome::Shown, &text).await;
            Ok(Outcome::Shown)
        }
        _ => {
            let text = format!(
                "expected {LINES} lines of one process over a new connection, and exit code {CODE}"
            );
            narrator.verdict(Outcome::Failed, &text).await;
            Ok(Outcome::Failed)
        }
    }
}
