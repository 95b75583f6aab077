//! The active exchanges of one connection, by request id.
//!
//! Only exchanges with a streamed request or response body need unique ids, because chunks and deltas carry the id.

use std::collections::BTreeMap;

use exec_server_protocol::limits::MAX_HTTP_EXCHANGES;
use tokio::sync::oneshot;

use super::upload::Upload;
use crate::errors::RequestError;

/// The active exchanges of one connection.
#[derive(Debug, Default)]
pub struct Table {
    last: u64,
    exchanges: BTreeMap<u64, Entry>,
}

/// Identifies an exchange; several exchanges can have the same request id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

#[derive(Debug)]
struct Entry {
    name: String,
    is_streamed: bool,
    /// `None` once the exchange is cancelled.
    cancel: Option<oneshot::Sender<()>>,
    upload: Option<Upload>,
}

impl Table {
    /// Registers an exchange; the receiver resolves when the exchange is cancelled.
    pub fn enter(
        &mut self,
        name: &str,
        is_streamed: bool,
        upload: Option<Upload>,
    ) -> Result<(Ticket, oneshot::Receiver<()>), RequestError> {
        let is_streamed = is_streamed || upload.is_some();
        let mut others = self.exchanges.values();
        if is_streamed && others.any(|other| other.is_streamed && other.name == name) {
            return Err(RequestError::DuplicateExchange(name.to_owned()));
        }
        if self.exchanges.len() >= MAX_HTTP_EXCHANGES {
            return Err(RequestError::TooManyExchanges);
        }
        let (cancel, cancelled) = oneshot::channel();
        self.last += 1;
        let name = name.to_owned();
        let entry = Entry { name, is_streamed, cancel: Some(cancel), upload };
        self.exchanges.insert(self.last, entry);
        Ok((Ticket(self.last), cancelled))
    }

    /// Removes an exchange that has ended, which frees its id.
    pub fn leave(&mut self, ticket: Ticket) {
        self.exchanges.remove(&ticket.0);
    }

    /// Cancels all exchanges with this id; returns whether any was active and not yet cancelled.
    pub fn cancel(&mut self, name: &str) -> bool {
        let mut any = false;
        for entry in self.exchanges.values_mut().filter(|entry| entry.name == name) {
            if let Some(cancel) = entry.cancel.take() {
                any |= cancel.send(()).is_ok();
            }
        }
        any
    }

    /// The upload of the exchange with this id, if its request body is streamed.
    pub fn upload(&mut self, name: &str) -> Option<&mut Upload> {
        let mut entries = self.exchanges.values_mut().filter(|entry| entry.name == name);
        entries.find_map(|entry| entry.upload.as_mut())
    }

    /// Whether no exchange is active.
    pub fn is_empty(&self) -> bool {
        self.exchanges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_among_streamed_exchanges_only() {
        let mut table = Table::default();
        let (stream, _cancelled) = table.enter("a", true, None).unwrap();
        table.enter("a", false, None).unwrap();
        table.enter("a", false, None).unwrap();
        let refused = table.enter("a", true, None).unwrap_err();
        assert!(matches!(refused, RequestError::DuplicateExchange(name) if name == "a"));
        table.leave(stream);
        table.enter("a", true, None).unwrap();
    }

    #[test]
    fn all_exchanges_with_an_id_are_cancelled_once() {
        let mut table = Table::default();
        let (_, mut stream) = table.enter("a", true, None).unwrap();
        let (_, mut buffered) = table.enter("a", false, None).unwrap();
        let (_, mut other) = table.enter("b", false, None).unwrap();
        assert!(table.cancel("a") && !table.cancel("a") && !table.cancel("c"));
        assert!(stream.try_recv().is_ok() && buffered.try_recv().is_ok());
        assert!(other.try_recv().is_err());
    }

    #[test]
    fn the_number_of_exchanges_is_bounded() {
        let mut table = Table::default();
        for _ in 0..MAX_HTTP_EXCHANGES {
            table.enter("a", false, None).unwrap();
        }
        let refused = table.enter("b", false, None).unwrap_err();
        assert!(matches!(refused, RequestError::TooManyExchanges));
    }
}
