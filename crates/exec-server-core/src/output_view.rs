//! Selects a part of the output of a process: from an offset, its head or tail, or lines that match.
//!
//! Pure: the source loads the segments, the caller brings the matcher.

use exec_server_protocol::process::OutputStream;

/// One piece of output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputRecord {
    /// Number of the event.
    pub seq: u64,
    /// When it was received.
    pub at_ms: u64,
    /// Where it came from.
    pub stream: OutputStream,
    /// Position of its first byte in the output of all streams.
    pub offset: u64,
    /// The output.
    pub bytes: Vec<u8>,
}

impl OutputRecord {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// What the first record of a segment begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentStart {
    /// Number of the first record.
    pub seq: u64,
    /// Offset of the first record.
    pub offset: u64,
}

/// Output in segments, oldest first.
pub trait OutputSource {
    /// Why a segment cannot be read.
    type Error;

    /// The beginnings of the segments.
    fn segments(&self) -> &[SegmentStart];

    /// The records of a segment that are still kept.
    fn load(&mut self, index: usize) -> Result<Vec<OutputRecord>, Self::Error>;
}

/// The part that is wanted.
pub enum Wanted<'a> {
    /// Records after this number.
    AfterSeq(u64),
    /// From this offset on.
    Offset(u64),
    /// The first bytes.
    HeadBytes(u64),
    /// The first lines.
    HeadLines(u64),
    /// The last lines.
    TailLines(u64),
    /// Lines from this offset on for which the matcher is true.
    Lines(u64, &'a dyn Fn(&[u8]) -> bool),
}

/// Bounds of one answer; it has at least one record if there is one.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    /// Bytes of output.
    pub bytes: u64,
    /// Records.
    pub records: usize,
}

/// A longer line is searched in pieces.
const MAX_LINE_BYTES: usize = 64 << 10;

/// The selected output, and the offset at which a further read continues.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Selected {
    /// Selected pieces; those of a search are lines.
    pub records: Vec<OutputRecord>,
    /// Where to continue.
    pub next_offset: u64,
}

/// Selects at most a page.
pub fn select<S: OutputSource>(
    source: &mut S,
    wanted: Wanted,
    page: Page,
) -> Result<Selected, S::Error> {
    match wanted {
        Wanted::AfterSeq(after) => {
            let first = source.segments().partition_point(|start| start.seq <= after);
            collect(source, first.saturating_sub(1), page, |record| record.seq > after, Cut::none())
        }
        Wanted::Offset(offset) => from_offset(source, page, Cut { from: offset, until: u64::MAX }),
        Wanted::HeadBytes(bytes) => {
            let first = source.segments().first().map_or(0, |start| start.offset);
            let until = first.saturating_add(bytes);
            from_offset(source, page, Cut { from: first, until })
        }
        Wanted::HeadLines(lines) => {
            let until = end_of_lines(source, lines)?;
            from_offset(source, page, Cut { from: 0, until })
        }
        Wanted::TailLines(lines) => {
            let from = start_of_last_lines(source, lines)?;
            from_offset(source, page, Cut { from, until: u64::MAX })
        }
        Wanted::Lines(offset, matches) => search(source, offset, matches, page),
    }
}

/// The range of offsets to return.
#[derive(Clone, Copy)]
struct Cut {
    from: u64,
    until: u64,
}

impl Cut {
    fn none() -> Self {
        Self { from: 0, until: u64::MAX }
    }

    /// Cuts a record to the range.
    fn apply(self, record: &mut OutputRecord) {
        let len = record.bytes.len() as u64;
        let keep = self.until.saturating_sub(record.offset).min(len);
        record.bytes.truncate(keep as usize);
        let skip = self.from.saturating_sub(record.offset).min(keep);
        record.bytes.drain(..skip as usize);
        record.offset += skip;
    }
}

/// The segment that has this offset.
fn segment_at(segments: &[SegmentStart], offset: u64) -> usize {
    segments.partition_point(|start| start.offset <= offset).saturating_sub(1)
}

fn from_offset<S: OutputSource>(
    source: &mut S,
    page: Page,
    cut: Cut,
) -> Result<Selected, S::Error> {
    let first = segment_at(source.segments(), cut.from);
    let is_in = |record: &OutputRecord| record.end() > cut.from && record.offset < cut.until;
    let mut selected = collect(source, first, page, is_in, cut)?;
    selected.next_offset = selected.next_offset.max(cut.from);
    Ok(selected)
}

fn collect<S: OutputSource>(
    source: &mut S,
    first: usize,
    page: Page,
    is_wanted: impl Fn(&OutputRecord) -> bool,
    cut: Cut,
) -> Result<Selected, S::Error> {
    let mut selected = Selected::default();
    let mut bytes = 0;
    for index in first..source.segments().len() {
        for mut record in source.load(index)? {
            if record.offset >= cut.until {
                return Ok(selected);
            }
            if !is_wanted(&record) {
                continue;
            }
            cut.apply(&mut record);
            let len = record.bytes.len() as u64;
            let is_full = bytes + len > page.bytes || selected.records.len() >= page.records;
            if is_full && !selected.records.is_empty() {
                return Ok(selected);
            }
            bytes += len;
            selected.next_offset = record.end();
            selected.records.push(record);
        }
    }
    Ok(selected)
}

/// The offset after the first lines.
fn end_of_lines<S: OutputSource>(source: &mut S, lines: u64) -> Result<u64, S::Error> {
    let mut left = lines;
    if left == 0 {
        return Ok(0);
    }
    for index in 0..source.segments().len() {
        for record in source.load(index)? {
            for (place, _) in record.bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n') {
                left -= 1;
                if left == 0 {
                    return Ok(record.offset + place as u64 + 1);
                }
            }
        }
    }
    Ok(u64::MAX)
}

/// The offset at which the last lines begin; an unfinished line counts.
fn start_of_last_lines<S: OutputSource>(source: &mut S, lines: u64) -> Result<u64, S::Error> {
    let mut left = lines;
    let mut is_last_byte = true;
    let mut first = u64::MAX;
    for index in (0..source.segments().len()).rev() {
        for record in source.load(index)?.iter().rev() {
            if left == 0 {
                return Ok(record.end());
            }
            first = record.offset;
            for (place, byte) in record.bytes.iter().enumerate().rev() {
                // A line feed at the very end starts no further line.
                if *byte == b'\n' && !is_last_byte {
                    left -= 1;
                    if left == 0 {
                        return Ok(record.offset + place as u64 + 1);
                    }
                }
                is_last_byte = false;
            }
        }
    }
    Ok(first)
}

/// A line of one stream that has not ended yet.
#[derive(Default)]
struct OpenLine(Option<OutputRecord>);

fn search<S: OutputSource>(
    source: &mut S,
    offset: u64,
    matches: &dyn Fn(&[u8]) -> bool,
    page: Page,
) -> Result<Selected, S::Error> {
    let mut selected = Selected { records: Vec::new(), next_offset: offset };
    let mut bytes = 0;
    let mut open = [OpenLine::default(), OpenLine::default()];
    let cut = Cut { from: offset, until: u64::MAX };
    let mut take = |selected: &mut Selected, line: OutputRecord| {
        if matches(line.bytes.strip_suffix(b"\n").unwrap_or(&line.bytes)) {
            bytes += line.bytes.len() as u64;
            selected.records.push(line);
        }
        bytes >= page.bytes || selected.records.len() >= page.records
    };
    for index in segment_at(source.segments(), offset)..source.segments().len() {
        for mut record in source.load(index)? {
            if record.end() <= offset {
                continue;
            }
            cut.apply(&mut record);
            let end = record.end();
            let line = &mut open[usize::from(record.stream == OutputStream::Stderr)];
            let mut is_full = false;
            for piece in record.bytes.split_inclusive(|byte| *byte == b'\n') {
                let place = piece.as_ptr() as usize - record.bytes.as_ptr() as usize;
                let whole = line.0.get_or_insert_with(|| OutputRecord {
                    offset: record.offset + place as u64,
                    bytes: Vec::new(),
                    ..record
                });
                whole.bytes.extend_from_slice(piece);
                if piece.ends_with(b"\n") || whole.bytes.len() >= MAX_LINE_BYTES {
                    is_full |= take(&mut selected, line.0.take().expect("it was inserted above"));
                }
            }
            let unfinished = open.iter().filter_map(|line| Some(line.0.as_ref()?.offset)).min();
            selected.next_offset = unfinished.unwrap_or(end);
            if is_full {
                return Ok(selected);
            }
        }
    }
    // The last lines are searched although they may continue.
    for line in open.into_iter().filter_map(|line| line.0) {
        let _ = take(&mut selected, line);
    }
    Ok(selected)
}

#[cfg(test)]
mod tests;
