//! The long-lived key pair that identifies an executor or a harness.

use crate::registry_types::PublicKey;
use clatter::KeyPair;
use clatter::bytearray::{ByteArray, HeapArray, SensitiveByteArray};
use clatter::crypto::dh::X25519;
use clatter::crypto::hash::Sha256;
use clatter::crypto::kem::rust_crypto_ml_kem::MlKem768;
use clatter::traits::{CryptoComponent, Dh, Hash, Kem, Rng};
use exec_server_protocol::base64;

/// The length of an X25519 secret key.
pub const X25519_SECRET_KEY_BYTES: usize = 32;

/// The length of an ML-KEM-768 decapsulation key.
pub const MLKEM768_SECRET_KEY_BYTES: usize = 2400;

/// Where a decapsulation key holds its public half (FIPS 203, algorithm 16).
const MLKEM768_PUBLIC_HALF: std::ops::Range<usize> = 1152..2336;

/// An X25519 and an ML-KEM-768 key pair; `Debug` shows only the fingerprint.
#[derive(Clone)]
pub struct Identity {
    pub(super) dh: KeyPair<<X25519 as Dh>::PubKey, <X25519 as Dh>::PrivateKey>,
    pub(super) kem: KeyPair<<MlKem768 as Kem>::PubKey, <MlKem768 as Kem>::SecretKey>,
}

/// Why stored secret keys were rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// One of the two keys is too short or too long.
    #[error("the secret key has the wrong length")]
    Length,
    /// The ML-KEM key is inconsistent.
    #[error("the secret key is damaged")]
    Damaged,
}

impl Identity {
    /// Generates a new identity.
    pub fn generate<R: Rng>(rng: &mut R) -> Self {
        let dh = X25519::genkey_rng(rng).expect("any 32 bytes are an X25519 key");
        let kem = MlKem768::genkey_rng(rng).expect("any 64 bytes seed an ML-KEM key");
        Self { dh, kem }
    }

    /// Restores an identity from its secret keys, and checks them.
    pub fn from_secret_keys<R: Rng>(
        x25519: &[u8],
        mlkem768: &[u8],
        rng: &mut R,
    ) -> Result<Self, IdentityError> {
        let x25519: [u8; X25519_SECRET_KEY_BYTES] =
            x25519.try_into().map_err(|_| IdentityError::Length)?;
        if mlkem768.len() != MLKEM768_SECRET_KEY_BYTES {
            return Err(IdentityError::Length);
        }
        let secret = SensitiveByteArray::new(x25519);
        let dh = KeyPair { public: X25519::pubkey(&secret), secret };
        let public = HeapArray::from_slice(&mlkem768[MLKEM768_PUBLIC_HALF]);
        let kem = KeyPair { public, secret: SensitiveByteArray::from_slice(mlkem768) };
        let identity = Self { dh, kem };
        identity.try_out(rng)?;
        Ok(identity)
    }

    /// A decapsulation key has redundant parts; a trial encapsulation detects damage to any of them.
    fn try_out<R: Rng>(&self, rng: &mut R) -> Result<(), IdentityError> {
        let damaged = |_| IdentityError::Damaged;
        let (sealed, sent) =
            MlKem768::encapsulate(self.kem.public.as_slice(), rng).map_err(damaged)?;
        let got = MlKem768::decapsulate(sealed.as_slice(), self.kem.secret.as_slice())
            .map_err(damaged)?;
        if sent.as_slice() == got.as_slice() { Ok(()) } else { Err(IdentityError::Damaged) }
    }

    /// The X25519 secret key.
    pub fn x25519_secret_key(&self) -> &[u8] {
        self.dh.secret.as_slice()
    }

    /// The ML-KEM-768 decapsulation key.
    pub fn mlkem768_secret_key(&self) -> &[u8] {
        self.kem.secret.as_slice()
    }

    /// The part that is sent to the registry and to peers.
    pub fn public_key(&self) -> PublicKey {
        public_key(&self.dh.public, self.kem.public.as_slice())
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", fingerprint(&self.public_key()))
    }
}

/// The text form that users compare: `SHA256:` and 43 characters of unpadded base64.
pub fn fingerprint(key: &PublicKey) -> String {
    let mut hash = Sha256::default();
    hash.input(&key.x25519);
    hash.input(&key.mlkem768[..]);
    let text = base64::encode(hash.result().as_slice());
    format!("SHA256:{}", text.trim_end_matches('='))
}

pub(super) fn public_key(x25519: &[u8; 32], mlkem768: &[u8]) -> PublicKey {
    let mlkem768: Box<[u8]> = mlkem768.into();
    let mlkem768 = mlkem768.try_into().expect("the suite fixes the length");
    PublicKey { x25519: *x25519, mlkem768 }
}

/// X25519 that rejects low-order points, whose shared secret is all zeros and so known to an attacker.
#[derive(Clone)]
pub(super) struct Contributory;

impl CryptoComponent for Contributory {
    fn name() -> &'static str {
        X25519::name()
    }
}

impl Dh for Contributory {
    type PrivateKey = <X25519 as Dh>::PrivateKey;
    type PubKey = <X25519 as Dh>::PubKey;
    type Output = <X25519 as Dh>::Output;

    fn genkey_rng<R: Rng>(
        rng: &mut R,
    ) -> clatter::error::DhResult<KeyPair<Self::PubKey, Self::PrivateKey>> {
        X25519::genkey_rng(rng)
    }

    fn pubkey(secret: &Self::PrivateKey) -> Self::PubKey {
        X25519::pubkey(secret)
    }

    fn dh(
        secret: &Self::PrivateKey,
        public: &Self::PubKey,
    ) -> clatter::error::DhResult<Self::Output> {
        let shared = X25519::dh(secret, public)?;
        if shared.as_slice().iter().all(|byte| *byte == 0) {
            return Err(clatter::error::DhError::KeyGeneration);
        }
        Ok(shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::SystemRandom;

    #[test]
    fn an_identity_is_restored_from_its_secret_keys() {
        let identity = Identity::generate(&mut SystemRandom);
        let (dh, kem) = (identity.x25519_secret_key(), identity.mlkem768_secret_key());
        let again = Identity::from_secret_keys(dh, kem, &mut SystemRandom).unwrap();
        assert_eq!(again.public_key(), identity.public_key());
        assert_ne!(Identity::generate(&mut SystemRandom).public_key(), identity.public_key());
    }

    #[test]
    fn a_damaged_key_is_rejected() {
        let identity = Identity::generate(&mut SystemRandom);
        let read = |dh: &[u8], kem: &[u8]| {
            Identity::from_secret_keys(dh, kem, &mut SystemRandom).map(|_| ()).unwrap_err()
        };
        let (dh, kem) = (identity.x25519_secret_key(), identity.mlkem768_secret_key());
        assert_eq!(read(&dh[1..], kem), IdentityError::Length);
        assert_eq!(read(dh, &kem[1..]), IdentityError::Length);
        for at in [0, 1151, 1152, 2335, 2336, 2367] {
            let mut kem = kem.to_vec();
            kem[at] ^= 1;
            assert_eq!(read(dh, &kem), IdentityError::Damaged, "byte {at}");
        }
    }

    #[test]
    fn different_keys_have_different_fingerprints() {
        let key = Identity::generate(&mut SystemRandom).public_key();
        let mut other = key.clone();
        other.mlkem768[1183] ^= 1;
        assert_eq!(fingerprint(&key).len(), "SHA256:".len() + 43);
        assert_ne!(fingerprint(&key), fingerprint(&other));
    }
}
