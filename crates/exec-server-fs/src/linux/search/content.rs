//! Searches the content of files for a pattern.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use exec_server_protocol::fs::{BinaryFiles, CaseMode, FsSearchMatch};
use exec_server_protocol::limits::{MAX_MATCH_TEXT_BYTES, MAX_SEARCHED_LINE_BYTES};
use exec_server_protocol::path_uri::PathUri;
use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkMatch,
};
use ignore::{DirEntry, WalkParallel, WalkState};

use super::queue::{Batch, Item, Shared};
use super::walk::{self, path_uri};
use crate::request::FsError;
use crate::search::{ContentQuery, LinePattern};

/// Memory of a compiled pattern; larger ones are refused.
const MAX_PATTERN_MEMORY: usize = 10 * 1024 * 1024;
/// Matches within one line that are located.
const MAX_RANGES: usize = 100;
/// Bytes of a long line that are shown before its first match.
const SHOWN_BEFORE: usize = 256;

/// Finds lines by a pattern, in linear time.
#[derive(Debug)]
pub struct LineMatcher(RegexMatcher);

impl LineMatcher {
    /// Compiles the pattern.
    pub fn new(pattern: LinePattern) -> Result<Self, FsError> {
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(pattern.case == CaseMode::Insensitive)
            .case_smart(pattern.case == CaseMode::Smart)
            .word(pattern.word)
            .fixed_strings(pattern.literal)
            .line_terminator(Some(b'\n'))
            .size_limit(MAX_PATTERN_MEMORY)
            .dfa_size_limit(MAX_PATTERN_MEMORY)
            .build(pattern.pattern)
            .map_err(|error| FsError::Pattern(error.to_string()))?;
        Ok(Self(matcher))
    }

    /// Whether a line without its line feed matches.
    pub fn is_match(&self, line: &[u8]) -> bool {
        self.0.is_match(line).unwrap_or(false)
    }
}

/// A search of content that is ready to run.
pub struct ContentSearch {
    matcher: RegexMatcher,
    query: ContentQuery,
    root: PathBuf,
    /// None if the root is a file.
    directory: Option<OwnedFd>,
}

impl ContentSearch {
    pub fn new(query: &ContentQuery, root: &Path, is_directory: bool) -> Result<Self, FsError> {
        let ContentQuery { pattern, literal, case, word, .. } = query;
        let pattern = LinePattern { pattern, literal: *literal, case: *case, word: *word };
        let LineMatcher(matcher) = LineMatcher::new(pattern)?;
        let directory = if is_directory { Some(walk::open_root(root)?) } else { None };
        Ok(Self { matcher, query: query.clone(), root: root.to_owned(), directory })
    }

    /// Runs the walk to its end on several threads.
    pub fn run(&self, walk: WalkParallel, shared: &Shared) {
        walk.run(|| {
            let mut worker = Worker {
                search: self,
                shared,
                matcher: self.matcher.clone(),
                searcher: self.searcher(),
                batch: Batch::default(),
            };
            Box::new(move |entry| worker.visit(entry))
        });
    }

    fn searcher(&self) -> Searcher {
        let binary = match self.query.binary {
            BinaryFiles::Skip => BinaryDetection::quit(0),
            BinaryFiles::Report => BinaryDetection::convert(0),
            BinaryFiles::Text => BinaryDetection::none(),
        };
        SearcherBuilder::new()
            .line_number(true)
            .before_context(self.query.before)
            .after_context(self.query.after)
            .binary_detection(binary)
            .heap_limit(Some(MAX_SEARCHED_LINE_BYTES))
            .build()
    }

    fn open(&self, path: &Path) -> io::Result<OwnedFd> {
        match &self.directory {
            Some(directory) => walk::open_below(directory, super::below(path, &self.root)),
            None => walk::open_file(path),
        }
    }
}

/// The state of one thread.
struct Worker<'a> {
    search: &'a ContentSearch,
    shared: &'a Shared,
    matcher: RegexMatcher,
    searcher: Searcher,
    batch: Batch,
}

impl Worker<'_> {
    fn visit(&mut self, entry: Result<DirEntry, ignore::Error>) -> WalkState {
        if self.shared.is_over() {
            return WalkState::Quit;
        }
        match entry {
            Err(error) => walk::note(self.shared, &self.search.root, &error),
            Ok(entry) => {
                let is_root = entry.depth() == 0 && self.search.directory.is_none();
                // Pipes and devices are never opened; the root may be a link to a file.
                if is_root || entry.file_type().is_some_and(|kind| kind.is_file()) {
                    self.search_file(entry.path());
                }
            }
        }
        // Batches of all threads together stay small, so each file ends one that has something.
        if self.shared.push(&mut self.batch) { WalkState::Continue } else { WalkState::Quit }
    }

    fn search_file(&mut self, path: &Path) {
        match self.try_search_file(path) {
            Ok(()) => {}
            // The search is over, or the file was removed since its directory was listed.
            Err(_) if self.shared.is_over() => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => self.shared.note_error(path, error.to_string()),
        }
    }

    fn try_search_file(&mut self, path: &Path) -> io::Result<()> {
        let file = File::from(self.search.open(path)?);
        if !file.metadata()?.is_file() {
            return Ok(());
        }
        self.shared.visited.fetch_add(1, Ordering::Relaxed);
        let mut sink = FileSink {
            path: path_uri(path),
            query: &self.search.query,
            matcher: &self.matcher,
            shared: self.shared,
            first: self.batch.items.len(),
            batch: &mut self.batch,
            before: Vec::new(),
            open: None,
            has_match: false,
            is_binary: false,
        };
        let reader = Checked { file, shared: self.shared };
        let searched = self.searcher.search_reader(&self.matcher, reader, &mut sink);
        sink.finish();
        searched.map_err(|error| match error.kind() {
            io::ErrorKind::Other if error.to_string().contains("allocation limit") => {
                let limit = MAX_SEARCHED_LINE_BYTES >> 20;
                io::Error::other(format!("a line of the file is longer than {limit} MiB"))
            }
            _ => error,
        })
    }
}

/// Ends the reading of a large file when the search is over.
struct Checked<'a> {
    file: File,
    shared: &'a Shared,
}

impl Read for Checked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.shared.is_over() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.file.read(buffer)
    }
}

/// Collects the matches of one file.
struct FileSink<'a> {
    path: PathUri,
    query: &'a ContentQuery,
    matcher: &'a RegexMatcher,
    shared: &'a Shared,
    batch: &'a mut Batch,
    /// The place of the first item of this file in the batch.
    first: usize,
    /// Context for the next match.
    before: Vec<String>,
    /// The last match, which still gets context.
    open: Option<Box<FsSearchMatch>>,
    has_match: bool,
    is_binary: bool,
}

impl FileSink<'_> {
    fn close_match(&mut self) {
        if let Some(found) = self.open.take() {
            self.batch.push(Item::Match(found));
        }
    }

    /// Ends the file.
    fn finish(mut self) {
        self.close_match();
        match self.query.binary {
            BinaryFiles::Skip if self.is_binary => {
                self.batch.items.truncate(self.first);
                self.shared.binary.fetch_add(1, Ordering::Relaxed);
            }
            BinaryFiles::Report if self.is_binary => {
                self.batch.items.truncate(self.first);
                if self.has_match {
                    self.batch.push(Item::Binary(self.path));
                }
            }
            _ if self.query.files_only && self.has_match => self.batch.push(Item::File(self.path)),
            _ => {}
        }
    }

    fn found(&self, line: &[u8], number: u64, offset: u64) -> io::Result<FsSearchMatch> {
        let line = without_end(line);
        let mut ranges = Vec::new();
        self.matcher
            .find_iter(line, |found| {
                ranges.push((found.start() as u64, found.end() as u64));
                ranges.len() < MAX_RANGES
            })
            .map_err(io::Error::other)?;
        let first = ranges.first().map_or(0, |(start, _)| usize::try_from(*start).unwrap_or(0));
        let start = match line.len() > MAX_MATCH_TEXT_BYTES {
            true => first.saturating_sub(SHOWN_BEFORE),
            false => 0,
        };
        let end = line.len().min(start + MAX_MATCH_TEXT_BYTES);
        let shown = &line[start..end];
        let text = String::from_utf8_lossy(shown);
        let is_exact = matches!(text, std::borrow::Cow::Borrowed(_));
        let cut = |bytes: usize| (bytes > 0).then_some(bytes as u64);
        Ok(FsSearchMatch {
            path: self.path.clone(),
            line: number,
            offset,
            text_base64: (!is_exact).then(|| shown.to_vec().into()),
            text: text.into_owned(),
            ranges,
            cut_before: cut(start),
            cut_after: cut(line.len() - end),
            before: Vec::new(),
            after: Vec::new(),
        })
    }
}

impl Sink for FileSink<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        self.has_match = true;
        if self.query.files_only || (self.is_binary && self.query.binary == BinaryFiles::Report) {
            return Ok(false);
        }
        self.close_match();
        if self.batch.is_full() {
            self.first = 0;
            if !self.shared.push(self.batch) {
                return Ok(false);
            }
        }
        let number = found.line_number().unwrap_or(0);
        let mut item = self.found(found.bytes(), number, found.absolute_byte_offset())?;
        item.before = std::mem::take(&mut self.before);
        self.open = Some(Box::new(item));
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        let line = without_end(context.bytes());
        let line = &line[..line.len().min(MAX_MATCH_TEXT_BYTES)];
        let text = String::from_utf8_lossy(line).into_owned();
        match (context.kind(), &mut self.open) {
            (SinkContextKind::After, Some(found)) => found.after.push(text),
            (SinkContextKind::Before, _) => self.before.push(text),
            _ => {}
        }
        Ok(true)
    }

    fn binary_data(&mut self, _: &Searcher, _: u64) -> io::Result<bool> {
        self.is_binary = true;
        Ok(self.query.binary != BinaryFiles::Skip)
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}
