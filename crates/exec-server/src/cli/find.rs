//! `find`: searches the names of files of servers.

use clap::ValueEnum;
use clap_complete::engine::ArgValueCompleter;
use exec_server_client::SearchPages;
use exec_server_protocol::fs::{CaseMode, FoundKind, FsFindPage, FsFindParams, FsFoundEntry};
use exec_server_protocol::path_uri::NativePaths;

use super::cp_path::CpPath;
use super::failure::Failure;
use super::format;
use super::ls::{Clients, shown};
use super::search_options::{SearchOptions, report};
use super::target::TargetOptions;
use super::user_option::UserOption;
use crate::cli::completion;

/// Arguments of `find`.
#[derive(Debug, clap::Args)]
pub struct FindArguments {
    /// Only entries of this kind. Can be repeated.
    #[arg(short = 't', long = "kind", value_name = "KIND")]
    kinds: Vec<Kind>,
    /// Ignore case.
    #[arg(short, long)]
    ignore_case: bool,
    /// End each path with NUL instead of a new line, and print its exact bytes.
    #[arg(short = '0', long, conflicts_with = "json")]
    print0: bool,
    /// Print one JSON object per entry, with size and modification time.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    search: SearchOptions,
    #[command(flatten)]
    user: UserOption,
    #[command(flatten)]
    options: TargetOptions,
    /// A directory of a server, as TARGET:PATH.
    #[arg(value_name = "TARGET:PATH", add = ArgValueCompleter::new(completion::cp_paths))]
    operand: CpPath,
    /// Globs of names, or, with a slash, of paths below the directory; everything without one.
    #[arg(value_name = "GLOB")]
    patterns: Vec<String>,
}

/// A kind of entry, as in find.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    /// A regular file.
    #[value(name = "f", alias = "file")]
    File,
    /// A directory.
    #[value(name = "d", alias = "directory")]
    Directory,
    /// A symbolic link.
    #[value(name = "l", alias = "symlink")]
    Symlink,
    /// A pipe, a socket or a device.
    #[value(name = "o", alias = "other")]
    Other,
}

impl FindArguments {
    /// Connection options, for shell completion.
    pub fn options(&self) -> &TargetOptions {
        &self.options
    }
}

/// Searches and prints; 1 if something could not be read.
pub async fn run(arguments: FindArguments) -> Result<u8, Failure> {
    let (client, path) = Clients::default().open(&arguments.options, &arguments.operand).await?;
    let name = shown(&path);
    let about = |error| Failure::from(error).about(name.clone());
    let kind = |kind: &Kind| match kind {
        Kind::File => FoundKind::File,
        Kind::Directory => FoundKind::Directory,
        Kind::Symlink => FoundKind::Symlink,
        Kind::Other => FoundKind::Other,
    };
    let params = FsFindParams {
        path,
        patterns: arguments.patterns.clone(),
        sandbox: None,
        user: arguments.user.name(&client).await?,
        case: if arguments.ignore_case { CaseMode::Insensitive } else { CaseMode::Sensitive },
        kinds: arguments.kinds.iter().map(kind).collect(),
        detailed: arguments.json,
        filter: arguments.search.filter(),
        limits: arguments.search.limits(),
        search_id: None,
    };
    let mut pages: SearchPages<FsFindPage> = client.fs().find(params).await.map_err(about)?;
    let mut has_trouble = false;
    while let Some(page) = pages.next_page().await.map_err(about)? {
        format::print_bytes(&render(&arguments, &page.entries))?;
        has_trouble |= report(&page.state);
    }
    Ok(u8::from(has_trouble))
}

fn render(arguments: &FindArguments, entries: &[FsFoundEntry]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in entries {
        if arguments.json {
            bytes.extend(serde_json::to_vec(entry).expect("plain data can be written"));
            bytes.push(b'\n');
        } else if arguments.print0 {
            let exact = entry.path.to_posix(NativePaths::Accept);
            bytes.extend(exact.unwrap_or_else(|_| entry.path.as_str().as_bytes().to_vec()));
            bytes.push(0);
        } else {
            bytes.extend(shown(&entry.path).into_bytes());
            bytes.push(b'\n');
        }
    }
    bytes
}
