//! Reads that need the spool, and views of the output: answered on blocking threads.

use exec_server_core::output_view::{
    OutputRecord, OutputSource, Page, SegmentStart, Selected, Wanted, select,
};
use exec_server_fs::search::{LineMatcher, LinePattern};
use exec_server_protocol::base64::encoded_len;
use exec_server_protocol::limits::{MAX_OUTPUT_CHUNK_BYTES, MAX_PATTERN_BYTES};
use exec_server_protocol::process::{
    OutputChunk, OutputExtent, OutputGap, OutputView, ProcessReadParams, ProcessReadResponse,
};

use super::ProcessTask;
use crate::errors::RequestError;
use crate::reply::Reply;
use crate::spool::SpoolReader;

/// Bytes of an answer without `maxBytes`, and its upper bound.
const DEFAULT_PAGE_BYTES: u64 = 1 << 20;
const MAX_PAGE_BYTES: u64 = 8 << 20;
/// A chunk costs far more JSON than its bytes if a process writes one byte at a time.
const MAX_PAGE_CHUNKS: usize = 10_000;
/// JSON bytes around a chunk with its time and offset.
const AROUND_CHUNK_BYTES: usize = 170;

/// What is read.
enum Query {
    AfterSeq {
        after: u64,
        /// The output that is in memory.
        in_memory: OutputGap,
    },
    View(OutputView),
}

/// Where the output is.
enum Source {
    Spool(SpoolReader),
    Log(LogSource),
}

impl ProcessTask {
    /// Whether output after `after` is in the spool and no longer in memory.
    pub(super) fn is_in_spool(&mut self, after: u64) -> bool {
        let Some(spool) = &mut self.spool else { return false };
        self.log.has_gap(after) && spool.end().last_seq > after
    }

    /// What is kept of a process with a spool.
    pub(super) fn extent_of_spool(&self) -> Option<OutputExtent> {
        self.spool.as_ref().map(|_| self.extent())
    }

    fn extent(&self) -> OutputExtent {
        let in_memory = self.log.first_offset();
        let in_spool = self.spool.as_ref().and_then(|spool| Some(spool.first()?.offset));
        let end_offset = self.log.end_offset();
        OutputExtent {
            first_offset: in_spool.map_or(in_memory, |first| first.min(in_memory)),
            end_offset,
            next_offset: end_offset,
            spool_failure: self.spool.as_ref().and_then(|spool| spool.failure()).map(str::to_owned),
        }
    }

    /// Answers a read after a number from the spool.
    pub(super) fn answer_from_spool(
        &mut self,
        params: &ProcessReadParams,
        after: u64,
        reply: Reply,
    ) {
        // It shows what the client has; what it gets is confirmed by its next read.
        self.note_read(&reply, after, after + 1);
        let Some(spool) = &mut self.spool else { return };
        let source = Source::Spool(spool.reader());
        let mut state = self.log.state();
        let spool = self.spool.as_ref().expect("it was there above");
        let first = spool.first().filter(|_| spool.evicted_through() > after);
        state.gap = first.map(|first| gap(first.offset, first.seq));
        let in_memory = gap(self.log.first_offset(), self.log.first_seq());
        self.answer_later(params, Query::AfterSeq { after, in_memory }, source, state, reply);
    }

    /// Answers a read of a part of the output.
    pub(super) fn answer_view(&mut self, params: ProcessReadParams, reply: Reply) {
        let Some(view) = params.view.clone() else { return };
        if params.after_seq.is_some() || params.until.is_some() || params.wait_ms.unwrap_or(0) > 0 {
            let text = "`view` does not go with afterSeq, until or waitMs".to_owned();
            return reply.fail(&RequestError::InvalidParams(text));
        }
        if let OutputView::Search(search) = &view
            && search.pattern.len() > MAX_PATTERN_BYTES
        {
            let text = format!("`pattern` is longer than {MAX_PATTERN_BYTES} bytes");
            return reply.fail(&RequestError::InvalidParams(text));
        }
        let view = match view {
            OutputView::TailBytes(bytes) => {
                OutputView::Offset(self.log.end_offset().saturating_sub(bytes))
            }
            view => view,
        };
        let source = self.source_of(&view);
        let state = self.log.state();
        self.answer_later(&params, Query::View(view), source, state, reply);
    }

    /// The spool has everything until it has failed; then the latest output is in memory only.
    fn source_of(&mut self, view: &OutputView) -> Source {
        if let Some(spool) = &mut self.spool {
            let end = spool.end().offset;
            let is_whole = end == self.log.end_offset();
            let is_within = match view {
                OutputView::Offset(offset) => *offset < end,
                OutputView::Search(search) => search.offset < end,
                OutputView::HeadBytes(_) | OutputView::HeadLines(_) => end > 0,
                OutputView::TailBytes(_) | OutputView::TailLines(_) => false,
            };
            if is_whole || is_within {
                return Source::Spool(spool.reader());
            }
        }
        Source::Log(LogSource::new(self.log.records()))
    }

    fn answer_later(
        &mut self,
        params: &ProcessReadParams,
        query: Query,
        mut source: Source,
        mut state: ProcessReadResponse,
        mut reply: Reply,
    ) {
        let page_bytes = params.max_bytes.unwrap_or(DEFAULT_PAGE_BYTES).clamp(1, MAX_PAGE_BYTES);
        let page = Page { bytes: page_bytes, records: MAX_PAGE_CHUNKS };
        let shown = usize::try_from(page_bytes).unwrap_or(usize::MAX).max(MAX_OUTPUT_CHUNK_BYTES);
        let room = encoded_len(shown) + MAX_PAGE_CHUNKS * AROUND_CHUNK_BYTES;
        state.extent = Some(self.extent());
        let timestamps = params.timestamps;
        self.views.spawn(async move {
            if let Err(error) = reply.reserve(room).await {
                return reply.fail(&error);
            }
            if let Source::Spool(reader) = &mut source {
                reader.flushed().await;
            }
            let read = move || query.answer(source, page, state, timestamps);
            match tokio::task::spawn_blocking(read).await {
                Ok(Ok(answer)) => reply.ok_sized(&answer, room),
                Ok(Err(error)) => reply.fail(&error),
                // The runtime stops, and the dropped reply says so.
                Err(_) => {}
            }
        });
    }
}

impl Query {
    fn answer(
        self,
        source: Source,
        page: Page,
        mut state: ProcessReadResponse,
        timestamps: bool,
    ) -> Result<ProcessReadResponse, RequestError> {
        let matcher = match &self {
            Self::View(OutputView::Search(search)) => Some(LineMatcher::new(LinePattern {
                pattern: &search.pattern,
                literal: search.literal,
                case: search.case,
                word: false,
            })?),
            _ => None,
        };
        let is_match = |line: &[u8]| matcher.as_ref().is_some_and(|it| it.is_match(line));
        let wanted = match &self {
            Self::AfterSeq { after, .. } => Wanted::AfterSeq(*after),
            Self::View(OutputView::Offset(offset)) => Wanted::Offset(*offset),
            Self::View(OutputView::HeadBytes(bytes)) => Wanted::HeadBytes(*bytes),
            Self::View(OutputView::HeadLines(lines)) => Wanted::HeadLines(*lines),
            Self::View(OutputView::TailBytes(_)) => Wanted::Offset(u64::MAX),
            Self::View(OutputView::TailLines(lines)) => Wanted::TailLines(*lines),
            Self::View(OutputView::Search(search)) => Wanted::Lines(search.offset, &is_match),
        };
        let (selected, has_lost) = match source {
            Source::Log(mut log) => (select(&mut log, wanted, page).unwrap_or_default(), false),
            Source::Spool(mut reader) => {
                let selected = select(&mut reader, wanted, page);
                let selected = selected.map_err(|error| {
                    RequestError::SpoolUnavailable(format!("could not read it: {error}"))
                })?;
                (selected, reader.has_lost())
            }
        };
        let Selected { records, next_offset } = selected;
        if let Self::AfterSeq { in_memory, .. } = self {
            match (records.first(), records.last()) {
                // An answer from the spool covers a page; the rest comes with the next read.
                (Some(first), Some(last)) => {
                    state.next_seq = last.seq + 1;
                    if has_lost {
                        state.gap = Some(gap(first.offset, first.seq));
                    }
                }
                // Its last write has failed meanwhile.
                _ => (state.next_seq, state.gap) = (in_memory.first_seq, Some(in_memory)),
            }
        }
        if let Some(extent) = &mut state.extent {
            extent.next_offset = next_offset.max(extent.first_offset).min(extent.end_offset);
        }
        let is_view = matches!(self, Self::View(_));
        state.chunks = records.into_iter().map(|it| chunk(it, timestamps, is_view)).collect();
        Ok(state)
    }
}

fn gap(evicted_bytes: u64, first_seq: u64) -> OutputGap {
    OutputGap { evicted_bytes, first_seq }
}

fn chunk(record: OutputRecord, has_time: bool, has_offset: bool) -> OutputChunk {
    OutputChunk {
        seq: record.seq,
        stream: record.stream,
        chunk: record.bytes.into(),
        at_ms: has_time.then_some(record.at_ms),
        offset: has_offset.then_some(record.offset),
    }
}

/// A copy of the output in memory, as one segment.
struct LogSource {
    starts: Vec<SegmentStart>,
    records: Vec<OutputRecord>,
}

impl LogSource {
    fn new(records: Vec<OutputRecord>) -> Self {
        let first = records.first();
        let start = first.map(|first| SegmentStart { seq: first.seq, offset: first.offset });
        Self { starts: start.into_iter().collect(), records }
    }
}

impl OutputSource for LogSource {
    type Error = std::convert::Infallible;

    fn segments(&self) -> &[SegmentStart] {
        &self.starts
    }

    fn load(&mut self, _index: usize) -> Result<Vec<OutputRecord>, Self::Error> {
        Ok(self.records.clone())
    }
}
