//! `attach`: a process of an earlier invocation becomes ours.

use std::io::{self, IsTerminal};

use super::detach_keys::DetachKeys;
use super::failure::Failure;
use super::follow::{Input, Manner, follow};
use super::processes::ProcessReference;
use super::run::conclude;
use super::target::Wish;

/// Which process, and how.
#[derive(Debug, clap::Args)]
pub struct AttachArguments {
    /// Take it from whoever is attached to it now.
    #[arg(long)]
    take_over: bool,
    /// Begin with what it says next, not with what it has said.
    #[arg(long)]
    no_replay: bool,
    /// Leave stdin alone.
    #[arg(short = 'n', long)]
    no_stdin: bool,
    /// The keys that let go of it; none for no such keys.
    #[arg(long, value_name = "KEYS", default_value = DetachKeys::DEFAULT)]
    detach_keys: DetachKeys,
    #[command(flatten)]
    process: ProcessReference,
}

/// Attaches.
pub async fn run(arguments: AttachArguments) -> Result<u8, Failure> {
    let reference = &arguments.process;
    let (looking, located) = reference.find().await?;
    drop(looking);
    let wish =
        Wish { resume: Some(located.session.session_id.clone()), take_over: arguments.take_over };
    let client = reference.options.connect(reference.target(), &wish).await?;
    let id = located.process.process_id.clone();
    let after_seq = if arguments.no_replay { located.process.next_seq - 1 } else { 0 };
    let process = client.attach(id.clone(), after_seq).await?;
    let has_terminal = located.process.tty;
    if has_terminal && let Some(size) = exec_server_os::terminal_size() {
        // A program that paints its screen also does so now.
        process.resize(size).await?;
    }
    let passes_stdin = has_terminal || !io::stdin().is_terminal();
    let manner = Manner {
        input: if passes_stdin && !arguments.no_stdin { Input::Stdin } else { Input::None },
        has_terminal,
        detach_keys: arguments.detach_keys,
        after_seq,
    };
    let outcome = follow(&process, manner).await;
    conclude(&client, reference.target(), &id, outcome).await
}
