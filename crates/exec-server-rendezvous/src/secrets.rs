//! Things that only those may have who were given them, and the digests that they are known by.

use aws_lc_rs::digest::{SHA256, digest};
use exec_server_protocol::hex;
use exec_server_protocol::registry::PublicKey;

/// A SHA-256.
pub type Digest = [u8; 32];

/// A new secret: the prefix tells people and scanners what they found, the rest cannot be guessed.
pub fn new_secret(prefix: &str) -> String {
    format!("{prefix}{}", hex::encode(&random::<32>()))
}

/// A new name for something; nobody has to keep it secret.
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}{}", hex::encode(&random::<10>()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ() {
        assert_ne!(new_secret("x_"), new_secret("x_"));
    }
}
