//! Checks the events of the client's processes: each once, in order, with the expected bytes.

use std::collections::{BTreeSet, HashMap};

use base64_turbo::STANDARD;

use super::failure::{Failure, Result};

/// Expected output of a process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Zero bytes only.
    Zeros,
    /// Any output.
    Any,
}

/// State of one process.
pub struct Account {
    /// Decoded bytes of output received.
    pub bytes: u64,
    /// Output messages received.
    pub chunks: u64,
    exit_code: Option<i64>,
    content: Content,
    next_seq: u64,
    early: BTreeSet<u64>,
    closed_at: Option<u64>,
}

/// Processes of one connection.
#[derive(Default)]
pub struct Ledger {
    accounts: HashMap<u64, Account>,
    unfinished: usize,
    misordered: u64,
    decoded: Vec<u8>,
}

impl Ledger {
    /// Registers a process before its start is sent, because events may precede the reply.
    pub fn open(&mut self, process: u64, content: Content) {
        let account = Account {
            bytes: 0,
            chunks: 0,
            exit_code: None,
            content,
            next_seq: 1,
            early: BTreeSet::new(),
            closed_at: None,
        };
        self.accounts.insert(process, account);
        self.unfinished += 1;
    }

    /// Records output and returns its length.
    pub fn handle_output(&mut self, process: u64, seq: u64, chunk: &[u8]) -> Result<usize> {
        let mut decoded = std::mem::take(&mut self.decoded);
        let room = STANDARD.decoded_len_estimate(chunk.len());
        if decoded.len() < room {
            decoded.resize(room, 0);
        }
        let count = STANDARD
            .decode_slice(chunk, &mut decoded)
            .map_err(|_| Failure::new("output is not base64"))?;
        let account = self.account(process)?;
        // OR-ing all bytes compiles to vector code; stopping at the first wrong byte would not.
        if account.content == Content::Zeros
            && decoded[..count].iter().fold(0, |all, byte| all | byte) != 0
        {
            return Err(Failure::new("output has the wrong content"));
        }
        account.bytes += count as u64;
        account.chunks += 1;
        self.decoded = decoded;
        self.enter(process, seq)?;
        Ok(count)
    }

    /// Records the exit.
    pub fn handle_exited(&mut self, process: u64, seq: u64, code: i64) -> Result<()> {
        self.account(process)?.exit_code = Some(code);
        self.enter(process, seq)
    }

    /// Records the close.
    pub fn handle_closed(&mut self, process: u64, seq: u64) -> Result<()> {
        self.account(process)?.closed_at = Some(seq);
        self.enter(process, seq)
    }

    /// Number of processes that are not closed.
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Number of events that arrived before one with a lower number.
    pub fn misordered(&self) -> u64 {
        self.misordered
    }

    /// Whether every event of a process has arrived.
    pub fn is_finished(&self, process: u64) -> bool {
        self.accounts.get(&process).is_some_and(Account::is_finished)
    }

    /// Bytes of output received from a process.
    pub fn bytes(&self, process: u64) -> u64 {
        self.accounts.get(&process).map_or(0, |account| account.bytes)
    }

    /// Removes a finished process, which must have exited with this code and written this many bytes.
    pub fn settle(&mut self, process: u64, code: i64, bytes: u64) -> Result<Account> {
        let account = self.accounts.remove(&process).ok_or_else(unknown)?;
        if !account.is_finished() {
            return Err(Failure::new("a process did not finish"));
        }
        if account.exit_code != Some(code) {
            return Err(Failure::new(format!(
                "exit code {:?} instead of {code}",
                account.exit_code
            )));
        }
        if account.bytes != bytes {
            return Err(Failure::new(format!("{} bytes instead of {bytes}", account.bytes)));
        }
        Ok(account)
    }

    fn account(&mut self, process: u64) -> Result<&mut Account> {
        self.accounts.get_mut(&process).ok_or_else(unknown)
    }

    fn enter(&mut self, process: u64, seq: u64) -> Result<()> {
        let account = self.account(process)?;
        if seq < account.next_seq || account.is_finished() || account.early.contains(&seq) {
            return Err(Failure::new(format!("event {seq} arrived twice or after the end")));
        }
        let early = seq > account.next_seq;
        if early {
            account.early.insert(seq);
        } else {
            account.next_seq += 1;
            while account.early.remove(&account.next_seq) {
                account.next_seq += 1;
            }
        }
        let finished = account.is_finished();
        self.misordered += u64::from(early);
        self.unfinished -= usize::from(finished);
        Ok(())
    }
}

impl Account {
    fn is_finished(&self) -> bool {
        self.closed_at.is_some_and(|last| self.next_seq > last)
    }
}

fn unknown() -> Failure {
    Failure::new("an event of an unknown process")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_finished_once_every_event_up_to_closed_has_arrived() {
        let mut ledger = Ledger::default();
        ledger.open(1, Content::Any);
        ledger.handle_output(1, 1, b"QUJD").unwrap();
        ledger.handle_closed(1, 3).unwrap();
        assert!(!ledger.is_finished(1));
        ledger.handle_exited(1, 2, 0).unwrap();
        assert!(ledger.is_finished(1));
        assert_eq!((ledger.unfinished(), ledger.misordered()), (0, 1));
        assert_eq!(ledger.settle(1, 0, 3).unwrap().chunks, 1);
    }

    #[test]
    fn wrong_content_and_repeated_events_are_noticed() {
        let mut ledger = Ledger::default();
        ledger.open(1, Content::Zeros);
        assert_eq!(ledger.handle_output(1, 1, b"AAAA").unwrap(), 3);
        assert!(ledger.handle_output(1, 1, b"AAAA").is_err());
        assert!(ledger.handle_output(1, 2, b"AAAB").is_err());
    }
}
