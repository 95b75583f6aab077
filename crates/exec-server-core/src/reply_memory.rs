//! Divides the memory for replies that peers have not taken yet among the connections of a server.
//!
//! Owner: the server (`exec-server/src/reply_memory.rs`), behind a lock.
//! Invariant: a connection is served in the order in which it asked, and connections that wait are served in turn.
//!
//! ```text
//! grant if   taken by the connection + wanted ≤ share            share = an eighth of what is free, within bounds
//!       or   the connection has taken nothing, and wanted ≤ free
//!       or   the connection has taken nothing, wanted is more than any share, and no other grant is above the total
//! ```
//!
//! A share shrinks with what is free, so peers that take nothing cannot use up all of it, and a single reply larger
//! than any share is still possible.

use std::collections::{BTreeMap, VecDeque};

/// How much memory there is, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For all connections together.
    pub total: usize,
    /// For the replies of one connection, unless it is a single one.
    pub most: usize,
    /// What a connection always gets, however much others have taken.
    pub least: usize,
}

/// A connection that takes memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(u64);

/// Memory that was granted, at least one byte; to be given back as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// How much.
    pub bytes: usize,
    /// Whether it lies above the total.
    is_above: bool,
}

/// The memory for replies of one server; `W` stands for a request that waits.
#[derive(Debug)]
pub struct ReplyMemory<W> {
    limits: Limits,
    taken: usize,
    /// Grants above the total; there is at most one.
    above: usize,
    accounts: BTreeMap<AccountId, Account<W>>,
    /// Accounts with requests that wait, in the order of their turns.
    turns: VecDeque<AccountId>,
    last_account: u64,
}

#[derive(Debug)]
struct Account<W> {
    taken: usize,
    waiting: VecDeque<(usize, W)>,
    is_closed: bool,
}

/// Requests whose turn has come.
pub type Granted<W> = Vec<(AccountId, Grant, W)>;

/// An eighth of what is free is left for each of the others.
const SHARE_OF_FREE: usize = 8;

impl<W> ReplyMemory<W> {
    /// Nothing is taken yet.
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

    /// A connection came.
    pub fn open_account(&mut self) -> AccountId {
        self.last_account += 1;
        let id = AccountId(self.last_account);
        let account = Account { taken: 0, waiting: VecDeque::new(), is_closed: false };
        self.accounts.insert(id, account);
        id
    }

    /// A connection ended; the requests that waited are returned, and what it has taken is still to be given back.
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

    /// Takes memory if that is possible now and no earlier request of the connection waits.
    pub fn try_take(&mut self, id: AccountId, bytes: usize) -> Option<Grant> {
        let account = self.accounts.get(&id).filter(|account| account.waiting.is_empty())?;
        let grant = self.judge(account, bytes)?;
        self.enter(id, grant);
        Some(grant)
    }

    /// Replaces a grant by a larger one if that is possible now; requests that wait come first.
    pub fn try_grow(&mut self, id: AccountId, grant: Grant, bytes: usize) -> Option<Grant> {
        let account = self.accounts.get(&id).filter(|account| account.waiting.is_empty())?;
        let more = bytes.saturating_sub(grant.bytes);
        if account.taken + more > self.share() {
            return None;
        }
        self.enter(id, Grant { bytes: more, is_above: false });
        Some(Grant { bytes: grant.bytes + more, ..grant })
    }

    /// Replaces a grant by a larger one without regard to the connection's share; refused above the total.
    pub fn force_grow(&mut self, id: AccountId, grant: Grant, bytes: usize) -> Option<Grant> {
        let more = bytes.saturating_sub(grant.bytes);
        if self.taken.saturating_add(more) > self.limits.total {
            return None;
        }
        self.enter(id, Grant { bytes: more, is_above: false });
        Some(Grant { bytes: grant.bytes + more, ..grant })
    }

    /// Counts what is in memory already; not for an account that is gone.
    pub fn count(&mut self, id: AccountId, bytes: usize) -> Option<Grant> {
        self.accounts.get(&id)?;
        let grant = Grant { bytes, is_above: false };
        self.enter(id, grant);
        Some(grant)
    }

    /// Replaces a grant by what is in memory already, and returns the requests whose turn has come by that.
    pub fn set(&mut self, id: AccountId, grant: Grant, bytes: usize) -> (Grant, Granted<W>) {
        self.enter(id, Grant { bytes, is_above: false });
        self.leave(id, grant.bytes);
        (Grant { bytes, ..grant }, self.poll_granted())
    }

    /// Takes memory, now or when it is the request's turn; a request of a closed account is given back.
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

    /// Forgets requests of a connection that no longer wait, and returns those whose turn has come by that.
    pub fn forget(&mut self, id: AccountId, is_gone: impl Fn(&W) -> bool) -> Granted<W> {
        if let Some(account) = self.accounts.get_mut(&id) {
            account.waiting.retain(|(_, waiter)| !is_gone(waiter));
            if account.waiting.is_empty() {
                self.turns.retain(|turn| *turn != id);
            }
        }
        self.poll_granted()
    }

    /// Gives memory back, and returns the requests whose turn has come by that.
    pub fn give_back(&mut self, id: AccountId, grant: Grant) -> Granted<W> {
        self.above -= usize::from(grant.is_above);
        self.leave(id, grant.bytes);
        self.poll_granted()
    }

    /// What a connection has taken.
    pub fn taken_by(&self, id: AccountId) -> usize {
        self.accounts.get(&id).map_or(0, |account| account.taken)
    }

    /// What all connections have taken.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Serves the connections that wait in turn, one request each, until none can be served.
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
        // What fits into a share can wait for one, so peers that take nothing cannot keep this place.
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
