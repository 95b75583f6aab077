//! Memory budget for replies that clients have not read: reserved before a reply is produced, released once it is sent.
//!
//! Owner: the server; each connection has an [`Account`] for its replies and one for buffered HTTP bodies.
//! `exec_server_core::reply_memory` decides how much each account gets.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use exec_server_core::reply_memory::{self as machine, AccountId, Grant, Granted, Limits};
use exec_server_transport::outbox::Outbox;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::errors::RequestError;

/// Limit for the unread replies of one connection; a single larger reply is still possible.
/// Together with the other buffers, it keeps a connection below 32 MiB.
pub const CONNECTION_BYTES: usize = 8 * 1024 * 1024;
/// Guaranteed to every connection, so that small replies pass even if other connections use the whole budget.
const LEAST_BYTES: usize = 256 * 1024;

/// The reply memory of a server; cheap to clone.
#[derive(Debug, Clone)]
pub struct ReplyMemory {
    machine: Arc<Mutex<Machine>>,
    max_wait: Duration,
}

type Machine = machine::ReplyMemory<oneshot::Sender<Room>>;

/// The reply memory of one connection.
#[derive(Debug)]
pub struct Account {
    memory: ReplyMemory,
    id: AccountId,
    /// Tasks that wait for memory; aborted when the connection closes.
    waiting: Mutex<JoinSet<()>>,
}

/// Reserved memory; dropping it releases the memory.
#[derive(Debug)]
pub struct Room {
    memory: ReplyMemory,
    account: AccountId,
    grant: Grant,
}

impl ReplyMemory {
    /// `total` bytes for all connections; `max_wait` bounds the wait for memory that only other connections hold.
    pub fn new(total: usize, max_wait: Duration) -> Self {
        let limits = Limits { total, most: CONNECTION_BYTES, least: LEAST_BYTES };
        Self { machine: Arc::new(Mutex::new(Machine::new(limits))), max_wait }
    }

    /// Opens the account of a new connection.
    pub fn open_account(&self) -> Arc<Account> {
        let id = self.lock().open_account();
        Arc::new(Account { memory: self.clone(), id, waiting: Mutex::default() })
    }

    #[cfg(test)]
    fn taken(&self) -> usize {
        self.lock().taken()
    }

    fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().expect("no holder panics")
    }

    /// A request that no longer waits drops its room, which may serve further requests.
    fn hand_out(&self, granted: Granted<oneshot::Sender<Room>>) {
        for (account, grant, waiter) in granted {
            drop(waiter.send(self.room(account, grant)));
        }
    }

    fn room(&self, account: AccountId, grant: Grant) -> Room {
        Room { memory: self.clone(), account, grant }
    }
}

impl Account {
    /// Reserves memory if it is available now; never for a reply that needs proof that the peer reads.
    pub fn try_take(&self, bytes: usize) -> Option<Room> {
        if bytes > CONNECTION_BYTES {
            return None;
        }
        let grant = self.memory.lock().try_take(self.id, bytes)?;
        Some(self.memory.room(self.id, grant))
    }

    /// Counts memory that is already in use.
    pub fn count(&self, bytes: usize) -> Option<Room> {
        let grant = self.memory.lock().count(self.id, bytes)?;
        Some(self.memory.room(self.id, grant))
    }

    /// Waits for memory. A reply above the connection limit first waits until a pong shows that the peer reads.
    pub async fn take(&self, bytes: usize, outbox: &Outbox) -> Result<Room, RequestError> {
        if bytes > CONNECTION_BYTES {
            outbox.wait_for_reader().await.map_err(|_| RequestError::Abandoned)?;
        }
        let (waiter, mut turn) = oneshot::channel();
        let granted = self.memory.lock().take(self.id, bytes, waiter);
        self.memory.hand_out(granted.map_err(|_| RequestError::Abandoned)?);
        loop {
            match tokio::time::timeout(self.memory.max_wait, &mut turn).await {
                Ok(room) => return room.map_err(|_| RequestError::Abandoned),
                // The connection's own memory is released as soon as its peer reads, so the wait continues.
                Err(_) if self.memory.lock().taken_by(self.id) > 0 => {}
                Err(_) => {
                    // Smaller requests of the connection must not wait behind this one.
                    turn.close();
                    let granted = self.memory.lock().forget(self.id, oneshot::Sender::is_closed);
                    self.memory.hand_out(granted);
                    return Err(RequestError::NoReplyMemory(bytes));
                }
            }
        }
    }

    /// Runs a task that waits for memory; the task is aborted when the connection closes.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut waiting = self.waiting.lock().expect("no holder panics");
        while waiting.try_join_next().is_some() {}
        waiting.spawn(task);
    }

    /// Closes the account and aborts all waits, because the connection has closed.
    pub fn close(&self) {
        let released = self.memory.lock().close_account(self.id);
        let waiting = std::mem::take(&mut *self.waiting.lock().expect("no holder panics"));
        // Both may drop replies, whose drop takes these locks.
        drop((released, waiting));
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.close();
    }
}

impl Room {
    /// The reserved bytes.
    pub fn bytes(&self) -> usize {
        self.grant.bytes
    }

    /// Grows the reservation if the memory is available now.
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let grown = self.memory.lock().try_grow(self.account, self.grant, bytes);
        self.grant = grown.unwrap_or(self.grant);
        grown.is_some()
    }

    /// Grows the reservation beyond the connection's share; fails if the server's total would be exceeded.
    pub fn force_grow(&mut self, bytes: usize) -> bool {
        let grown = self.memory.lock().force_grow(self.account, self.grant, bytes);
        self.grant = grown.unwrap_or(self.grant);
        grown.is_some()
    }

    /// Sets the reservation to the bytes that are really in use.
    pub fn set(&mut self, bytes: usize) {
        if bytes != self.grant.bytes {
            let (grant, granted) = self.memory.lock().set(self.account, self.grant, bytes);
            self.grant = grant;
            self.memory.hand_out(granted);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let granted = self.memory.lock().give_back(self.account, self.grant);
        self.memory.hand_out(granted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_that_no_longer_waits_takes_nothing_from_the_next() {
        let memory = ReplyMemory::new(CONNECTION_BYTES * 100, Duration::MAX);
        let account = memory.open_account();
        let outbox = Outbox::default();
        let all = account.try_take(CONNECTION_BYTES).unwrap();
        let mut gone = Box::pin(account.take(1000, &outbox));
        let mut next = Box::pin(account.take(2000, &outbox));
        assert!(tokio::time::timeout(Duration::ZERO, &mut gone).await.is_err());
        assert!(tokio::time::timeout(Duration::ZERO, &mut next).await.is_err());
        drop(gone);
        drop(all);
        assert_eq!(next.await.unwrap().bytes(), 2000);
        assert_eq!(memory.taken(), 0);
    }

    #[tokio::test]
    async fn a_closed_account_releases_everything_that_waits() {
        let memory = ReplyMemory::new(CONNECTION_BYTES * 100, Duration::MAX);
        let account = memory.open_account();
        let room = account.try_take(CONNECTION_BYTES).unwrap();
        let (sender, task) = oneshot::channel::<()>();
        let waiting = account.clone();
        account.spawn(async move {
            let _held = sender;
            let _ = waiting.take(1, &Outbox::default()).await;
        });
        tokio::task::yield_now().await;
        account.close();
        assert!(task.await.is_err());
        drop(room);
        assert_eq!(memory.taken(), 0);
        assert!(account.try_take(1).is_none());
    }

    #[tokio::test]
    async fn the_wait_for_memory_of_other_connections_times_out() {
        let memory = ReplyMemory::new(CONNECTION_BYTES, Duration::from_millis(1));
        let (one, two, three) =
            (memory.open_account(), memory.open_account(), memory.open_account());
        let large = 2 * CONNECTION_BYTES;
        let reading = Outbox::default();
        // A carrier without pings counts as reading.
        reading.set_cannot_ping();
        let (_total, _above) =
            (one.try_take(CONNECTION_BYTES), two.take(large, &reading).await.unwrap());
        let outbox = Outbox::default();
        let refused = three.take(CONNECTION_BYTES, &outbox).await;
        assert!(
            matches!(refused, Err(RequestError::NoReplyMemory(CONNECTION_BYTES))),
            "{refused:?}"
        );
        assert!(three.take(LEAST_BYTES, &outbox).await.is_ok(), "small replies still pass");
    }
}
