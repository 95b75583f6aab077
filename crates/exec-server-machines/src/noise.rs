//! The encrypted channel between a harness and an executor: who they are, how they agree, and their records.
//!
//! The pattern is hybrid IK: X25519 and ML-KEM-768 side by side, AES-256-GCM, SHA-256. The handshake is the Noise
//! library's; records are sealed with the keys that it leaves.

pub mod handshake;
pub mod identity;
pub mod records;

pub use clatter::crypto::rng::DefaultRng as SystemRandom;
pub use clatter::traits::Rng;

#[cfg(test)]
pub(crate) mod testing;
