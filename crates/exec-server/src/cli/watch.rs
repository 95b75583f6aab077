//! `watch`: prints the changes of a file or a tree of a server.

use clap_complete::engine::ArgValueCompleter;
use exec_server_protocol::fs::{ChangeKind, FsChange};

use super::cp_path::CpPath;
use super::failure::Failure;
use super::format;
use super::ls::{Clients, shown};
use super::target::TargetOptions;
use super::user_option::{self, UserOption};
use crate::cli::completion;

/// Arguments of `watch`.
#[derive(Debug, clap::Args)]
pub struct WatchArguments {
    /// Watch the directories below, too.
    #[arg(short, long)]
    recursive: bool,
    /// Exit after the first changes.
    #[arg(short = '1', long)]
    once: bool,
    /// Print one JSON object per change.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    user: UserOption,
    #[command(flatten)]
    options: TargetOptions,
    /// A file or a directory of a server, as TARGET:PATH.
    #[arg(value_name = "TARGET:PATH", add = ArgValueCompleter::new(completion::cp_paths))]
    operand: CpPath,
}

impl WatchArguments {
    /// Connection options, for shell completion.
    pub fn options(&self) -> &TargetOptions {
        &self.options
    }
}

/// Prints changes until the path is removed or the user ends the command.
pub async fn run(arguments: WatchArguments) -> Result<u8, Failure> {
    let (client, path) = Clients::default().open(&arguments.options, &arguments.operand).await?;
    let name = shown(&path);
    let about = |error| Failure::from(error).about(name.clone());
    let user = arguments.user.name(&client).await?;
    let files = user_option::files(&client, &user);
    let mut watch = files.watch(path, arguments.recursive).await.map_err(about)?;
    let answer = watch.answer();
    if answer.skipped > 0 {
        let text = format!("{} directories cannot be read and are not watched", answer.skipped);
        super::output::print_stderr(&format!("exec-server: {text}\n"));
    }
    // A script waits for this line before it makes changes.
    super::output::print_stderr(&format!("exec-server: watching {name}\n"));
    while let Some(changes) = watch.next().await.map_err(about)? {
        let text: String = changes.iter().map(|change| render(change, arguments.json)).collect();
        format::print(&text)?;
        if arguments.once {
            return Ok(0);
        }
    }
    super::output::print_stderr(&format!("exec-server: {name} was removed or moved\n"));
    Ok(0)
}

fn render(change: &FsChange, is_json: bool) -> String {
    if is_json {
        return serde_json::to_string(change).expect("plain data can be written") + "\n";
    }
    let kind = match change.kind {
        ChangeKind::Create => "create",
        ChangeKind::Write => "write",
        ChangeKind::Remove => "remove",
        ChangeKind::Rename => "rename",
        ChangeKind::Chmod => "chmod",
        ChangeKind::Rescan => "rescan",
    };
    match &change.from {
        Some(from) => format!("{kind} {} -> {}\n", shown(from), shown(&change.path)),
        None => format!("{kind} {}\n", shown(&change.path)),
    }
}
