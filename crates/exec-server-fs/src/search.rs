//! Requests of `fs/search` and `fs/find`; the same on every platform.
//!
//! A [`SearchSpec`] starts a [`Search`], whose threads run ahead of its reader by a bounded queue. A sandboxed file
//! worker runs the same search under its own confinement.

use std::path::PathBuf;
use std::time::Duration;

use exec_server_protocol::fs::{BinaryFiles, CaseMode, FoundKind, FsSearchFilter};
use serde::{Deserialize, Serialize};

use crate::byte_fields;

pub use crate::platform::search::{LineMatcher, Search};

/// A pattern for lines.
#[derive(Debug, Clone, Copy)]
pub struct LinePattern<'a> {
    /// A regular expression, or plain text.
    pub pattern: &'a str,
    /// Whether the pattern is plain text.
    pub literal: bool,
    /// How letters are compared.
    pub case: CaseMode,
    /// Whether a match must be a whole word.
    pub word: bool,
}

/// A search of one tree.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SearchSpec {
    /// A directory, or one file for a search of content.
    #[serde(with = "byte_fields::path")]
    pub root: PathBuf,
    /// What is searched for.
    pub query: Query,
    /// Which entries are looked at.
    pub filter: FsSearchFilter,
    /// Bounds of the search.
    pub limits: SearchLimits,
}

/// What is searched for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Query {
    /// Lines.
    Content(ContentQuery),
    /// Names.
    Names(NameQuery),
}

/// Lines that match a pattern.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ContentQuery {
    /// A regular expression, or plain text.
    pub pattern: String,
    /// Whether the pattern is plain text.
    pub literal: bool,
    /// How letters are compared.
    pub case: CaseMode,
    /// Whether a match must be a whole word.
    pub word: bool,
    /// Lines of context before a match.
    pub before: usize,
    /// Lines of context after a match.
    pub after: usize,
    /// Whether only the names of matching files are wanted.
    pub files_only: bool,
    /// What happens with binary files.
    pub binary: BinaryFiles,
}

/// Names that match one of several globs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NameQuery {
    /// Globs; none matches everything.
    pub patterns: Vec<String>,
    /// How letters are compared.
    pub case: CaseMode,
    /// Kinds of entries; none means all.
    pub kinds: Vec<FoundKind>,
    /// Whether entries have size and modification time.
    pub detailed: bool,
}

/// Bounds of a search.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SearchLimits {
    /// Matches or entries of the whole search.
    pub max_matches: u64,
    /// Bytes of text and paths of the whole search.
    pub max_bytes: u64,
    /// Matches or entries of one page.
    pub page_size: usize,
    /// Time from the start to the last page.
    pub timeout: Duration,
}

/// One page of a search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageText {
    /// The page as JSON.
    pub text: String,
    /// Whether it is the last one.
    pub done: bool,
}
