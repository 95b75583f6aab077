//! Things that only those may have who were given them, and the digests that they are known by.

use aws_lc_rs::digest::{SHA256, digest};
use exec_server_protocol::registry::PublicKey;

/// A SHA-256.
pub type Digest = [u8; 32];

/// A new secret: the prefix tells people and scanners what they found, the rest cannot be guessed.
pub fn new_secret(prefix: &str) -> String {
    format!("{prefix}{}", hex(&random::<32>()))
}

/// A new name for something; nobody has to keep it secret.
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}{}", hex(&random::<10>()))
}

/// Bytes that nobody can guess.
pub fn random<const COUNT: usize>() -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has randomness");
    bytes
}

/// The digest by which a secret is known.
pub fn sha256(bytes: &[u8]) -> Digest {
    digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// The digest by which a key is known; of its bytes, because the same key can be written in several ways.
pub fn key_digest(key: &PublicKey) -> Digest {
    sha256(&[&key.x25519[..], &key.mlkem768[..]].concat())
}

/// Bytes as digits that fit into a URL, a header and a command line alike.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes behind [`hex`]; nothing if the text is none.
pub fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_digits_come_back() {
        assert_ne!(new_secret("x_"), new_secret("x_"));
        assert_eq!(unhex(&hex(&[0, 1, 254, 255])), Some(vec![0, 1, 254, 255]));
        for bad in ["0", "+1", "zz", "é"] {
            assert_eq!(unhex(bad), None);
        }
    }
}
