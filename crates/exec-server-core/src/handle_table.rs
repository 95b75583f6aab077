//! File handles of one connection: the client chooses the name, which is reserved before the file is opened.
//!
//! ```text
//! free ─reserve▶ opening ─opened▶ open ─close▶ free
//!                   └─failed▶ free
//! ```
//!
//! Invariant: calls for one name run in order of arrival. While a name is being opened, every call for it waits,
//! including a close and the next open. The owner must run the calls returned by `handle_opened` or `handle_failed`
//! before it passes a later call to the table.

use std::collections::HashMap;

/// Handles of one connection, and the calls that wait for one.
#[derive(Debug)]
pub struct HandleTable<T, W> {
    handles: HashMap<String, State<T, W>>,
    limit: usize,
}

#[derive(Debug)]
enum State<T, W> {
    Opening { waiting: Vec<W> },
    Open(T),
}

/// Why a name cannot be reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReserved {
    /// The name is in use.
    Exists,
    /// The limit of handles is reached.
    Full,
}

impl<T, W> HandleTable<T, W> {
    /// A table for `limit` handles, open or being opened.
    pub fn new(limit: usize) -> Self {
        Self { handles: HashMap::new(), limit }
    }

    /// Returns a call that can run now; a call for a handle that is being opened waits.
    pub fn admit(&mut self, id: &str, call: W) -> Option<W> {
        match self.handles.get_mut(id) {
            Some(State::Opening { waiting }) => {
                waiting.push(call);
                None
            }
            Some(State::Open(_)) | None => Some(call),
        }
    }

    /// Reserves a name before its file is opened; `handle_opened` or `handle_failed` must follow.
    pub fn reserve(&mut self, id: &str) -> Result<(), NotReserved> {
        if self.handles.contains_key(id) {
            return Err(NotReserved::Exists);
        }
        if self.handles.len() >= self.limit {
            return Err(NotReserved::Full);
        }
        self.handles.insert(id.to_owned(), State::Opening { waiting: Vec::new() });
        Ok(())
    }

    /// The file of a reserved name is open; returns the calls that waited for it, in order.
    pub fn handle_opened(&mut self, id: &str, value: T) -> Vec<W> {
        self.handles.insert(id.to_owned(), State::Open(value)).map_or_else(Vec::new, State::waiting)
    }

    /// The file of a reserved name could not be opened; returns the calls that waited for it, in order.
    pub fn handle_failed(&mut self, id: &str) -> Vec<W> {
        self.handles.remove(id).map_or_else(Vec::new, State::waiting)
    }

    /// The open handle with this name.
    pub fn find(&self, id: &str) -> Option<&T> {
        match self.handles.get(id)? {
            State::Open(value) => Some(value),
            State::Opening { .. } => None,
        }
    }

    /// Frees the name of an open handle and returns the handle.
    pub fn close(&mut self, id: &str) -> Option<T> {
        self.find(id)?;
        match self.handles.remove(id)? {
            State::Open(value) => Some(value),
            State::Opening { .. } => None,
        }
    }
}

impl<T, W> State<T, W> {
    fn waiting(self) -> Vec<W> {
        match self {
            Self::Opening { waiting } => waiting,
            Self::Open(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Table = HandleTable<char, &'static str>;

    #[test]
    fn a_name_is_taken_from_the_moment_it_is_reserved() {
        let mut table = Table::new(8);
        table.reserve("h").unwrap();
        assert_eq!(table.reserve("h"), Err(NotReserved::Exists));
        assert_eq!(table.find("h"), None);
        assert!(table.handle_opened("h", 'a').is_empty());
        assert_eq!(table.reserve("h"), Err(NotReserved::Exists));
        assert_eq!(table.find("h"), Some(&'a'));
        assert_eq!(table.close("h"), Some('a'));
        assert_eq!(table.close("h"), None);
        table.reserve("h").unwrap();
    }

    #[test]
    fn all_calls_wait_for_the_open_in_their_order() {
        let mut table = Table::new(8);
        assert_eq!(table.admit("h", "open"), Some("open"));
        table.reserve("h").unwrap();
        for call in ["write", "close", "open again"] {
            assert_eq!(table.admit("h", call), None);
        }
        assert_eq!(table.admit("other", "read"), Some("read"));
        assert_eq!(table.handle_opened("h", 'a'), ["write", "close", "open again"]);
        assert_eq!(table.admit("h", "write"), Some("write"));
    }

    #[test]
    fn an_early_close_frees_nothing() {
        let mut table = Table::new(8);
        table.reserve("h").unwrap();
        assert_eq!(table.close("h"), None);
        assert_eq!(table.reserve("h"), Err(NotReserved::Exists));
    }

    #[test]
    fn waiting_calls_are_returned_after_a_failed_open_and_the_name_is_free() {
        let mut table = Table::new(8);
        table.reserve("h").unwrap();
        assert_eq!(table.admit("h", "read"), None);
        assert_eq!(table.handle_failed("h"), ["read"]);
        assert_eq!(table.find("h"), None);
        table.reserve("h").unwrap();
    }

    #[test]
    fn handles_that_are_being_opened_count() {
        let mut table = Table::new(2);
        table.reserve("a").unwrap();
        table.reserve("b").unwrap();
        assert_eq!(table.reserve("c"), Err(NotReserved::Full));
        table.handle_opened("a", 'a');
        assert_eq!(table.reserve("c"), Err(NotReserved::Full));
        table.handle_failed("b");
        table.reserve("c").unwrap();
        table.close("a");
        table.reserve("d").unwrap();
        assert_eq!(table.reserve("e"), Err(NotReserved::Full));
    }
}
