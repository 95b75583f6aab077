//! `cp`: files to, from and between servers.
//!
//! | look here | for |
//! |---|---|
//! | this file | what goes where |
//! | `side` | what can be done with files, here or there |
//! | `here`, `there` | how |
//! | `transfer` | many files at once, and again after a lost link |
//! | `progress` | the line that tells how far it is |

mod here;
mod progress;
mod side;
mod there;
mod transfer;

use std::sync::Arc;

use super::failure::Failure;
use super::signals::{Signals, Wanted};
use super::spot::Spot;
use super::start::remote_path;
use super::target::{TargetOptions, Wish};
use progress::Progress;
use side::{Kind, Location, Side, join, name_of};
use there::There;
use transfer::Transfer;

/// What goes where.
#[derive(Debug, clap::Args)]
pub struct CpArguments {
    /// Directories with everything below them.
    #[arg(short, long)]
    recursive: bool,
    /// Keep permission bits and times.
    #[arg(short, long)]
    preserve: bool,
    /// Show no progress.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    options: TargetOptions,
    /// What to copy: TARGET:PATH, or a path of this machine; and last, where to.
    #[arg(value_names = ["SRC", "DST"], required = true, num_args = 2..)]
    spots: Vec<std::ffi::OsString>,
}

/// Copies.
pub async fn run(arguments: CpArguments) -> Result<u8, Failure> {
    let mut signals =
        Signals::take().map_err(|source| Failure::here("could not take over signals", source))?;
    let progress = Arc::new(Progress::new(arguments.quiet));
    let mut ticks = tokio::time::interval(progress::EVERY);
    let copying = copy_all(arguments, progress.clone());
    tokio::pin!(copying);
    let result = loop {
        tokio::select! {
            result = &mut copying => break result,
            wanted = signals.next() => if wanted != Wanted::Resize {
                // What was begun is dropped with the future, and with it whatever is not complete.
                break Ok(wanted.exit_code());
            },
            // Also while nothing moves.
            _ = ticks.tick() => progress.show(),
        }
    };
    progress.finish();
    result
}

async fn copy_all(arguments: CpArguments, progress: Arc<Progress>) -> Result<u8, Failure> {
    let mut spots: Vec<Spot> = arguments.spots.into_iter().map(Spot::from).collect();
    let destination = spots.pop().expect("at least two are required");
    if spots.iter().chain([&destination]).all(|spot| matches!(spot, Spot::Here(_))) {
        let text = "both are on this machine; a path of a server is TARGET:/path".to_owned();
        return Err(Failure::Usage(text));
    }
    let to = locate(&arguments.options, &destination).await?;
    let many = spots.len() > 1;
    let mut failures = 0;
    for spot in &spots {
        let from = if same_server(spot, &destination) {
            let path = locate_path(spot, &to.side).await?;
            Location { side: to.side.clone(), path }
        } else {
            locate(&arguments.options, spot).await?
        };
        let source = from.side.look(&from.path).await?;
        let source = source.ok_or_else(|| from.side.missing(&from.path))?;
        if source.kind == Kind::Directory && !arguments.recursive {
            let text = format!("{} is a directory; -r copies it", from.describe());
            return Err(Failure::Usage(text));
        }
        let path = target_path(&from, &to, source.kind, many).await?;
        let transfer = Transfer {
            from: from.side,
            to: to.side.clone(),
            keep: arguments.preserve,
            progress: progress.clone(),
        };
        failures += transfer.run(from.path, path, source).await?;
    }
    match failures {
        0 => Ok(0),
        count => Err(Failure::Partly(format!("{count} could not be copied"))),
    }
}

/// Into a directory that is there, or to the very path.
async fn target_path(
    from: &Location,
    to: &Location,
    kind: Kind,
    many: bool,
) -> Result<Vec<u8>, Failure> {
    let existing = to.side.look(&to.path).await?;
    let is_directory = existing.is_some_and(|entry| entry.kind == Kind::Directory);
    if kind == Kind::Directory && existing.is_some() && !is_directory {
        let text = format!("{} is no directory, so that no directory can go there", to.describe());
        return Err(Failure::Usage(text));
    }
    let wants_directory = many || to.path.ends_with(b"/");
    if wants_directory && !is_directory && kind != Kind::Directory {
        return Err(Failure::Usage(format!("{} is no directory", to.describe())));
    }
    let mut path = to.path.clone();
    while path.len() > 1 && path.ends_with(b"/") {
        path.pop();
    }
    match name_of(&from.path) {
        Some(name) if is_directory => Ok(join(&path, name)),
        // Without a name of its own, what is in it goes to the very path.
        _ => Ok(path),
    }
}

fn same_server(spot: &Spot, other: &Spot) -> bool {
    match (spot, other) {
        (Spot::There { target: a, .. }, Spot::There { target: b, .. }) => a == b,
        _ => false,
    }
}

async fn locate(options: &TargetOptions, spot: &Spot) -> Result<Location, Failure> {
    let side = match spot {
        Spot::Here(_) => Side::Here,
        Spot::There { target, .. } => {
            let client = options.connect(target.as_deref(), &Wish::default()).await?;
            Side::There(There::new(client, target.as_deref()))
        }
    };
    let path = locate_path(spot, &side).await?;
    Ok(Location { side, path })
}

async fn locate_path(spot: &Spot, side: &Side) -> Result<Vec<u8>, Failure> {
    match (spot, side) {
        (Spot::There { path, .. }, Side::There(there)) => {
            let info = there.client().known_environment().await?;
            let cwd = info.as_ref().and_then(|info| info.cwd.as_ref());
            let home = info.as_ref().and_then(|info| info.user_home_dir.as_ref());
            let whole = remote_path(path.as_bytes(), cwd, home)?;
            let mut whole = there::bytes_of(&whole)?;
            // What a slash at the end asks for must not get lost.
            if path.ends_with('/') && !whole.ends_with(b"/") {
                whole.push(b'/');
            }
            Ok(whole)
        }
        (Spot::Here(path), _) => Ok(here::bytes_of(path)),
        (Spot::There { .. }, Side::Here) => unreachable!("a place there has a side there"),
    }
}
