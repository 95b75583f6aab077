//! The file operations of exec-server: requests, staging, listing, walking, copying, searching, editing, watching.
//!
//! | module | purpose |
//! |---|---|
//! | `request` | [`FsRequest`]: the operations, decoded from params and executed; re-exported here |
//! | `options`, `reply`, `error` | options and results of the operations |
//! | [`destination`] | local destination of a copy from a server: a directory, a pipe or a device |
//! | [`byte_fields`] | paths as bytes, which need not be UTF-8, and serde helpers for them |
//! | [`regular_file`] | reads small files that may be replaced by a pipe or a device at any time |
//! | [`search`] | searches of trees by content and by name |
//! | [`tree_watch`] | reports changes of trees |
//! | [`UnnamedFile`] | a file that disappears when it is closed |
//! | [`MissingWatch`] | reports when a missing path appears |
//! | `linux` | the implementation on Linux |
//! | `unsupported` | entry points of other platforms, which return errors |

pub mod byte_fields;
pub mod destination;
pub mod regular_file;
pub mod search;
pub mod tree_watch;

mod error;
mod missing_watch;
mod options;
mod reply;
mod request;

#[cfg(all(target_os = "linux", not(exec_server_unsupported)))]
mod linux;
#[cfg(all(target_os = "linux", not(exec_server_unsupported)))]
use linux as platform;
#[cfg(not(all(target_os = "linux", not(exec_server_unsupported))))]
mod unsupported;
#[cfg(not(all(target_os = "linux", not(exec_server_unsupported))))]
use unsupported as platform;

pub use missing_watch::{MissingWatch, NotWatched};
pub use platform::UnnamedFile;
pub use request::*;
