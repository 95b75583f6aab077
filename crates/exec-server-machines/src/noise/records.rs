//! Records: pieces of the byte stream of one direction, each sealed under its number.
//!
//! The numbers never repeat and never wrap; a stream that has used them all is over.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

/// What the seal adds to a record.
pub const TAG_BYTES: usize = 16;

/// Peers cut their stream into pieces of at most this, and refuse more.
pub const MAX_PLAINTEXT_BYTES: usize = 61_440;

/// Why a record was not sealed or not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Not what the peer sealed under this number.
    #[error("a record does not authenticate")]
    NotAuthentic,
    /// Shorter than a seal or longer than a piece.
    #[error("a record has a length that is not allowed")]
    Length,
    /// All numbers are used up.
    #[error("the stream has used all its record numbers")]
    Exhausted,
}

/// Seals what this end sends.
pub struct Sealer(Side);

/// Opens what the other end sent.
pub struct Opener(Side);

struct Side {
    key: LessSafeKey,
    next: Option<u32>,
}

impl Sealer {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(Side::new(key))
    }

    /// The number that the next record will have.
    pub fn next_seq(&self) -> Result<u32, RecordError> {
        self.0.next.ok_or(RecordError::Exhausted)
    }

    /// Encrypts everything in `buffer` from `start` on, and appends the tag.
    pub fn seal(&mut self, buffer: &mut Vec<u8>, start: usize) -> Result<(), RecordError> {
        let nonce = self.0.take_nonce()?;
        let text = &mut buffer[start..];
        if text.len() > MAX_PLAINTEXT_BYTES {
            return Err(RecordError::Length);
        }
        let tag = self
            .0
            .key
            .seal_in_place_separate_tag(nonce, Aad::empty(), text)
            .map_err(|_| RecordError::Length)?;
        buffer.extend_from_slice(tag.as_ref());
        Ok(())
    }
}

impl Opener {
    pub(crate) fn new(key: &[u8; 32]) -> Self {
        Self(Side::new(key))
    }

    /// Decrypts the next record and appends its plaintext to `out`, which is left alone if that fails.
    pub fn open(&mut self, record: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        let text_len = record.len().checked_sub(TAG_BYTES).ok_or(RecordError::Length)?;
        if text_len > MAX_PLAINTEXT_BYTES {
            return Err(RecordError::Length);
        }
        let nonce = self.0.take_nonce()?;
        let (text, tag) = record.split_at(text_len);
        let start = out.len();
        out.resize(start + text_len, 0);
        let opened =
            self.0.key.open_separate_gather(nonce, Aad::empty(), text, tag, &mut out[start..]);
        opened.map_err(|_| {
            out.truncate(start);
            RecordError::NotAuthentic
        })
    }
}

impl Side {
    fn new(key: &[u8; 32]) -> Self {
        let key = UnboundKey::new(&AES_256_GCM, key).expect("AES-256 has 32-byte keys");
        Self { key: LessSafeKey::new(key), next: Some(0) }
    }

    /// Noise counts in the last eight bytes, most significant first.
    fn take_nonce(&mut self) -> Result<Nonce, RecordError> {
        let seq = self.next.ok_or(RecordError::Exhausted)?;
        self.next = seq.checked_add(1);
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&u64::from(seq).to_be_bytes());
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_opens_once_in_its_place_and_unchanged() {
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
    fn lengths_are_checked_before_anything_else() {
        let (mut sealer, mut opener) = pair();
        assert_eq!(open(&mut opener, &[0; 15]), Err(RecordError::Length));
        let long = vec![0; MAX_PLAINTEXT_BYTES + TAG_BYTES + 1];
        assert_eq!(open(&mut opener, &long), Err(RecordError::Length));
        let mut buffer = vec![0; MAX_PLAINTEXT_BYTES + 3];
        assert_eq!(sealer.seal(&mut buffer, 2), Err(RecordError::Length));
        assert_eq!(open(&mut opener, &seal(&mut pair().0, b"x")), Ok(b"x".to_vec()));
    }

    #[test]
    fn the_last_number_is_the_end() {
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
