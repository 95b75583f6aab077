//! How a harness and an executor agree on keys that nobody between them has.
//!
//! ```text
//! harness   start ──message 1: who I am, my authorization──▶ read    executor
//! harness  finish ◀──message 2, once the registry said yes── accept  executor
//! ```
//!
//! Both are bound to the environment, the registration and the stream, so a relay cannot move a handshake elsewhere.

use clatter::bytearray::{ByteArray, HeapArray};
use clatter::crypto::cipher::AesGcm;
use clatter::crypto::hash::Sha256;
use clatter::crypto::kem::rust_crypto_ml_kem::MlKem768;
use clatter::handshakepattern::noise_hybrid_ik;
use clatter::traits::Handshaker;
use clatter::{HybridHandshakeCore, HybridHandshakeParams};
use exec_server_protocol::registry::{MAX_AUTHORIZATION_BYTES, PublicKey};

use super::Rng;
use super::identity::{Contributory, Identity, public_key};
use super::records::{Opener, Sealer};

/// What the first message needs beside the authorization that it carries.
pub const MESSAGE_1_OVERHEAD: usize = 3568;

/// The length of the second message, which carries nothing else.
pub const MESSAGE_2_BYTES: usize = 3424;

/// What a handshake is bound to.
#[derive(Debug, Clone, Copy)]
pub struct Binding<'a> {
    /// The environment that is to be reached.
    pub environment_id: &'a str,
    /// The executor's registration.
    pub registration_id: &'a str,
    /// The stream between them.
    pub stream_id: &'a str,
}

/// The keys of both directions, as one end has them.
pub struct Keys {
    /// For what this end sends.
    pub sealer: Sealer,
    /// For what the other end sent.
    pub opener: Opener,
}

/// Why there are no keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// A message of a length that it cannot have.
    #[error("a handshake message has the wrong length")]
    Length,
    /// The peer is not who it should be, or somebody changed the message.
    #[error("the handshake does not authenticate")]
    NotAuthentic,
    /// What the harness brought is too long or no text.
    #[error("the harness's authorization is not usable")]
    Authorization,
}

type Noise<R> = HybridHandshakeCore<Contributory, MlKem768, MlKem768, AesGcm, Sha256, R>;

/// A harness that waits for the executor's answer.
pub struct Initiator<R: Rng>(Noise<R>);

impl<R: Rng> Initiator<R> {
    /// The first message, for the executor whose key this is.
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
        let mut noise = Noise::new(parameters).expect("the pattern has all that it needs");
        let mut message = vec![0; MESSAGE_1_OVERHEAD + authorization.len()];
        noise
            .write_message(authorization.as_bytes(), &mut message)
            .map_err(|_| HandshakeError::NotAuthentic)?;
        Ok((Self(noise), message))
    }

    /// The keys, if the answer is the executor's.
    pub fn finish(mut self, message: &[u8]) -> Result<Keys, HandshakeError> {
        if message.len() != MESSAGE_2_BYTES {
            return Err(HandshakeError::Length);
        }
        self.0.read_message(message, &mut []).map_err(|_| HandshakeError::NotAuthentic)?;
        Ok(keys(self.0, End::Initiator))
    }
}

/// A harness that has proved who it is, but not yet that it may come in.
pub struct Hello<R: Rng> {
    noise: Noise<R>,
    /// Who it is.
    pub harness: PublicKey,
    /// What it brought from the registry.
    pub authorization: String,
}

impl<R: Rng> Hello<R> {
    /// Reads a first message.
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
        let mut noise = Noise::<R>::new(parameters).expect("the pattern has all that it needs");
        let mut payload = vec![0; payload_len];
        noise.read_message(message, &mut payload).map_err(|_| HandshakeError::NotAuthentic)?;
        let harness = noise.get_remote_static().expect("the first message names its sender");
        Ok(Self {
            harness: public_key(harness.dh(), harness.kem().as_slice()),
            authorization: String::from_utf8(payload).map_err(|_| HandshakeError::Authorization)?,
            noise,
        })
    }

    /// Lets the harness in: the second message, and the keys.
    pub fn accept(mut self) -> Result<(Vec<u8>, Keys), HandshakeError> {
        let mut message = vec![0; MESSAGE_2_BYTES];
        self.noise.write_message(&[], &mut message).map_err(|_| HandshakeError::NotAuthentic)?;
        Ok((message, keys(self.noise, End::Responder)))
    }
}

impl Binding<'_> {
    /// The four parts, each with its length before it.
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

fn keys<R: Rng>(noise: Noise<R>, end: End) -> Keys {
    let ciphers = noise.finalize().expect("both messages were exchanged").take();
    let (outward, _) = ciphers.initiator_to_responder.take();
    let (homeward, _) = ciphers.responder_to_initiator.take();
    let (sending, receiving) = match end {
        End::Initiator => (outward, homeward),
        End::Responder => (homeward, outward),
    };
    Keys {
        sealer: Sealer::new(sending.as_slice().try_into().expect("AES-256 has 32-byte keys")),
        opener: Opener::new(receiving.as_slice().try_into().expect("AES-256 has 32-byte keys")),
    }
}

#[cfg(test)]
mod tests;
