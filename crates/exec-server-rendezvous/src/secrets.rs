//! Random secrets and ids, and the SHA-256 digests stored in their place.

use aws_lc_rs::digest::{SHA256, digest};
use exec_server_protocol::hex;
use exec_server_relay::registry_types::PublicKey;

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// Creates a secret with 256 random bits; the prefix lets secret scanners recognise its kind.
pub fn new_secret(prefix: &str) -> String {
    format!("{prefix}{}", hex::encode(&random::<32>()))
}

/// Creates a random id, which is not secret.
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}{}", hex::encode(&random::<10>()))
}

/// Cryptographically secure random bytes.
pub fn random<const COUNT: usize>() -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    aws_lc_rs::rand::fill(&mut bytes).expect("the system has randomness");
    bytes
}

/// Computes the SHA-256 digest.
pub fn sha256(bytes: &[u8]) -> Digest {
    digest(&SHA256, bytes).as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Digest of a public key; computed over the raw bytes, because the encoding of a key is not unique.
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
