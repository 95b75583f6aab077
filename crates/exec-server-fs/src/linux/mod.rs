//! File operations on Linux. Opening a file never blocks on a pipe or a device.
//!
//! | look here | for |
//! |---|---|
//! | `resolve`, `open`, `cached` | paths to descriptors; answers from the kernel's caches |
//! | `stage`, `in_place`, `attributes`, `path_locks`, `unnamed_file` | new content for a file |
//! | `content`, `edit` | append, truncate, replace text |
//! | `metadata`, `names`, `listing`, `entries`, `first_names`, `walk` | what is there; new directories and links, renames |
//! | `copy`, `copy_bytes`, `remove` | trees |
//! | [`search`], [`tree_watch`], [`missing_watch`] | searches and watches |
//! | [`destination`] | the local destination of a copy |

mod attributes;
mod cached;
pub(crate) mod content;
pub(crate) mod copy;
mod copy_bytes;
pub mod destination;
pub(crate) mod edit;
mod entries;
mod first_names;
mod in_place;
pub(crate) mod listing;
pub(crate) mod metadata;
pub mod missing_watch;
pub(crate) mod names;
pub(crate) mod open;
mod path_locks;
pub(crate) mod remove;
mod resolve;
pub mod search;
pub(crate) mod stage;
#[cfg(test)]
mod testing;
pub mod tree_watch;
mod unnamed_file;
pub(crate) mod walk;

pub use cached::{PathIdentity, answer_from_cache, identity_from_cache, identity_of};
pub use listing::decode_cursor;
pub use missing_watch::MissingWatch;
pub use open::OpenFile;
pub use stage::StagedFile;
pub use unnamed_file::UnnamedFile;

use crate::error::FsError;

/// `EBADF`: the descriptor was opened for the other direction.
pub fn bad_descriptor() -> FsError {
    resolve::system(rustix::io::Errno::BADF)
}
