//! `cp`: copies files to, from and between servers.
//!
//! | look here | for |
//! |---|---|
//! | this file | resolving sources and the destination |
//! | `destination_path` | a destination path: the part that the user named, and the part below it |
//! | `endpoint` | file operations on this machine or on a server |
//! | `local`, `remote` | the two implementations |
//! | `unfinished` | incomplete local files, removed when the command ends |
//! | `streams` | `-`, pipes and devices |
//! | `transfer` | concurrent copies, and retries after a lost connection |
//! | `progress` | the progress line |

mod destination_path;
mod endpoint;
mod local;
mod progress;
mod remote;
mod streams;
mod transfer;
mod unfinished;

pub use unfinished::remove_unfinished;

use std::sync::Arc;

use clap_complete::engine::ArgValueCompleter;

use super::cp_path::CpPath;
use super::exec_options::remote_path;
use super::failure::Failure;
use super::signals::{ClientSignal, Signals};
use super::target::{ResumeOptions, TargetOptions};
use super::user_option::UserOption;
use destination_path::DestinationPath;
use endpoint::{Endpoint, Entry, Kind, Location, name_of};
use progress::Progress;
use remote::RemoteEndpoint;
use streams::Stream;
use transfer::Transfer;

/// Arguments of `cp`.
#[derive(Debug, clap::Args)]
pub struct CpArguments {
    /// Copy directories with everything below them.
    #[arg(short, long)]
    recursive: bool,
    /// Preserve permission bits and times; setuid and setgid bits of files are dropped.
    #[arg(short, long)]
    preserve: bool,
    /// Show no progress.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    user: UserOption,
    #[command(flatten)]
    options: TargetOptions,
    /// Sources, then the destination: TARGET:PATH, a local path, or - for stdin or stdout.
    #[arg(value_names = ["SRC", "DST"], required = true, num_args = 2.., add = ArgValueCompleter::new(crate::cli::completion::cp_paths))]
    operands: Vec<std::ffi::OsString>,
}

impl CpArguments {
    /// Connection options, for shell completion.
    pub fn options(&self) -> &TargetOptions {
        &self.options
    }
}

/// Copies all sources; a signal cancels the copy and removes incomplete files.
pub async fn run(arguments: CpArguments) -> Result<u8, Failure> {
    let mut signals = Signals::take()
        .map_err(|source| Failure::local("could not install signal handlers", source))?;
    let progress = Arc::new(Progress::new(arguments.quiet));
    let mut ticks = tokio::time::interval(progress::EVERY);
    let copying = copy_all(arguments, progress.clone());
    tokio::pin!(copying);
    let result = loop {
        tokio::select! {
            result = &mut copying => break result,
            wanted = signals.next() => if wanted != ClientSignal::Resize {
                // Dropping the future removes every file that is not complete.
                break Err(Failure::Interrupted(wanted.exit_code()));
            },
            // Refreshes rate and time even while no bytes arrive.
            _ = ticks.tick() => progress.show(),
        }
    };
    progress.finish();
    result
}

/// One end of a copy.
enum End {
    /// A path on this machine or on a server.
    Files(Location),
    /// `-`, a local pipe or a local device.
    Stream(Stream),
}

async fn copy_all(arguments: CpArguments, progress: Arc<Progress>) -> Result<u8, Failure> {
    let mut operands: Vec<CpPath> = arguments.operands.iter().cloned().map(CpPath::from).collect();
    let destination = operands.pop().expect("at least two are required");
    check_ends(&operands, &destination)?;
    let many = operands.len() > 1;
    progress.expect(operands.len());
    let to = find_destination(&arguments, &destination, many, &progress).await?;
    let mut failures = 0;
    for operand in &operands {
        let (from, entry) =
            match find_source(&arguments, operand, &destination, &to, &progress).await? {
                (End::Files(from), entry) => (from, entry),
                (End::Stream(stream), _) => {
                    store(&arguments, operand, stream, &to, many, &progress).await?;
                    continue;
                }
            };
        let entry = entry.ok_or_else(|| from.side.missing(&from.path))?;
        if entry.kind == Kind::Directory && !arguments.recursive {
            let text = format!("{} is a directory; use -r to copy it", from.describe());
            return Err(Failure::Usage(text));
        }
        let to = match &to {
            End::Files(to) => to,
            End::Stream(stream) => return pour(&from, entry, stream, &progress).await,
        };
        let dest = target_path(operand, &from, to, entry.kind, many).await?;
        let transfer = Transfer {
            from: from.side,
            to: to.side.clone(),
            keep: arguments.preserve,
            progress: progress.clone(),
        };
        failures += transfer.run(from.path, dest, entry).await?;
    }
    match failures {
        0 => Ok(0),
        count => Err(Failure::Partly(format!("{count} could not be copied"))),
    }
}

/// Rejects `-` on both ends, repeated stdin, and copies without a server.
fn check_ends(operands: &[CpPath], destination: &CpPath) -> Result<(), Failure> {
    let text = match operands.iter().filter(|operand| is_dash(operand)).count() {
        1.. if is_dash(destination) => {
            "`-` cannot be both source and destination; use TARGET:/path for one of them"
        }
        2.. => "stdin can be copied only once",
        _ if operands
            .iter()
            .chain([destination])
            .all(|operand| matches!(operand, CpPath::Local(_))) =>
        {
            "source and destination are both on this machine; write a path of a server as TARGET:/path"
        }
        _ => return Ok(()),
    };
    Err(Failure::Usage(text.to_owned()))
}

async fn find_destination(
    arguments: &CpArguments,
    destination: &CpPath,
    many: bool,
    progress: &Arc<Progress>,
) -> Result<End, Failure> {
    let stream = match destination {
        operand if is_dash(operand) => Stream::Standard,
        CpPath::Local(path) => {
            let kind = local::stat(&local::bytes_of(path)).await?.map(|entry| entry.kind);
            let shown = super::format::plain(&path.display().to_string());
            match Stream::to(path, kind == Some(Kind::Stream)) {
                Some(stream) => stream,
                None if kind == Some(Kind::Other) => {
                    let text = format!("cannot copy into {shown}: it is a socket");
                    return Err(Failure::Usage(text));
                }
                None => return Ok(End::Files(locate(arguments, destination, progress).await?)),
            }
        }
        CpPath::Remote { .. } => {
            let to = locate(arguments, destination, progress).await?;
            return Ok(End::Files(to));
        }
    };
    let text = match () {
        () if many => {
            "several files need a directory as destination; use `exec-server cat` to print several files"
        }
        () if arguments.preserve => {
            "-p preserves permission bits and times, which a pipe, a device or stdout does not have"
        }
        () => return Ok(End::Stream(stream)),
    };
    Err(Failure::Usage(text.to_owned()))
}

/// Resolves a source operand and its metadata.
async fn find_source(
    arguments: &CpArguments,
    operand: &CpPath,
    destination: &CpPath,
    to: &End,
    progress: &Arc<Progress>,
) -> Result<(End, Option<Entry>), Failure> {
    if is_dash(operand) {
        return Ok((End::Stream(Stream::Standard), None));
    }
    let from = match to {
        End::Files(to) if same_server(operand, destination) => {
            Location { side: to.side.clone(), path: locate_path(operand, &to.side).await? }
        }
        _ => locate(arguments, operand, progress).await?,
    };
    let entry = from.side.stat(&from.path).await?;
    if let CpPath::Local(path) = operand {
        let is_stream = entry.is_some_and(|entry| entry.kind == Kind::Stream);
        if let Some(stream) = Stream::from(path, is_stream) {
            return Ok((End::Stream(stream), None));
        }
    }
    Ok((End::Files(from), entry))
}

/// Copies a file into a stream.
async fn pour(
    from: &Location,
    entry: Entry,
    stream: &Stream,
    progress: &Arc<Progress>,
) -> Result<u8, Failure> {
    if entry.kind != Kind::File {
        let text = "is no file; only a regular file can be copied into a pipe, a device or stdout";
        return Err(Failure::Usage(format!("{} {text}", from.describe())));
    }
    streams::pour(from, entry.size, stream.clone(), progress).await
}

/// Copies a stream into a file.
async fn store(
    arguments: &CpArguments,
    operand: &CpPath,
    stream: Stream,
    to: &End,
    many: bool,
    progress: &Arc<Progress>,
) -> Result<(), Failure> {
    let End::Files(to) = to else {
        let text = "source or destination must be a file of a server: TARGET:/path".to_owned();
        return Err(Failure::Usage(text));
    };
    if arguments.preserve {
        let text =
            "-p preserves permission bits and times, which stdin, a pipe or a device does not have";
        return Err(Failure::Usage(text.to_owned()));
    }
    let from = match operand {
        CpPath::Local(path) if !is_dash(operand) => local::bytes_of(path),
        _ => Vec::new(),
    };
    let from = Location { side: Endpoint::Local, path: from };
    let dest = target_path(operand, &from, to, Kind::Stream, many).await?;
    streams::store(stream, to, &dest, progress).await
}

fn is_dash(operand: &CpPath) -> bool {
    matches!(operand, CpPath::Local(path) if path.as_os_str() == "-")
}

/// The destination of one source: below `to` if that is an existing directory, else `to` itself.
async fn target_path(
    operand: &CpPath,
    from: &Location,
    to: &Location,
    kind: Kind,
    many: bool,
) -> Result<DestinationPath, Failure> {
    let existing = to.side.stat(&to.path).await?.map(|entry| entry.kind);
    let is_directory = existing == Some(Kind::Directory);
    let refuse = |why: &str| Err(Failure::Usage(format!("{} {why}", to.describe())));
    if kind == Kind::Directory && existing.is_some() && !is_directory {
        return refuse("is no directory, so a directory cannot be copied there");
    }
    let wants_directory = many || to.path.ends_with(b"/");
    if wants_directory && !is_directory && kind != Kind::Directory {
        return refuse("is no directory");
    }
    if matches!(existing, Some(Kind::Stream | Kind::Other)) {
        return refuse("is a pipe, a socket or a device, and is not replaced");
    }
    let mut path = to.path.clone();
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    let dest = DestinationPath::named(path);
    if !is_directory {
        return Ok(dest);
    }
    let Some(name) = name_of(&from.path) else {
        // `/`, `.` and `..` have no name, so their entries are copied into the destination itself.
        return match kind {
            Kind::Directory => Ok(dest),
            _ => refuse("is a directory; add a file name to it"),
        };
    };
    if matches!((&from.side, &to.side), (Endpoint::Remote(_), Endpoint::Remote(_))) {
        let names = [name].into();
        if !to.side.links_among(dest.path(), &names).await?.is_empty() {
            return Err(transfer::link_in_the_way(to.side.describe(dest.child(name).path())));
        }
    }
    let dest = dest.child(name);
    if !has_own_name(operand) && to.side.stat(dest.path()).await?.is_some() {
        let shown = to.side.describe(dest.path());
        let text = format!("{shown} exists already, and its name was chosen by the source server");
        return Err(Failure::Usage(format!("{text}; name a new directory as destination")));
    }
    Ok(dest)
}

/// Whether the user typed the last name of a source; otherwise the source server chose it (home, cwd, `..`).
fn has_own_name(operand: &CpPath) -> bool {
    match operand {
        CpPath::Local(_) => true,
        CpPath::Remote { path, .. } => {
            let last = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            path.starts_with('/') || !matches!(last, "" | "." | ".." | "~")
        }
    }
}

fn same_server(operand: &CpPath, other: &CpPath) -> bool {
    match (operand, other) {
        (CpPath::Remote { target: a, .. }, CpPath::Remote { target: b, .. }) => a == b,
        _ => false,
    }
}

async fn locate(
    arguments: &CpArguments,
    operand: &CpPath,
    progress: &Arc<Progress>,
) -> Result<Location, Failure> {
    let side = match operand {
        CpPath::Local(_) => Endpoint::Local,
        CpPath::Remote { target, .. } => {
            let client =
                arguments.options.connect(target.as_deref(), &ResumeOptions::default()).await?;
            let user = arguments.user.name(&client).await?;
            let target = target.as_deref();
            Endpoint::Remote(RemoteEndpoint::new(client, target, progress.clone(), user))
        }
    };
    let path = locate_path(operand, &side).await?;
    Ok(Location { side, path })
}

async fn locate_path(operand: &CpPath, side: &Endpoint) -> Result<Vec<u8>, Failure> {
    match (operand, side) {
        (CpPath::Remote { path, .. }, Endpoint::Remote(there)) => {
            let info = there.client().known_environment().await?;
            let cwd = info.as_ref().and_then(|info| info.cwd.as_ref());
            let home = info.as_ref().and_then(|info| info.user_home_dir.as_ref());
            let whole = remote_path(path.as_bytes(), cwd, home)?;
            let mut whole = remote::bytes_of(&whole)?;
            // A trailing slash requires a directory; `remote_path` drops it.
            if path.ends_with('/') && !whole.ends_with(b"/") {
                whole.push(b'/');
            }
            Ok(whole)
        }
        (CpPath::Local(path), _) => Ok(local::bytes_of(path)),
        (CpPath::Remote { .. }, Endpoint::Local) => {
            unreachable!("a remote operand has a remote endpoint")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_name_comes_from_the_user_or_from_the_server() {
        let own = |text: &str| has_own_name(&text.parse().expect("parsing an operand cannot fail"));
        for text in [":/x", ":x", ":~/x", ":a/b/", ":/", ":/.", "here"] {
            assert!(own(text), "{text}");
        }
        for text in [":", ":~", ":~/", ":.", ":..", ":~/.", ":a/.."] {
            assert!(!own(text), "{text}");
        }
    }
}
