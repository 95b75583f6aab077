//! File operations on Linux. Opening a file never blocks on a pipe or a device.

mod attributes;
mod cached;
mod content;
mod copy;
mod copy_bytes;
pub mod destination;
mod edit;
mod entries;
mod first_names;
mod in_place;
mod listing;
mod metadata;
pub mod missing_watch;
mod names;
mod open;
mod path_locks;
mod remove;
mod resolve;
pub mod search;
mod stage;
#[cfg(test)]
mod testing;
pub mod tree_watch;
mod unnamed_file;
mod walk;

pub use cached::{PathIdentity, answer_from_cache, identity_from_cache, identity_of};
pub use listing::decode_cursor;
pub use missing_watch::MissingWatch;
pub use open::OpenFile;
pub use stage::StagedFile;
pub use unnamed_file::UnnamedFile;

use crate::request::{FsError, FsReply, FsRequest, Leftovers, Links};

/// Executes a request; may block on a disk or a network.
pub fn perform(request: FsRequest) -> Result<FsReply, FsError> {
    Ok(match request {
        FsRequest::Read { path, links } => FsReply::Opened(open::open(&path, links)?),
        FsRequest::Replace { path, options } => {
            FsReply::Staged(stage::begin(&path, Links::Follow, options)?)
        }
        FsRequest::Write { path, links, data, options } => {
            let (response, leftovers) = stage::write(&path, links, &data, options)?;
            FsReply::Written(response, Leftovers { _data: data, ..leftovers })
        }
        FsRequest::Append { path, links, data, create, options } => {
            let response = content::append(&path, links, &data, create, &options)?;
            FsReply::Written(response, Leftovers::default())
        }
        FsRequest::Truncate { path, links, size, options } => {
            let response = content::truncate(&path, links, size, &options)?;
            FsReply::Written(response, Leftovers::default())
        }
        FsRequest::Edit { path, links, edits, options, dry_run } => {
            let (response, leftovers) = edit::edit(&path, links, &edits, &options, dry_run)?;
            FsReply::Edited(response, leftovers)
        }
        FsRequest::CreateDirectory { path, recursive, links } => {
            done(names::create_directory(&path, recursive, links))?
        }
        FsRequest::Metadata { path, links, detail } => {
            FsReply::Metadata(metadata::metadata(&path, links, detail)?)
        }
        FsRequest::Canonicalize { path } => FsReply::Canonical(names::canonicalize(&path)?),
        FsRequest::List { path, page, detail } => {
            FsReply::Listing(listing::list(&path, page.as_ref(), detail)?)
        }
        FsRequest::Walk { path, options } => FsReply::Walked(walk::walk(&path, &options)?),
        FsRequest::Remove { path, recursive, force, links } => {
            done(remove::remove(&path, recursive, force, links))?
        }
        FsRequest::Copy { source, destination, recursive } => {
            done(copy::copy(&source, &destination, recursive))?
        }
        FsRequest::Rename { source, destination, no_replace } => {
            done(names::rename(&source, &destination, no_replace))?
        }
        FsRequest::Symlink { path, target, replace } => {
            done(names::symlink(&path, &target, replace))?
        }
        FsRequest::ReadLink { path } => FsReply::Link(metadata::read_link(&path)?),
        FsRequest::SetPermissions { path, mode, modified_at_ms, links } => {
            done(names::set_permissions(&path, mode, modified_at_ms, links))?
        }
    })
}

fn done(result: Result<(), FsError>) -> Result<FsReply, FsError> {
    result.map(|()| FsReply::Done)
}

/// `EBADF`: the descriptor was opened for the other direction.
pub fn bad_descriptor() -> FsError {
    resolve::system(rustix::io::Errno::BADF)
}
