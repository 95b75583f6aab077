//! The file handles of one connection: named by the client, reserved before anything is opened.
//!
//! ```text
//! free ─reserve▶ opening ─opened▶ open ─close▶ free
//!                   └─close or failed▶ free (what was opened for it is handed back)
//! ```

use std::collections::HashMap;

/// The handles of one connection.
#[derive(Debug)]
pub struct HandleTable<T> {
    handles: HashMap<String, State<T>>,
    /// Opens that are on their way, also those whose handle was closed meanwhile.
    opening: usize,
    open: usize,
    limit: usize,
    next_ticket: u64,
}

#[derive(Debug)]
enum State<T> {
    Opening(Ticket),
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

impl<T> HandleTable<T> {
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
        self.handles.insert(id.to_owned(), State::Opening(ticket));
        Ok(ticket)
    }

    /// The file is open; hands it back if the handle was closed meanwhile.
    pub fn handle_opened(&mut self, id: &str, ticket: Ticket, value: T) -> Result<(), T> {
        self.opening -= 1;
        match self.handles.get_mut(id) {
            Some(state @ State::Opening(_)) if state.is_for(ticket) => {
                *state = State::Open(value);
                self.open += 1;
                Ok(())
            }
            _ => Err(value),
        }
    }

    /// The file could not be opened.
    pub fn handle_failed(&mut self, id: &str, ticket: Ticket) {
        self.opening -= 1;
        if self.handles.get(id).is_some_and(|state| state.is_for(ticket)) {
            self.handles.remove(id);
        }
    }

    /// What a name stands for, once it is open.
    pub fn get(&self, id: &str) -> Option<&T> {
        match self.handles.get(id)? {
            State::Open(value) => Some(value),
            State::Opening(_) => None,
        }
    }

    /// Frees a name; what it stood for is handed back.
    pub fn close(&mut self, id: &str) -> Option<T> {
        match self.handles.remove(id)? {
            State::Open(value) => {
                self.open -= 1;
                Some(value)
            }
            State::Opening(_) => None,
        }
    }
}

impl<T> State<T> {
    fn is_for(&self, ticket: Ticket) -> bool {
        matches!(self, Self::Opening(mine) if *mine == ticket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_from_the_moment_it_is_reserved() {
        let mut table = HandleTable::new(8);
        let ticket = table.reserve("h").unwrap();
        assert_eq!(table.reserve("h"), Err(NotReserved::Exists));
        assert_eq!(table.get("h"), None);
        assert_eq!(table.handle_opened("h", ticket, 'a'), Ok(()));
        assert_eq!(table.reserve("h"), Err(NotReserved::Exists));
        assert_eq!(table.get("h"), Some(&'a'));
        assert_eq!((table.close("h"), table.close("h")), (Some('a'), None));
        table.reserve("h").unwrap();
    }

    #[test]
    fn a_close_while_opening_wins_and_the_name_is_free_at_once() {
        let mut table = HandleTable::new(8);
        let first = table.reserve("h").unwrap();
        assert_eq!(table.close("h"), None);
        let second = table.reserve("h").unwrap();
        assert_eq!(table.handle_opened("h", first, 'a'), Err('a'));
        assert_eq!(table.get("h"), None);
        assert_eq!(table.handle_opened("h", second, 'b'), Ok(()));
        assert_eq!(table.get("h"), Some(&'b'));
    }

    #[test]
    fn opens_on_their_way_count_even_if_they_were_closed() {
        let mut table = HandleTable::<char>::new(2);
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
        let mut table = HandleTable::<char>::new(8);
        let first = table.reserve("h").unwrap();
        table.close("h");
        table.reserve("h").unwrap();
        table.handle_failed("h", first);
        assert_eq!(table.reserve("h"), Err(NotReserved::Exists));
    }
}
