//! `exec-server demo`: shows on this machine what a lost link, a killed relay and a sandbox do to a command.
//!
//! | look here | for |
//! |---|---|
//! | this file | arguments, the order of the acts, the summary |
//! | `cut_link`, `killed_relay`, `escape` | the acts |
//! | `stage` | the temporary directory and the programs in it |
//! | `link` | a link that can be cut |
//! | `command` | a client command whose output is shown line by line |
//! | `narrator` | what is printed, and the pauses for reading |

mod command;
mod cut_link;
mod escape;
mod killed_relay;
mod link;
mod narrator;
mod stage;

use super::Failure;
use narrator::Narrator;
use stage::Stage;

pub const EXAMPLES: &str = "\
Examples:
  exec-server demo
  exec-server demo --quick
      without pauses for reading";

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
pub struct DemoArguments {
    /// Leave out the pauses for reading.
    #[arg(long)]
    quick: bool,
}

/// The result of an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// What the act claims was seen.
    Shown,
    /// Something else happened.
    Failed,
    /// This machine cannot show it.
    Skipped,
}

/// Plays the acts and prints a summary; 0 if none of them failed.
pub async fn run(arguments: DemoArguments) -> Result<u8, Failure> {
    let narrator = Narrator::new(arguments.quick);
    let stage = Stage::set()?;
    let played = tokio::select! {
        played = play(&stage, &narrator) => played,
        _ = tokio::signal::ctrl_c() => Err(Failure::Interrupted(130)),
    };
    // Its programs end before their directory is removed.
    stage.strike().await;
    let outcomes = played?;
    let count = |outcome| outcomes.iter().filter(|it| **it == outcome).count();
    narrator.summary(count(Outcome::Shown), count(Outcome::Failed), count(Outcome::Skipped));
    Ok(u8::from(count(Outcome::Failed) > 0))
}

async fn play(stage: &Stage, narrator: &Narrator) -> Result<Vec<Outcome>, Failure> {
    narrator.opening(stage.directory()).await;
    Ok(vec![
        cut_link::play(stage, narrator).await?,
        killed_relay::play(stage, narrator).await?,
        escape::play(stage, narrator).await?,
    ])
}
