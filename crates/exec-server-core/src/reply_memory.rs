//! Divides the memory for unsent replies among the connections of a server.
//!
//! Owner: the server (`exec-server-executor/src/reply_memory.rs`), behind a lock.
//! Invariant: requests of one connection are served in order, and waiting connections are served in turn.
//!
//! ```text
//! grant if   taken by the connection + wanted ≤ share            share = an eighth of what is free, within bounds
//!       or   the connection has taken nothing, and wanted ≤ free
//!       or   the connection has taken nothing, wanted is more than any share, and no other grant is above the total
//! ```
//!
//! A share shrinks with the free memory, so peers that read nothing cannot use it up, and a single reply larger than
//! any share is still possible.

use std::collections::{BTreeMap, VecDeque};

/// Memory limits in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For all connections together.
    pub total: usize,
    /// For the replies of one connection, except for a single large reply.
    pub most: usize,
    /// Minimum for a connection, whatever other connections have taken.
    pub least: usize,
}

/// Identifies a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(u64);

/// Granted memory, at least one byte; returned unchanged with `give_back`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Size in bytes.
    pub bytes: usize,
    /// Whether the grant exceeds the total.
    is_above: bool,
}

/// Memory accounts of all connections; `W` is a waiting request.
#[derive(Debug)]
pub struct ReplyMemory<W> {
    limits: Limits,
    taken: usize,
    /// Grants above the total; there is at most one.
    above: usize,
    accounts: BTreeMap<AccountId, Account<W>>,
    /// Accounts with waiting requests, in the order of their turns.
    turns: VecDeque<AccountId>,
    last_account: u64,
}

#[derive(Debug)]
struct Account<W> {
    taken: usize,
    waiting: VecDeque<(usize, W)>,
    is_closed: bool,
}

/// Requests that were granted.
pub type Granted<W> = Vec<(AccountId, Grant, W)>;

/// A connection may take one eighth of the free memory, so that other connections get their share.
const SHARE_OF_FREE: usize = 8;

impl<W> ReplyMemory<W> {
    /// No memory is taken yet.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            taken: 0,
            above: 0,
            accounts: BTreeMap::new(),
            turns: VecDeque::new(),
            last_account: 0,
        }
    }

    /// Opens the account of a new connection.
    pub fn open_account(&mut self) -> AccountId {
        self.last_account += 1;
        let id = AccountId(self.last_account);
        let account = Account { taken: 0, waiting: VecDeque::new(), is_closed: false };
        self.accounts.insert(id, account);
        id
    }

    /// Closes the account and returns its waiting requests; memory that it has taken must still be given back.
    pub fn close_account(&mut self, id: AccountId) -> Vec<W> {
        let Some(account) = self.accounts.get_mut(&id) else { return Vec::new() };
        account.is_closed = true;
        let waiting = std::mem::take(&mut account.waiting);
        if account.taken == 0 {
            self.accounts.remove(&id);
        }
        self.turns.retain(|turn| *turn != id);
        waiting.into_iter().map(|(_, waiter)| waiter).collect()
    }

    /// Takes memory if it is free and no earlier request of the connection waits.
    pub fn try_take(&mut self, id: AccountId, bytes: usize) -> Option<Grant> {
        let account = self.accounts.get(&id).filter(|account| account.waiting.is_empty())?;
        let grant = self.judge(account, bytes)?;
        self.enter(id, grant);
        Some(grant)
    }

    /// Grows a grant if memory is free; waiting requests come first.
    pub fn try_grow(&mut self, id: AccountId, grant: Grant, bytes: usize) -> Option<Grant> {
        let account = self.accounts.get(&id).filter(|account| account.waiting.is_empty())?;
        let more = bytes.saturating_sub(grant.bytes);
        if account.taken + more > self.share() {
            return None;
        }
        self.enter(id, Grant { bytes: more, is_above: false });
        Some(Grant { bytes: grant.bytes + more, ..grant })
    }

    /// Grows a grant regardless of the connection's share, up to the total.
    pub fn force_grow(&mut self, id: AccountId, grant: Grant, bytes: usize) -> Option<Grant> {
        let more = bytes.saturating_sub(grant.bytes);
        if self.taken.saturating_add(more) > self.limits.total {
            return None;
        }
        self.enter(id, Grant { bytes: more, is_above: false });
        Some(Grant { bytes: grant.bytes + more, ..grant })
    }

    /// Counts memory that is in use already; `None` if the account is closed.
    pub fn count(&mut self, id: AccountId, bytes: usize) -> Option<Grant> {
        self.accounts.get(&id)?;
        let grant = Grant { bytes, is_above: false };
        self.enter(id, grant);
        Some(grant)
    }

    /// Sets a grant to the memory in use, and returns the requests that are granted by that.
    pub fn set(&mut self, id: AccountId, grant: Grant, bytes: usize) -> (Grant, Granted<W>) {
        self.enter(id, Grant { bytes, is_above: false });
        self.leave(id, grant.bytes);
        (Grant { bytes, ..grant }, self.poll_granted())
    }

    /// Takes memory now or when it is the request's turn; returns the request if the account is closed.
    pub fn take(&mut self, id: AccountId, bytes: usize, waiter: W) -> Result<Granted<W>, W> {
        let Some(account) = self.accounts.get_mut(&id).filter(|account| !account.is_closed) else {
            return Err(waiter);
        };
        account.waiting.push_back((bytes, waiter));
        if account.waiting.len() == 1 {
            self.turns.push_back(id);
        }
        Ok(self.poll_granted())
    }

    /// Drops requests that no longer wait, and returns the requests that are granted by that.
    pub fn forget(&mut self, id: AccountId, is_gone: impl Fn(&W) -> bool) -> Granted<W> {
        if let Some(account) = self.accounts.get_mut(&id) {
            account.waiting.retain(|(_, waiter)| !is_gone(waiter));
            if account.waiting.is_empty() {
                self.turns.retain(|turn| *turn != id);
            }
        }
        self.poll_granted()
    }

    /// Gives memory back, and returns the requests that are granted by that.
    pub fn give_back(&mut self, id: AccountId, grant: Grant) -> Granted<W> {
        self.above -= usize::from(grant.is_above);
        self.leave(id, grant.bytes);
        self.poll_granted()
    }

    /// Bytes that a connection has taken.
    pub fn taken_by(&self, id: AccountId) -> usize {
        self.accounts.get(&id).map_or(0, |account| account.taken)
    }

    /// Bytes that all connections have taken.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Grants waiting requests, one per connection in turn, until none fits.
    fn poll_granted(&mut self) -> Granted<W> {
        let mut granted = Vec::new();
        let mut refused = 0;
        while refused < self.turns.len()
            && let Some(id) = self.turns.pop_front()
        {
            let account = &self.accounts[&id];
            let (bytes, _) = account.waiting.front().expect("it has a turn because it waits");
            let Some(grant) = self.judge(account, *bytes) else {
                self.turns.push_back(id);
                refused += 1;
                continue;
            };
            refused = 0;
            self.enter(id, grant);
            let account = self.accounts.get_mut(&id).expect("was just judged");
            let (_, waiter) = account.waiting.pop_front().expect("was just looked at");
            if !account.waiting.is_empty() {
                self.turns.push_back(id);
            }
            granted.push((id, grant, waiter));
        }
        granted
    }

    fn judge(&self, account: &Account<W>, bytes: usize) -> Option<Grant> {
        let is_first = account.taken == 0;
        let fits = account.taken.saturating_add(bytes) <= self.share()
            || is_first && self.taken.saturating_add(bytes) <= self.limits.total;
        if fits {
            return Some(Grant { bytes, is_above: false });
        }
        // A request that fits into a share must wait for one; otherwise peers that read nothing could occupy the single
        // grant above the total.
        let is_large = bytes > self.limits.most.min(self.limits.total);
        (is_first && is_large && self.above == 0).then_some(Grant { bytes, is_above: true })
    }

    fn share(&self) -> usize {
        let free = self.limits.total.saturating_sub(self.taken);
        (free / SHARE_OF_FREE).min(self.limits.most).max(self.limits.least)
    }

    fn enter(&mut self, id: AccountId, grant: Grant) {
        self.taken += grant.bytes;
        self.above += usize::from(grant.is_above);
        self.accounts.get_mut(&id).expect("an account with a grant is there").taken += grant.bytes;
    }

    fn leave(&mut self, id: AccountId, bytes: usize) {
        self.taken -= bytes;
        let account = self.accounts.get_mut(&id).expect("an account with a grant is there");
        account.taken -= bytes;
        if account.is_closed && account.taken == 0 {
            self.accounts.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests;
