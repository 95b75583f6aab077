//! Searches of trees; patterns, globs and ignore files are those of ripgrep, by its libraries.
//!
//! ```text
//! walker threads ─batches▶ Queue (bounded) ─▶ Pager ─page▶ reader
//! ```
//!
//! Owner: the reader. Dropping the [`Search`] ends its threads; a full queue makes them wait.

mod content;
mod filter;
mod ignore_files;
mod names;
mod open;
mod pages;
mod queue;
mod walk;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use crate::error::Nature;
use crate::request::FsError;
use crate::search::{PageText, Query, SearchSpec};
pub use content::LineMatcher;
use filter::Filter;
use pages::Pager;
use queue::Shared;
use walk::Walk;
pub use walk::path_uri;

/// A running search.
#[derive(Debug)]
pub struct Search {
    shared: Arc<Shared>,
    pager: Mutex<Pager>,
}

impl Search {
    /// Checks the request and starts the threads of the search; may block on a disk.
    pub fn start(spec: SearchSpec) -> Result<Self, FsError> {
        let metadata = std::fs::metadata(&spec.root)?;
        let is_directory = metadata.is_dir();
        let shared = Arc::new(Shared::new(Instant::now() + spec.limits.timeout));
        let note = |path: &Path, error: std::io::Error| shared.note_error(path, error.to_string());
        let filter = Filter::new(&spec, note)?;
        let run: Box<dyn FnOnce() + Send> = match &spec.query {
            Query::Content(query) => {
                let search = content::ContentSearch::new(query)?;
                let (shared, root) = (shared.clone(), spec.root.clone());
                if is_directory {
                    let walk = Walk::new(&spec.root, filter)?;
                    Box::new(move || search.run(&walk, &shared))
                } else if metadata.is_file() {
                    Box::new(move || search.run_on_file(&root, &shared))
                } else {
                    return Err(FsError::NotAFile(root, Nature::Special));
                }
            }
            Query::Names(query) => {
                if !is_directory {
                    return Err(std::io::Error::from_raw_os_error(libc::ENOTDIR).into());
                }
                let search = names::NameSearch::new(query, &spec.root)?;
                let walk = Walk::new(&spec.root, filter)?;
                let shared = shared.clone();
                Box::new(move || search.run(&walk, &shared))
            }
        };
        let finished = Finish(shared.clone());
        std::thread::Builder::new().name("search".to_owned()).spawn(move || {
            let _finished = finished;
            run();
        })?;
        Ok(Self { shared, pager: Mutex::new(Pager::new(&spec)) })
    }

    /// The next page; waits until it is full, something has been found for a while, or the search has ended.
    pub fn next_page(&self) -> PageText {
        self.pager.lock().expect("no holder panics").next_page(&self.shared)
    }

    /// Ends the search: a page that is waited for comes at once and is the last one.
    pub fn cancel(&self) {
        self.shared.cancel();
    }
}

impl Drop for Search {
    fn drop(&mut self) {
        self.shared.cancel();
    }
}

/// Marks the queue as finished, also if the walk panics.
struct Finish(Arc<Shared>);

impl Drop for Finish {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// The path below the root of a search.
fn below<'a>(path: &'a Path, root: &Path) -> &'a Path {
    path.strip_prefix(root).unwrap_or(path)
}

#[cfg(test)]
mod tests;
