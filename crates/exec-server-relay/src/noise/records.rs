//! Encrypts and decrypts records, the pieces of one direction's byte stream; the record number is the nonce.
//!
//! Invariant: numbers never repeat and never wrap. A stream ends when it has used them all.

use super::cipher::{RecordCipher, SystemCipher};

/// Length of the AES-GCM tag at the end of a record.
pub const TAG_BYTES: usize = 16;

/// Peers reject longer records.
pub const MAX_PLAINTEXT_BYTES: usize = 61_440;

/// Why a record was not encrypted or decrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Modified, replayed or encrypted under another number.
    #[error("a record does not authenticate")]
    NotAuthentic,
    /// Shorter than the tag, or plaintext longer than [`MAX_PLAINTEXT_BYTES`].
    #[error("a record has a length that is not allowed")]
    Length,
    /// The direction has used its 2^32 numbers.
    #[error("the stream has used all its record numbers")]
    Exhausted,
}

/// Encrypts outgoing records.
pub struct Sealer<C: RecordCipher = SystemCipher>(Side<C>);

/// Decrypts incoming records.
pub struct Opener<C: RecordCipher = SystemCipher>(Side<C>);

struct Side<C> {
    key: C,
    next: Option<u32>,
}

impl<C: RecordCipher> Sealer<C> {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(Side::new(key))
    }

    /// The number of the next record.
    pub fn next_seq(&self) -> Result<u32, RecordError> {
        self.0.next.ok_or(RecordError::Exhausted)
    }

    /// Encrypts `buffer[start..]` in place and appends the tag.
    pub fn seal(&mut self, buffer: &mut Vec<u8>, start: usize) -> Result<(), RecordError> {
        let seq = self.0.take_number()?;
        if buffer.len() - start > MAX_PLAINTEXT_BYTES {
            return Err(RecordError::Length);
        }
        self.0.key.seal(seq, buffer, start).map_err(|_| RecordError::Length)
    }
}

impl<C: RecordCipher> Opener<C> {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(Side::new(key))
    }

    /// Whether `record` is the first that the peer encrypted: it decrypts under number 0. False after the first `open`.
    pub fn is_first(&self, record: &[u8]) -> bool {
        self.0.next == Some(0) && self.open_under(0, record, &mut Vec::new()).is_ok()
    }

    /// Decrypts the next record and appends its plaintext to `out`; `out` is unchanged on an error.
    pub fn open(&mut self, record: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        check_length(record)?;
        let seq = self.0.take_number()?;
        self.open_under(seq, record, out)
    }

    fn open_under(&self, seq: u32, record: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        let text_len = check_length(record)?;
        let start = out.len();
        out.resize(start + text_len, 0);
        self.0.key.open(seq, record, &mut out[start..]).map_err(|_| {
            out.truncate(start);
            RecordError::NotAuthentic
        })
    }
}

/// The plaintext length of a record, if it is allowed.
fn check_length(record: &[u8]) -> Result<usize, RecordError> {
    let text_len = record.len().checked_sub(TAG_BYTES).ok_or(RecordError::Length)?;
    if text_len > MAX_PLAINTEXT_BYTES { Err(RecordError::Length) } else { Ok(text_len) }
}

impl<C: RecordCipher> Side<C> {
    fn new(key: &[u8; 32]) -> Self {
        Self { key: C::new(key), next: Some(0) }
    }

    fn take_number(&mut self) -> Result<u32, RecordError> {
        let seq = self.next.ok_or(RecordError::Exhausted)?;
        self.next = seq.checked_add(1);
        Ok(seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_decrypts_once_in_sequence_and_unmodified() {
        let (mut sealer, mut opener) = pair();
        let first = seal(&mut sealer, b"one");
        let second = seal(&mut sealer, b"");
        assert_eq!(open(&mut opener, &first), Ok(b"one".to_vec()));
        assert_eq!(open(&mut opener, &second), Ok(Vec::new()));
        assert_eq!(open(&mut opener, &second), Err(RecordError::NotAuthentic));

        let (mut sealer, mut opener) = pair();
        let mut changed = seal(&mut sealer, b"one");
        changed[0] ^= 1;
        let mut out = b"kept".to_vec();
        assert_eq!(opener.open(&changed, &mut out), Err(RecordError::NotAuthentic));
        assert_eq!(out, b"kept");
    }

    #[test]
    fn a_record_with_a_bad_length_uses_no_incoming_number() {
        let (mut sealer, mut opener) = pair();
        assert_eq!(open(&mut opener, &[0; 15]), Err(RecordError::Length));
        let long = vec![0; MAX_PLAINTEXT_BYTES + TAG_BYTES + 1];
        assert_eq!(open(&mut opener, &long), Err(RecordError::Length));
        let mut buffer = vec![0; MAX_PLAINTEXT_BYTES + 3];
        assert_eq!(sealer.seal(&mut buffer, 2), Err(RecordError::Length));
        assert_eq!(open(&mut opener, &seal(&mut pair().0, b"x")), Ok(b"x".to_vec()));
    }

    #[test]
    fn no_record_follows_the_last_number() {
        let (mut sealer, _) = pair();
        sealer.0.next = Some(u32::MAX);
        seal(&mut sealer, b"last");
        assert_eq!(sealer.next_seq(), Err(RecordError::Exhausted));
        assert_eq!(sealer.seal(&mut Vec::new(), 0), Err(RecordError::Exhausted));
    }

    fn pair() -> (Sealer, Opener) {
        (Sealer::new(&[7; 32]), Opener::new(&[7; 32]))
    }

    fn seal(sealer: &mut Sealer, text: &[u8]) -> Vec<u8> {
        let mut buffer = text.to_vec();
        sealer.seal(&mut buffer, 0).unwrap();
        buffer
    }

    fn open(opener: &mut Opener, record: &[u8]) -> Result<Vec<u8>, RecordError> {
        let mut out = Vec::new();
        opener.open(record, &mut out).map(|()| out)
    }
}
