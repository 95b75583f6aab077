//! Reads a spool, segment by segment, while its process writes on.

use std::io;
use std::sync::Arc;

use exec_server_core::output_view::{OutputRecord, OutputSource, SegmentStart};
use exec_server_core::spool_index::{RecordHeader, Segment, SpoolIndex};
use tokio::sync::oneshot;

use super::writer::SharedFile;

/// The content of a spool at one moment. Segments that are evicted later are missing.
#[derive(Debug)]
pub struct SpoolReader {
    file: Arc<SharedFile>,
    segments: Vec<Segment>,
    starts: Vec<SegmentStart>,
    end: u64,
    size: u64,
    flushed: Option<oneshot::Receiver<()>>,
    has_lost: bool,
}

impl SpoolReader {
    pub(super) fn new(
        file: Arc<SharedFile>,
        index: &SpoolIndex,
        flushed: oneshot::Receiver<()>,
    ) -> Self {
        Self {
            file,
            segments: index.segments().iter().copied().collect(),
            starts: index.segments().iter().map(|segment| segment.start).collect(),
            end: index.place().position,
            size: index.size(),
            flushed: Some(flushed),
            has_lost: false,
        }
    }

    /// Waits until everything was written; must come before the first segment is loaded.
    pub async fn flushed(&mut self) {
        if let Some(flushed) = self.flushed.take() {
            // The writer ends only with the server.
            let _ = flushed.await;
        }
    }

    /// Whether a segment was evicted while it was read.
    pub fn has_lost(&self) -> bool {
        self.has_lost
    }
}

impl OutputSource for SpoolReader {
    type Error = io::Error;

    fn segments(&self) -> &[SegmentStart] {
        &self.starts
    }

    fn load(&mut self, index: usize) -> io::Result<Vec<OutputRecord>> {
        let Segment { position, start, .. } = self.segments[index];
        let end = self.segments.get(index + 1).map_or(self.end, |next| next.position);
        // What a failed write has left out is not there.
        let end = match self.file.failure() {
            Some(_) => end.min(self.file.written().position),
            None => end,
        };
        let len = usize::try_from(end.saturating_sub(position)).expect("a segment is small");
        match self.file.read(position, len, self.size)? {
            Some(bytes) => Ok(parse(&bytes, start.offset)),
            None => {
                self.has_lost = true;
                Ok(Vec::new())
            }
        }
    }
}

fn parse(mut bytes: &[u8], mut offset: u64) -> Vec<OutputRecord> {
    let mut records = Vec::new();
    while let Some(RecordHeader { seq, at_ms, len, stream }) = RecordHeader::decode(bytes) {
        let rest = &bytes[RecordHeader::BYTES..];
        let Some((content, rest)) = rest.split_at_checked(len as usize) else { break };
        records.push(OutputRecord { seq, at_ms, stream, offset, bytes: content.to_vec() });
        offset += u64::from(len);
        bytes = rest;
    }
    records
}
