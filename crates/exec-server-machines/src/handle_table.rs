//! The file handles of one connection: named by the client, reserved before anything is opened.
//!
//! ```text
//! free ─reserve▶ opening ─opened▶ open ─close▶ free
//!                   └─close or failed▶ free (what was opened for it is handed back)
//! ```
//!
//! Calls for a handle that is being opened wait for it. A close does not, unless there are calls to wait for.

use std::collections::HashMap;

/// The handles of one connection, and the calls that wait for one.
#[derive(Debug)]
pub struct HandleTable<T, W> {
    handles: HashMap<String, State<T, W>>,
    /// Opens that are on their way, also those whose handle was closed meanwhile.
    opening: usize,
    open: usize,
    limit: usize,
    next_ticket: u64,
}

#[derive(Debug)]
enum State<T, W> {
    Opening { ticket: Ticket, waiting: Vec<W> },
    Open(T),
}

/// Tells one open from a later one of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// Why a handle is not to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReserved {
    /// The name is taken.
    Exists,
    /// There are as many as there may be.
    Full,
}

/// What a name stands for at the moment.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'a, T, W> {
    /// It is open.
    Open(&'a T),
    /// It is being opened; this is where to wait.
    Opening(&'a mut Vec<W>),
    /// It is free.
    Nothing,
}

/// What a close did.
#[derive(Debug, PartialEq, Eq)]
pub enum Closed<'a, T, W> {
    /// The name is free; this is what it stood for, if it was open.
    Now(Option<T>),
    /// There are calls to wait for first; this is where to wait.
    Later(&'a mut Vec<W>),
}

impl<T, W> HandleTable<T, W> {
    /// Room for `limit` handles.
    pub fn new(limit: usize) -> Self {
        Self { handles: HashMap::new(), opening: 0, open: 0, limit, next_ticket: 0 }
    }

    /// Takes a name before its file is opened; the owner must follow up with what came of it.
    pub fn reserve(&mut self, id: &str) -> Result<Ticket, NotReserved> {
        if self.handles.contains_key(id) {
            return Err(NotReserved::Exists);
        }
        if self.opening + self.open >= self.limit {
            return Err(NotReserved::Full);
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.opening += 1;
        self.handles.insert(id.to_owned(), State::Opening { ticket, waiting: Vec::new() });
        Ok(ticket)
    }

    /// The file is open: gives back the calls that waited for it, or the file if the handle was closed meanwhile.
    pub fn handle_opened(&mut self, id: &str, ticket: Ticket, value: T) -> Result<Vec<W>, T> {
        self.opening -= 1;
        match self.handles.get_mut(id) {
            Some(state) if state.is_for(ticket) => {
                self.open += 1;
                Ok(std::mem::replace(state, State::Open(value)).into_waiting())
            }
            _ => Err(value),
        }
    }

    /// The file could not be opened: gives back the calls that waited for it.
    pub fn handle_failed(&mut self, id: &str, ticket: Ticket) -> Vec<W> {
        self.opening -= 1;
        match self.handles.get(id) {
            Some(state) if state.is_for(ticket) => {
                self.handles.remove(id).map(State::into_waiting).unwrap_or_default()
            }
            _ => Vec::new(),
        }
    }

    /// What a name stands for.
    pub fn find(&mut self, id: &str) -> Found<'_, T, W> {
        match self.handles.get_mut(id) {
            Some(State::Open(value)) => Found::Open(value),
            Some(State::Opening { waiting, .. }) => Found::Opening(waiting),
            None => Found::Nothing,
        }
    }

    /// Frees a name.
    pub fn close(&mut self, id: &str) -> Closed<'_, T, W> {
        let has_calls = |state: &State<T, W>| matches!(state, State::Opening { waiting, .. } if !waiting.is_empty());
        if self.handles.get(id).is_some_and(has_calls) {
            let Found::Opening(waiting) = self.find(id) else { unreachable!("was just seen") };
            return Closed::Later(waiting);
        }
        match self.handles.remove(id) {
            Some(State::Open(value)) => {
                self.open -= 1;
                Closed::Now(Some(value))
            }
            _ => Closed::Now(None),
        }
    }
}

impl<T, W> State<T, W> {
    fn is_for(&self, wanted: Ticket) -> bool {
        matches!(self, Self::Opening { ticket, .. } if *ticket == wanted)
    }

    fn into_waiting(self) -> Vec<W> {
        match self {
            Self::Opening { waiting, .. } => waiting,
            Self::Open(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Table = HandleTable<char, &'static str>;

    fn is_open(table: &mut Table, id: &str) -> Option<char> {
        match table.find(id) {
            Found::Open(value) => Some(*value),
            _ => None,
        }
    }

    #[test]
    fn a_name_is_taken_from_the_moment_it_is_reserved() {
        let mut table = Table::new(8);
        let ticket = table.reserve("h").unwrap();
        assert_eq!(table.reserve("h"), Err(NotReserved::Exists));
        assert_eq!(is_open(&mut table, "h"), None);
        assert_eq!(table.handle_opened("h", ticket, 'a'), Ok(vec![]));
        assert_eq!(table.reserve("h"), Err(NotReserved::Exists));
        assert_eq!(is_open(&mut table, "h"), Some('a'));
        assert_eq!(table.close("h"), Closed::Now(Some('a')));
        assert_eq!(table.close("h"), Closed::Now(None));
        table.reserve("h").unwrap();
    }

    #[test]
    fn a_close_while_opening_wins_and_the_name_is_free_at_once() {
        let mut table = Table::new(8);
        let first = table.reserve("h").unwrap();
        assert_eq!(table.close("h"), Closed::Now(None));
        let second = table.reserve("h").unwrap();
        assert_eq!(table.handle_opened("h", first, 'a'), Err('a'));
        assert_eq!(is_open(&mut table, "h"), None);
        assert_eq!(table.handle_opened("h", second, 'b'), Ok(vec![]));
        assert_eq!(is_open(&mut table, "h"), Some('b'));
    }

    #[test]
    fn calls_wait_for_the_open_and_a_close_waits_for_the_calls() {
        let mut table = Table::new(8);
        let ticket = table.reserve("h").unwrap();
        let Found::Opening(waiting) = table.find("h") else { panic!("it is being opened") };
        waiting.push("read");
        let Closed::Later(waiting) = table.close("h") else { panic!("a call waits") };
        waiting.push("close");
        assert_eq!(table.handle_opened("h", ticket, 'a'), Ok(vec!["read", "close"]));
        assert_eq!(table.close("h"), Closed::Now(Some('a')));
    }

    #[test]
    fn calls_that_wait_in_vain_come_back() {
        let mut table = Table::new(8);
        let ticket = table.reserve("h").unwrap();
        let Found::Opening(waiting) = table.find("h") else { panic!("it is being opened") };
        waiting.push("read");
        assert_eq!(table.handle_failed("h", ticket), ["read"]);
        assert_eq!(table.find("h"), Found::Nothing);
    }

    #[test]
    fn opens_on_their_way_count_even_if_they_were_closed() {
        let mut table = Table::new(2);
        let first = table.reserve("a").unwrap();
        let second = table.reserve("b").unwrap();
        table.close("a");
        assert_eq!(table.reserve("c"), Err(NotReserved::Full));
        table.handle_failed("a", first);
        table.reserve("c").unwrap();
        table.handle_failed("b", second);
        table.reserve("b").unwrap();
        assert_eq!(table.reserve("d"), Err(NotReserved::Full));
    }

    #[test]
    fn a_late_failure_does_not_free_a_name_that_was_taken_again() {
        let mut table = Table::new(8);
        let first = table.reserve("h").unwrap();
        table.close("h");
        table.reserve("h").unwrap();
        table.handle_failed("h", first);
        assert_eq!(table.reserve("h"), Err(NotReserved::Exists));
    }
}
