//! Opens libsodium sealed boxes that are encrypted to the X25519 form of an Ed25519 key.

use aws_lc_rs::digest::{SHA512, digest};
use aws_lc_rs::encoding::AsBigEndian;
use aws_lc_rs::signature::Ed25519KeyPair;
use crypto_box::SecretKey;

/// Opens a sealed box; `None` if it is malformed or for another key.
pub fn open(key: &Ed25519KeyPair, sealed: &[u8]) -> Option<String> {
    let seed = key.seed().ok()?;
    let seed = seed.as_be_bytes().ok()?;
    // RFC 8032 derives the secret scalar from this half; used as an X25519 key, it is the matching secret key.
    let expanded = digest(&SHA512, seed.as_ref());
    let half: [u8; 32] = expanded.as_ref()[..32].try_into().expect("half of 64 bytes");
    let text = SecretKey::from_bytes(half).unseal(sealed).ok()?;
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::base64;

    use super::*;

    /// Produced by libsodium: `SealedBox(key.verify_key.to_curve25519_public_key()).encrypt(b"task-42 of agent/1")`.
    const SEALED: &str =
        "DO5p9GT6ESkS430mMAQKdDB2QdT0Qe0K6kLyEJYPtivFjOMbEmPHhKmIXw/DpuaXG/e3n1DgpEFL9bKlmnWgBDoQ";

    #[test]
    fn a_box_sealed_by_libsodium_opens_only_with_its_key() {
        let key = |first: u8| {
            let seed: Vec<u8> = (first..first + 32).collect();
            Ed25519KeyPair::from_seed_unchecked(&seed).unwrap()
        };
        let sealed = base64::decode(SEALED).unwrap();
        assert_eq!(open(&key(0), &sealed).as_deref(), Some("task-42 of agent/1"));
        assert_eq!(open(&key(1), &sealed), None);
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(open(&key(0), &changed), None, "byte {at}");
            assert_eq!(open(&key(0), &sealed[..at]), None, "{at} bytes");
        }
    }
}
