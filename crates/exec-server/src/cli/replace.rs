//! `replace`: replaces a piece of text in a file of a server.

use clap_complete::engine::ArgValueCompleter;
use exec_server_protocol::fs::{FsAppliedEdit, FsEditParams, FsEditResponse, FsTextEdit};

use super::cp_path::CpPath;
use super::failure::Failure;
use super::format::{self, FormatOptions};
use super::ls::{Clients, shown};
use super::target::TargetOptions;
use super::user_option::UserOption;
use crate::cli::completion;

/// Arguments of `replace`.
#[derive(Debug, clap::Args)]
pub struct ReplaceArguments {
    /// Replace every occurrence; without it there must be exactly one.
    #[arg(short, long)]
    all: bool,
    /// Change nothing, and report what would be replaced.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Replace only in this version of the file, as `versionTag` of --json or `ls --json` names it.
    #[arg(long, value_name = "TAG")]
    if_match: Option<String>,
    #[command(flatten)]
    format: FormatOptions,
    #[command(flatten)]
    user: UserOption,
    #[command(flatten)]
    options: TargetOptions,
    /// A file of a server, as TARGET:PATH.
    #[arg(value_name = "TARGET:PATH", add = ArgValueCompleter::new(completion::cp_paths))]
    operand: CpPath,
    /// The text to replace, exactly as it is in the file.
    #[arg(allow_hyphen_values = true)]
    old: String,
    /// The new text.
    #[arg(allow_hyphen_values = true)]
    new: String,
}

impl ReplaceArguments {
    /// Connection options, for shell completion.
    pub fn options(&self) -> &TargetOptions {
        &self.options
    }
}

/// Replaces the text and reports where.
pub async fn run(arguments: ReplaceArguments) -> Result<u8, Failure> {
    let (client, path) = Clients::default().open(&arguments.options, &arguments.operand).await?;
    let name = shown(&path);
    let user = arguments.user.name(&client).await?;
    let ReplaceArguments { old, new, all, .. } = arguments;
    let params = FsEditParams {
        path,
        edits: vec![FsTextEdit { old, new, replace_all: all }],
        follow_symlinks: None,
        sandbox: None,
        user,
        durability: None,
        if_match: arguments.if_match,
        dry_run: arguments.dry_run,
    };
    match client.fs().edit_with(params).await {
        Ok(answer) if arguments.format.is_json() => format::print_json(&answer)?,
        Ok(answer) => format::print(&report(&answer, arguments.dry_run))?,
        Err(error) => return Err(Failure::from(error).about(name)),
    }
    Ok(0)
}

fn report(answer: &FsEditResponse, is_dry: bool) -> String {
    let did = if is_dry { "would replace" } else { "replaced" };
    let line = |edit: &FsAppliedEdit| {
        format!("{did} {} (first at line {})\n", edit.replacements, edit.line)
    };
    answer.edits.iter().map(line).collect()
}
