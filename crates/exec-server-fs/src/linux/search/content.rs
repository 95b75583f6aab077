//! Searches the content of files for a pattern.

use std::borrow::Cow;
use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use exec_server_protocol::fs::{BinaryFiles, CaseMode, FsSearchMatch};
use exec_server_protocol::limits::{MAX_MATCH_TEXT_BYTES, MAX_SEARCHED_LINE_BYTES};
use exec_server_protocol::path_uri::PathUri;
use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkMatch,
};
use memchr::memchr;
use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, OFlags, SeekFrom, fstat};

use super::super::entries::kind_in;
use super::open;
use super::queue::{Batch, Item, Publish, Shared};
use super::walk::{Directory, Visitor, Walk, is_gone, path_uri};
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
}

/// A file up to this size is read at once. The searcher judges whether a file is binary by the same number of bytes.
const SMALL_FILE: usize = 64 * 1024;

impl ContentSearch {
    pub fn new(query: &ContentQuery) -> Result<Self, FsError> {
        let ContentQuery { pattern, literal, case, word, .. } = query;
        let pattern = LinePattern { pattern, literal: *literal, case: *case, word: *word };
        let LineMatcher(matcher) = LineMatcher::new(pattern)?;
        Ok(Self { matcher, query: query.clone() })
    }

    /// Runs the walk to its end on several threads.
    pub fn run(&self, walk: &Walk, shared: &Shared) {
        walk.run(shared, || Worker::new(self, Some(walk), shared));
    }

    /// Searches one file, which may be a link.
    pub fn run_on_file(&self, path: &Path, shared: &Shared) {
        let mut worker = Worker::new(self, None, shared);
        let file = FilePath { directory: path, name: OsStr::new("") };
        worker.search_file(file, || open::open_file(path), None);
        worker.flush();
    }

    fn searcher(&self, binary: BinaryDetection) -> Searcher {
        SearcherBuilder::new()
            .line_number(true)
            .before_context(self.query.before)
            .after_context(self.query.after)
            .binary_detection(binary)
            .heap_limit(Some(MAX_SEARCHED_LINE_BYTES))
            .build()
    }
}

/// The path of a file, put together only if it is needed.
#[derive(Clone, Copy)]
struct FilePath<'a> {
    directory: &'a Path,
    /// Empty if the directory is the file itself.
    name: &'a OsStr,
}

impl<'a> FilePath<'a> {
    fn path(self) -> Cow<'a, Path> {
        match self.name.is_empty() {
            true => Cow::Borrowed(self.directory),
            false => Cow::Owned(self.directory.join(self.name)),
        }
    }

    fn uri(self) -> PathUri {
        path_uri(&self.path())
    }
}

/// The state of one thread.
struct Worker<'a> {
    search: &'a ContentSearch,
    /// None for a single file.
    walk: Option<&'a Walk>,
    shared: &'a Shared,
    matcher: RegexMatcher,
    /// For files that are read piece by piece.
    searcher: Searcher,
    /// For files in `content`, which is known to have no zero byte.
    whole: Searcher,
    content: Vec<u8>,
    batch: Batch,
    /// Files that are not counted in `shared` yet.
    visited: u64,
    /// Small files since the thread last looked at the clock.
    unpublished: usize,
}

/// Small files after which a thread looks at the clock; a large one counts as several.
const PUBLISHED_AFTER: usize = 32;

impl Visitor for Worker<'_> {
    const IS_COSTLY: bool = true;

    fn visit(&mut self, directory: &Directory, name: &CStr, kind: FileType) -> bool {
        // Pipes and devices are never opened.
        if kind != FileType::RegularFile {
            return true;
        }
        let walk = self.walk.expect("only a walk visits entries");
        let path =
            FilePath { directory: &directory.path, name: OsStr::from_bytes(name.to_bytes()) };
        let open = || walk.open(directory, name, OFlags::empty());
        self.search_file(path, open, walk.filter().max_file_bytes);
        match self.unpublished >= PUBLISHED_AFTER || self.batch.is_full() {
            true => self.publish(Publish::Due),
            false => true,
        }
    }

    fn flush(&mut self) -> bool {
        self.publish(Publish::All)
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.publish(Publish::All);
    }
}

impl<'a> Worker<'a> {
    fn new(search: &'a ContentSearch, walk: Option<&'a Walk>, shared: &'a Shared) -> Self {
        let binary = match search.query.binary {
            BinaryFiles::Skip => BinaryDetection::quit(0),
            BinaryFiles::Report => BinaryDetection::convert(0),
            BinaryFiles::Text => BinaryDetection::none(),
        };
        Self {
            search,
            walk,
            shared,
            matcher: search.matcher.clone(),
            searcher: search.searcher(binary),
            whole: search.searcher(BinaryDetection::none()),
            content: Vec::new(),
            batch: Batch::default(),
            visited: 0,
            unpublished: 0,
        }
    }

    fn publish(&mut self, what: Publish) -> bool {
        self.unpublished = 0;
        self.shared.visited.fetch_add(std::mem::take(&mut self.visited), Ordering::Relaxed);
        self.shared.publish(&mut self.batch, what)
    }

    fn search_file(
        &mut self,
        path: FilePath,
        open: impl FnOnce() -> io::Result<OwnedFd>,
        max_bytes: Option<u64>,
    ) {
        match open().and_then(|file| self.search_opened(path, file, max_bytes)) {
            Ok(()) => {}
            // The search is over, or the file was removed or replaced by a link since its directory was listed.
            Err(_) if self.shared.is_over() => {}
            Err(error) if is_gone(&error) => {}
            Err(error) => self.shared.note_error(&path.path(), error.to_string()),
        }
    }

    fn search_opened(
        &mut self,
        path: FilePath,
        file: OwnedFd,
        max_bytes: Option<u64>,
    ) -> io::Result<()> {
        let stat = fstat(&file)?;
        let size = stat.st_size.cast_unsigned();
        if kind_in(&stat) != FileType::RegularFile || max_bytes.is_some_and(|most| size > most) {
            return Ok(());
        }
        self.visited += 1;
        let is_small = self.read_small(&file, size)?;
        self.unpublished += if is_small { 1 } else { PUBLISHED_AFTER };
        let (search, shared) = (self.search, self.shared);
        let Self { matcher, searcher, whole, content, batch, .. } = self;
        let mut sink = FileSink {
            path,
            uri: None,
            query: &search.query,
            matcher: &*matcher,
            shared,
            first: batch.items.len(),
            batch,
            before: Vec::new(),
            open: None,
            has_match: false,
            is_binary: false,
        };
        let searched = if !is_small {
            let reader = Checked { file: File::from(file), shared };
            searcher.search_reader(&*matcher, reader, &mut sink)
        } else if BYTE_ORDER_MARKS.iter().any(|mark| content.starts_with(mark)) {
            searcher.search_reader(&*matcher, content.as_slice(), &mut sink)
        } else {
            sink.is_binary = search.query.binary != BinaryFiles::Text && has_zero(content);
            match (sink.is_binary, search.query.binary) {
                (true, BinaryFiles::Skip) => Ok(()),
                (true, _) => {
                    end_lines_at_zeros(content);
                    whole.search_slice(&*matcher, content, &mut sink)
                }
                // Without a candidate no line matches, and most files have none.
                (false, _) => match matcher.find_candidate_line(content) {
                    Ok(None) => Ok(()),
                    _ => whole.search_slice(&*matcher, content, &mut sink),
                },
            }
        };
        sink.finish();
        searched.map_err(|error| match error.kind() {
            io::ErrorKind::Other if error.to_string().contains("allocation limit") => {
                let limit = MAX_SEARCHED_LINE_BYTES >> 20;
                io::Error::other(format!("a line of the file is longer than {limit} MiB"))
            }
            _ => error,
        })
    }

    /// Reads a small file as a whole; false if it is not small.
    fn read_small(&mut self, file: &OwnedFd, size: u64) -> io::Result<bool> {
        // Files of the kernel have no size, and may have any length.
        if size == 0 || size > SMALL_FILE as u64 {
            return Ok(false);
        }
        let size = usize::try_from(size).expect("it is small");
        self.content.clear();
        self.content.reserve(SMALL_FILE + 1);
        while self.content.len() <= SMALL_FILE {
            let read = rustix::io::read(file, spare_capacity(&mut self.content));
            match read {
                Ok(0) => return Ok(true),
                // The rest of a file is read at once, so this is the end of one that does not grow.
                Ok(_) if self.content.len() == size => return Ok(true),
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        // It has grown since; it is read again from its start.
        rustix::fs::seek(file, SeekFrom::Start(0))?;
        Ok(false)
    }
}

/// Text with such a start is decoded.
const BYTE_ORDER_MARKS: [&[u8]; 3] = [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"];

fn has_zero(content: &[u8]) -> bool {
    memchr(0, content).is_some()
}

/// In a binary file a zero ends a line, as the searcher has it in large files.
fn end_lines_at_zeros(content: &mut [u8]) {
    content.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'\n');
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
    path: FilePath<'a>,
    /// The same as a URI, once there is a match.
    uri: Option<PathUri>,
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
    fn uri(&mut self) -> PathUri {
        self.uri.get_or_insert_with(|| self.path.uri()).clone()
    }

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
                    let uri = self.uri();
                    self.batch.push(Item::Binary(uri));
                }
            }
            _ if self.query.files_only && self.has_match => {
                let uri = self.uri();
                self.batch.push(Item::File(uri));
            }
            _ => {}
        }
    }

    fn found(&mut self, line: &[u8], number: u64, offset: u64) -> io::Result<FsSearchMatch> {
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
        let is_exact = matches!(text, Cow::Borrowed(_));
        let cut = |bytes: usize| (bytes > 0).then_some(bytes as u64);
        Ok(FsSearchMatch {
            path: self.uri(),
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::filter::Filter;
    use super::super::tests::spec;
    use super::*;
    use crate::search::Query;

    #[test]
    fn entries_that_were_replaced_since_their_directory_was_read_are_left_out() {
        let tree = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("nowhere", tree.path().join("link")).unwrap();
        let pipe = tree.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, mode, 0).unwrap();
        let mut ends = File::options().read(true).write(true).open(&pipe).unwrap();
        ends.write_all(b"needle\n").unwrap();
        let spec = spec(tree.path(), "needle", 10, 10);
        let Query::Content(query) = &spec.query else { unreachable!() };
        let walk = Walk::new(tree.path(), Filter::new(&spec, |_, _| {}).unwrap()).unwrap();
        let search = ContentSearch::new(query).unwrap();
        let shared = Shared::new(std::time::Instant::now() + spec.limits.timeout);
        let mut worker = Worker::new(&search, Some(&walk), &shared);
        for name in [c"link", c"pipe", c"missing"] {
            assert!(worker.visit(walk.root(), name, FileType::RegularFile));
        }
        assert!(worker.flush());
        assert_eq!(shared.take_errors().1, 0);
        assert_eq!(shared.visited.load(Ordering::Relaxed), 0);
        // What was in the pipe is still there.
        let mut content = [0; 7];
        ends.read_exact(&mut content).unwrap();
        assert_eq!(&content, b"needle\n");
    }
}
