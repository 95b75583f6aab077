//! Payloads of `fs/search`, `fs/find`, `fs/nextPage` and `fs/cancelSearch`.

#![allow(
    missing_docs,
    reason = "wire members repeat their JSON names; docs state only extra facts"
)]

use serde::{Deserialize, Serialize};

use super::{Bytes64, FsWalkError};
use crate::path_uri::PathUri;

fs_params! {
    /// Params of `fs/search`.
    pub struct FsSearchParams {
        /// A directory, or one file.
        pub path: PathUri,
        /// A regular expression, matched within lines.
        pub pattern: String,
        pub sandbox: shared,
        pub user: shared,
        /// Whether the pattern is plain text.
        #[serde(default)]
        pub literal: bool,
        #[serde(default)]
        pub case: CaseMode,
        /// Whether a match must begin and end at word boundaries.
        #[serde(default)]
        pub word: bool,
        /// Lines of context before each match.
        #[serde(default)]
        pub before: u64,
        /// Lines of context after each match.
        #[serde(default)]
        pub after: u64,
        /// Whether only the names of files with a match are wanted.
        #[serde(default)]
        pub files_only: bool,
        #[serde(default)]
        pub binary: BinaryFiles,
        /// The files to search.
        #[serde(default)]
        pub filter: FsSearchFilter,
        #[serde(default)]
        pub limits: FsSearchLimits,
        /// The client's key of a search with more than one page; `fs/nextPage` and `fs/cancelSearch` name it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub search_id: Option<String>,
    }

    /// Params of `fs/find`.
    pub struct FsFindParams {
        /// The directory to search; it is not part of the result.
        pub path: PathUri,
        /// Globs of names at any depth, or, with a slash, of paths below `path`; an entry matches one of them. None: everything.
        #[serde(default)]
        pub patterns: Vec<String>,
        pub sandbox: shared,
        pub user: shared,
        #[serde(default)]
        pub case: CaseMode,
        /// Kinds of entries; none means all.
        #[serde(default)]
        pub kinds: Vec<FoundKind>,
        /// Whether entries have size and modification time.
        #[serde(default)]
        pub detailed: bool,
        /// The entries to look at.
        #[serde(default)]
        pub filter: FsSearchFilter,
        #[serde(default)]
        pub limits: FsSearchLimits,
        /// The client's key of a search with more than one page; `fs/nextPage` and `fs/cancelSearch` name it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub search_id: Option<String>,
    }
}

/// Which entries of a tree a search looks at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct FsSearchFilter {
    /// Globs as in `.gitignore`: only what they match; with `!` in front, not what they match.
    pub globs: Vec<String>,
    /// Names of file types such as `rust` or `py`; only files of these types.
    pub types: Vec<String>,
    /// Whether names that begin with a dot are included.
    pub hidden: bool,
    /// Whether `.gitignore`, `.ignore` and git's exclude files are honoured; default true.
    pub ignore: bool,
    /// Levels below `path`; 1 is the directory itself.
    pub max_depth: Option<u64>,
    /// Larger files are not searched.
    pub max_file_bytes: Option<u64>,
}

impl Default for FsSearchFilter {
    fn default() -> Self {
        Self {
            globs: Vec::new(),
            types: Vec::new(),
            hidden: false,
            ignore: true,
            max_depth: None,
            max_file_bytes: None,
        }
    }
}

/// Bounds of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsSearchLimits {
    /// Matches or entries of the whole search; without a `searchId` at most one page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_matches: Option<u64>,
    /// Bytes of text and paths of the whole search; without a `searchId` at most one page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// The search ends after this time, also between two pages; default one minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Matches or entries of one page; default 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page_size: Option<u64>,
}

/// How letters are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum CaseMode {
    /// Upper and lower case differ.
    #[default]
    Sensitive,
    /// Upper and lower case are the same.
    Insensitive,
    /// Insensitive unless the pattern has an upper-case letter.
    Smart,
}

/// What happens with files that contain NUL bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum BinaryFiles {
    /// They are counted.
    #[default]
    Skip,
    /// They are searched, and those with a match are named.
    Report,
    /// They are searched as text.
    Text,
}

/// The kind of an entry that `fs/find` found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum FoundKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A pipe, a socket or a device.
    Other,
}

/// Result of `fs/search`, and of `fs/nextPage` for such a search.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsSearchPage {
    pub matches: Vec<FsSearchMatch>,
    /// Files with a match, if only their names were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PathUri>,
    /// Binary files with a match, if asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub binary_matches: Vec<PathUri>,
    #[serde(flatten)]
    pub state: FsSearchState,
}

/// Result of `fs/find`, and of `fs/nextPage` for such a search.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsFindPage {
    pub entries: Vec<FsFoundEntry>,
    #[serde(flatten)]
    pub state: FsSearchState,
}

/// How far a search has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsSearchState {
    /// Whether this is the last page.
    pub done: bool,
    /// Why the result is not complete; set on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<Incomplete>,
    /// Files searched, or entries looked at, so far.
    pub visited: u64,
    /// Binary files that were skipped so far.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub binary_files: u64,
    /// Paths that could not be read, on this page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FsWalkError>,
    /// How many paths could not be read so far; only the first ones are in `errors`.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub error_count: u64,
}

/// The limit that ended a search early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Incomplete {
    /// The number of matches or entries.
    MaxMatches,
    /// The bytes of text and paths.
    MaxBytes,
    /// The time.
    Timeout,
}

/// A line with a match.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsSearchMatch {
    pub path: PathUri,
    /// From 1.
    pub line: u64,
    /// Where the line begins in the file, in bytes.
    pub offset: u64,
    /// The line without its end; bytes that are not UTF-8 are replaced.
    pub text: String,
    /// The exact line, if it is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_base64: Option<Bytes64>,
    /// Where the matches begin and end in the exact line, in bytes.
    pub ranges: Vec<(u64, u64)>,
    /// Bytes of the line before `text`, if the line is long and only a part of it is here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_before: Option<u64>,
    /// Bytes of the line after `text`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut_after: Option<u64>,
    /// The lines before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub before: Vec<String>,
    /// The lines after it, up to the next match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
}

/// An entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsFoundEntry {
    pub path: PathUri,
    pub kind: FoundKind,
    /// The size in bytes, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Unix milliseconds, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub modified_at_ms: Option<i64>,
}

/// Params of `fs/nextPage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsNextPageParams {
    pub search_id: String,
}

/// Result of `fs/nextPage`: a page of the method that began the search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum FsNextPageResponse {
    Search(FsSearchPage),
    Find(FsFindPage),
}

/// Params of `fs/cancelSearch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FsCancelSearchParams {
    pub search_id: String,
}

/// Result of `fs/cancelSearch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FsCancelSearchResponse {
    /// Whether there was such a search.
    pub cancelled: bool,
}
