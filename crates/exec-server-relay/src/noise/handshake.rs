//! The handshake: a harness and an executor agree on keys that the relay cannot learn.
//!
//! ```text
//! harness   start ──message 1: public key, authorization───▶ read    executor
//! harness  finish ◀──message 2, once the registry allows it─ accept  executor
//! ```
//!
//! Both messages are bound to environment, registration and stream, so a relay cannot redirect a handshake.

use crate::registry_types::{MAX_AUTHORIZATION_BYTES, PublicKey};
use clatter::bytearray::{ByteArray, HeapArray};
use clatter::crypto::cipher::AesGcm;
use clatter::crypto::hash::Sha256;
use clatter::crypto::kem::rust_crypto_ml_kem::MlKem768;
use clatter::handshakepattern::noise_hybrid_ik;
use clatter::traits::Handshaker;
use clatter::{HybridHandshakeCore, HybridHandshakeParams};

use super::Rng;
use super::cipher::{RecordCipher, SystemCipher};
use super::identity::{Contributory, Identity, public_key};
use super::records::{Opener, Sealer};

/// Length of the first message without its payload, the authorization.
pub const MESSAGE_1_OVERHEAD: usize = 3568;

/// Length of the second message, whose payload is empty.
pub const MESSAGE_2_BYTES: usize = 3424;

/// The context that both ends must share; it is hashed as the Noise prologue.
#[derive(Debug, Clone, Copy)]
pub struct Binding<'a> {
    /// The executor's environment.
    pub environment_id: &'a str,
    /// The executor's registration.
    pub registration_id: &'a str,
    /// The stream that the handshake opens.
    pub stream_id: &'a str,
}

/// The transport keys of one end.
pub struct Keys<C: RecordCipher = SystemCipher> {
    /// Encrypts outgoing records.
    pub sealer: Sealer<C>,
    /// Decrypts incoming records.
    pub opener: Opener<C>,
}

/// Why a handshake failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// A message too short for its fixed parts, or a second message of another length.
    #[error("a handshake message has the wrong length")]
    Length,
    /// Wrong key or binding, or a message modified in transit.
    #[error("the handshake does not authenticate")]
    NotAuthentic,
    /// The authorization is too long or not UTF-8.
    #[error("the harness's authorization is too long or not UTF-8")]
    Authorization,
}

type Noise<R> = HybridHandshakeCore<Contributory, MlKem768, MlKem768, AesGcm, Sha256, R>;

/// Harness side, after the first message.
pub struct Initiator<R: Rng>(Noise<R>);

impl<R: Rng> Initiator<R> {
    /// Creates the first message, which only the holder of the `executor` key can read.
    pub fn start(
        identity: &Identity,
        executor: &PublicKey,
        binding: Binding<'_>,
        authorization: &str,
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        if authorization.len() > MAX_AUTHORIZATION_BYTES {
            return Err(HandshakeError::Authorization);
        }
        let prologue = binding.prologue();
        let parameters = HybridHandshakeParams::new(noise_hybrid_ik(), true)
            .with_prologue(&prologue)
            .with_s(identity.dh.clone())
            .with_s_kem(identity.kem.clone())
            .with_rs(executor.x25519)
            .with_rs_kem(HeapArray::from_slice(&executor.mlkem768[..]));
        let mut noise = Noise::new(parameters).expect("all keys of the pattern are set");
        let mut message = vec![0; MESSAGE_1_OVERHEAD + authorization.len()];
        noise
            .write_message(authorization.as_bytes(), &mut message)
            .map_err(|_| HandshakeError::NotAuthentic)?;
        Ok((Self(noise), message))
    }

    /// Verifies the executor's answer and derives the keys.
    pub fn finish(self, message: &[u8]) -> Result<Keys, HandshakeError> {
        self.finish_with(message)
    }

    fn finish_with<C: RecordCipher>(mut self, message: &[u8]) -> Result<Keys<C>, HandshakeError> {
        if message.len() != MESSAGE_2_BYTES {
            return Err(HandshakeError::Length);
        }
        self.0.read_message(message, &mut []).map_err(|_| HandshakeError::NotAuthentic)?;
        Ok(keys(self.0, End::Initiator))
    }
}

/// Executor side, after the first message: the harness's key is known, its authorization is not yet validated.
pub struct Hello<R: Rng> {
    noise: Noise<R>,
    /// Authenticated by the first message.
    pub harness: PublicKey,
    /// Unverified; for the registry to validate.
    pub authorization: String,
}

impl<R: Rng> Hello<R> {
    /// Decrypts and authenticates a first message.
    pub fn read(
        identity: &Identity,
        binding: Binding<'_>,
        message: &[u8],
    ) -> Result<Self, HandshakeError> {
        let payload_len =
            message.len().checked_sub(MESSAGE_1_OVERHEAD).ok_or(HandshakeError::Length)?;
        if payload_len > MAX_AUTHORIZATION_BYTES {
            return Err(HandshakeError::Authorization);
        }
        let prologue = binding.prologue();
        let parameters = HybridHandshakeParams::new(noise_hybrid_ik(), false)
            .with_prologue(&prologue)
            .with_s(identity.dh.clone())
            .with_s_kem(identity.kem.clone());
        let mut noise = Noise::<R>::new(parameters).expect("all keys of the pattern are set");
        let mut payload = vec![0; payload_len];
        noise.read_message(message, &mut payload).map_err(|_| HandshakeError::NotAuthentic)?;
        let harness = noise.get_remote_static().expect("the first message names its sender");
        Ok(Self {
            harness: public_key(harness.dh(), harness.kem().as_slice()),
            authorization: String::from_utf8(payload).map_err(|_| HandshakeError::Authorization)?,
            noise,
        })
    }

    /// Accepts the harness: returns the second message and the keys.
    pub fn accept(self) -> Result<(Vec<u8>, Keys), HandshakeError> {
        self.accept_with()
    }

    fn accept_with<C: RecordCipher>(mut self) -> Result<(Vec<u8>, Keys<C>), HandshakeError> {
        let mut message = vec![0; MESSAGE_2_BYTES];
        self.noise.write_message(&[], &mut message).map_err(|_| HandshakeError::NotAuthentic)?;
        Ok((message, keys(self.noise, End::Responder)))
    }
}

impl Binding<'_> {
    /// Label and ids, each preceded by its length as 8 bytes, big-endian.
    fn prologue(&self) -> Vec<u8> {
        const LABEL: &str = "codex-exec-server-relay-noise/v1";
        let mut bytes = Vec::new();
        for part in [LABEL, self.environment_id, self.registration_id, self.stream_id] {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        bytes
    }
}

#[derive(Clone, Copy)]
enum End {
    Initiator,
    Responder,
}

fn keys<R: Rng, C: RecordCipher>(noise: Noise<R>, end: End) -> Keys<C> {
    let ciphers = noise.finalize().expect("both messages were exchanged").take();
    let (to_responder, _) = ciphers.initiator_to_responder.take();
    let (to_initiator, _) = ciphers.responder_to_initiator.take();
    let (sending, receiving) = match end {
        End::Initiator => (to_responder, to_initiator),
        End::Responder => (to_initiator, to_responder),
    };
    Keys {
        sealer: Sealer::new(sending.as_slice().try_into().expect("AES-256 has 32-byte keys")),
        opener: Opener::new(receiving.as_slice().try_into().expect("AES-256 has 32-byte keys")),
    }
}

#[cfg(test)]
mod tests;
