//! End-to-end encryption between a harness and an executor: identities, handshake and records.
//!
//! The pattern is hybrid IK: X25519 and ML-KEM-768 combined, AES-256-GCM, SHA-256. The `clatter` library runs the
//! handshake; records are encrypted with the resulting keys (`cipher`).

pub mod cipher;
pub mod handshake;
pub mod identity;
pub mod records;

pub use clatter::crypto::rng::DefaultRng as SystemRandom;
pub use clatter::traits::Rng;

#[cfg(test)]
pub(crate) mod testing;
