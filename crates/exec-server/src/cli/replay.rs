//! Removes terminal queries from replayed output.
//!
//! The program that sent the query no longer waits, so the reply of the terminal would become input of the process. A
//! sequence that begins in replayed output counts as replayed.

use std::io::{self, IsTerminal};

use bytes::Bytes;
use exec_server_core::terminal_queries::QueryFilter;

use super::output::Stream;

/// Filters for both output streams.
pub struct Replay {
    /// None for a stream that is not a terminal, which answers no queries.
    out: Option<QueryFilter>,
    err: Option<QueryFilter>,
}

/// When output happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// New output.
    Live,
    /// Output from before the attach, or from a connection loss.
    Replayed,
}

impl Replay {
    /// Filters for stdout and stderr of this client.
    pub fn new() -> Self {
        Self::with(io::stdout().is_terminal(), io::stderr().is_terminal())
    }

    fn with(out: bool, err: bool) -> Self {
        Self { out: out.then(QueryFilter::default), err: err.then(QueryFilter::default) }
    }

    /// Returns the bytes to print.
    pub fn show(&mut self, age: Age, stream: Stream, bytes: Bytes) -> Bytes {
        let filter = match stream {
            Stream::Out => &mut self.out,
            Stream::Err => &mut self.err,
        };
        let Some(filter) = filter else { return bytes };
        let mut shown = Vec::new();
        if age == Age::Replayed {
            filter.filter(&bytes, &mut shown);
            return shown.into();
        }
        if !filter.is_within_sequence() {
            return bytes;
        }
        let mut rest = bytes;
        while filter.is_within_sequence() && !rest.is_empty() {
            filter.filter(&rest.split_to(1), &mut shown);
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
        let mut replay = Replay::with(true, false);
        assert_eq!(show(&mut replay, Age::Replayed, "a\x1b[6nb"), "ab");
        assert_eq!(show(&mut replay, Age::Replayed, "c\x1b[6"), "c");
        assert_eq!(show(&mut replay, Age::Live, "nd\x1b[6n"), "d\x1b[6n");
        assert_eq!(show(&mut replay, Age::Live, "\x1b[6n"), "\x1b[6n");
        assert_eq!(show(&mut replay, Age::Replayed, "\x1b[6ne"), "e");
        let err = replay.show(Age::Replayed, Stream::Err, Bytes::from_static(b"\x1b[6n"));
        assert_eq!(err, &b"\x1b[6n"[..], "no terminal answers");
    }

    fn show(replay: &mut Replay, age: Age, text: &str) -> String {
        let shown = replay.show(age, Stream::Out, Bytes::copy_from_slice(text.as_bytes()));
        String::from_utf8(shown.to_vec()).unwrap()
    }
}
