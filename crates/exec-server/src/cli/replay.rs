//! Removes terminal queries from replayed output.
//!
//! The program that sent the query no longer waits, so the reply of the terminal would become input of the process. A
//! sequence that begins in replayed output counts as replayed. Where the process gets the local keys, modes with reports
//! that the replay has left on are set at its end.

use std::io::{self, IsTerminal};

use bytes::Bytes;
use exec_server_core::terminal_queries::QueryFilter;

use super::output::Stream;

/// Filters for both output streams.
pub struct Replay {
    /// None for a stream that is not a terminal, which answers no queries.
    out: Option<QueryFilter>,
    err: Option<QueryFilter>,
    reports: Reports,
}

/// Where the reports of a terminal go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reports {
    /// To the process, which has asked for them.
    Passed,
    /// To the local shell, so that none must be requested.
    Unwanted,
}

/// When output happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// New output.
    Live,
    /// Output from before the attach, or from a connection loss.
    Replayed,
    /// The end of that.
    LastReplayed,
}

impl Replay {
    /// Filters for stdout and stderr of this client.
    pub fn new(reports: Reports) -> Self {
        Self::with(io::stdout().is_terminal(), io::stderr().is_terminal(), reports)
    }

    fn with(out: bool, err: bool, reports: Reports) -> Self {
        Self { out: out.then(QueryFilter::default), err: err.then(QueryFilter::default), reports }
    }

    /// Returns the bytes to print.
    pub fn show(&mut self, age: Age, stream: Stream, bytes: Bytes) -> Bytes {
        let filter = match stream {
            Stream::Out => &mut self.out,
            Stream::Err => &mut self.err,
        };
        let Some(filter) = filter else { return bytes };
        let mut shown = Vec::new();
        let mut rest = bytes;
        if age != Age::Live {
            filter.filter(&rest.split_off(0), &mut shown);
        }
        if age == Age::Replayed || (age == Age::LastReplayed && filter.is_within_sequence()) {
            return shown.into();
        }
        while filter.is_within_sequence() && !rest.is_empty() {
            filter.filter(&rest.split_to(1), &mut shown);
        }
        if !filter.is_within_sequence() && self.reports == Reports::Passed {
            filter.set_modes(&mut shown);
        }
        if shown.is_empty() {
            return rest;
        }
        shown.extend_from_slice(&rest);
        shown.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_left_out_of_a_replay_only() {
        let mut replay = Replay::with(true, false, Reports::Passed);
        assert_eq!(show(&mut replay, Age::Replayed, "a\x1b[6nb"), "ab");
        assert_eq!(show(&mut replay, Age::Replayed, "c\x1b[6"), "c");
        assert_eq!(show(&mut replay, Age::Live, "nd\x1b[6n"), "d\x1b[6n");
        assert_eq!(show(&mut replay, Age::Live, "\x1b[6n"), "\x1b[6n");
        assert_eq!(show(&mut replay, Age::Replayed, "\x1b[6ne"), "e");
        let err = replay.show(Age::Replayed, Stream::Err, Bytes::from_static(b"\x1b[6n"));
        assert_eq!(err, &b"\x1b[6n"[..], "no terminal answers");
    }

    #[test]
    fn modes_with_reports_are_set_at_the_end_of_a_replay() {
        let mut replay = Replay::with(true, false, Reports::Passed);
        assert_eq!(show(&mut replay, Age::Replayed, "a\x1b[?1004hb"), "ab");
        assert_eq!(show(&mut replay, Age::LastReplayed, "c"), "c\x1b[?1004h");
        assert_eq!(show(&mut replay, Age::Live, "d\x1b[?1004h"), "d\x1b[?1004h");
        assert_eq!(show(&mut replay, Age::Replayed, "\x1b[?2048h"), "");
        assert_eq!(show(&mut replay, Age::LastReplayed, "e\x1b[3"), "e");
        assert_eq!(show(&mut replay, Age::Live, "1mf"), "\x1b[31m\x1b[?2048hf");
        assert_eq!(show(&mut replay, Age::Replayed, "\x1b[?2048h"), "");
        assert_eq!(show(&mut replay, Age::Live, "g"), "\x1b[?2048hg");
        let mut replay = Replay::with(true, false, Reports::Unwanted);
        assert_eq!(show(&mut replay, Age::LastReplayed, "a\x1b[?1004hb"), "ab");
        assert_eq!(show(&mut replay, Age::Live, "c"), "c");
    }

    fn show(replay: &mut Replay, age: Age, text: &str) -> String {
        let shown = replay.show(age, Stream::Out, Bytes::copy_from_slice(text.as_bytes()));
        String::from_utf8(shown.to_vec()).unwrap()
    }
}
