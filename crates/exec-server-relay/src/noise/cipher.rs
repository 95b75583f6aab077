//! AES-256-GCM of records: aws-lc, or RustCrypto where no C code can be built and with the feature `portable-crypto`.

/// Encrypts and decrypts records under one key; the number is the nonce (four zero bytes, then eight big-endian).
pub trait RecordCipher {
    /// Prepares a key.
    fn new(key: &[u8; 32]) -> Self;
    /// Encrypts `buffer[start..]` in place and appends the tag.
    fn seal(&self, number: u32, buffer: &mut Vec<u8>, start: usize) -> Result<(), CipherError>;
    /// Decrypts a record with its tag into `out`, which is shorter by the tag.
    fn open(&self, number: u32, record: &[u8], out: &mut [u8]) -> Result<(), CipherError>;
}

/// A record cannot be encrypted, or does not authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CipherError;

/// The cipher of this build.
#[cfg(not(any(target_arch = "wasm32", feature = "portable-crypto")))]
pub type SystemCipher = aws_lc::AwsLcCipher;
/// The cipher of this build.
#[cfg(any(target_arch = "wasm32", feature = "portable-crypto"))]
pub type SystemCipher = portable::PortableCipher;

#[cfg(all(not(target_arch = "wasm32"), any(test, not(feature = "portable-crypto"))))]
pub mod aws_lc {
    //! AES by aws-lc.

    use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

    use super::{CipherError, RecordCipher};

    /// AES by aws-lc, which uses the instructions of the processor.
    pub struct AwsLcCipher(LessSafeKey);

    impl RecordCipher for AwsLcCipher {
        fn new(key: &[u8; 32]) -> Self {
            let key = UnboundKey::new(&AES_256_GCM, key).expect("AES-256 has 32-byte keys");
            Self(LessSafeKey::new(key))
        }

        fn seal(&self, number: u32, buffer: &mut Vec<u8>, start: usize) -> Result<(), CipherError> {
            let text = &mut buffer[start..];
            let tag = self.0.seal_in_place_separate_tag(nonce(number), Aad::empty(), text);
            buffer.extend_from_slice(tag.map_err(|_| CipherError)?.as_ref());
            Ok(())
        }

        fn open(&self, number: u32, record: &[u8], out: &mut [u8]) -> Result<(), CipherError> {
            let (text, tag) = record.split_at(out.len());
            let opened = self.0.open_separate_gather(nonce(number), Aad::empty(), text, tag, out);
            opened.map_err(|_| CipherError)
        }
    }

    fn nonce(number: u32) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&u64::from(number).to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }
}

#[cfg(any(test, target_arch = "wasm32", feature = "portable-crypto"))]
pub mod portable {
    //! AES by RustCrypto.

    use clatter::bytearray::{ByteArray, SensitiveByteArray};
    use clatter::crypto::cipher::AesGcm;
    use clatter::traits::Cipher;

    use super::{CipherError, RecordCipher};
    use crate::noise::records::TAG_BYTES;

    /// AES by RustCrypto, which the handshake uses as well.
    pub struct PortableCipher(SensitiveByteArray<[u8; 32]>);

    impl RecordCipher for PortableCipher {
        fn new(key: &[u8; 32]) -> Self {
            Self(SensitiveByteArray::from_slice(key))
        }

        fn seal(&self, number: u32, buffer: &mut Vec<u8>, start: usize) -> Result<(), CipherError> {
            let text_len = buffer.len() - start;
            buffer.resize(buffer.len() + TAG_BYTES, 0);
            let record = &mut buffer[start..];
            AesGcm::encrypt_in_place(&self.0, number.into(), &[], record, text_len)
                .map(|_| ())
                .map_err(|_| CipherError)
        }

        fn open(&self, number: u32, record: &[u8], out: &mut [u8]) -> Result<(), CipherError> {
            AesGcm::decrypt(&self.0, number.into(), &[], record, out).map_err(|_| CipherError)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::aws_lc::AwsLcCipher;
    use super::portable::PortableCipher;
    use super::*;

    proptest! {
        #[test]
        fn both_implementations_write_and_read_the_same_records(
            key: [u8; 32], number: u32, text in prop::collection::vec(any::<u8>(), 0..300), at: usize,
        ) {
            let (system, portable) = (AwsLcCipher::new(&key), PortableCipher::new(&key));
            let mut records = [(); 2].map(|()| [b"ahead", &text[..]].concat());
            system.seal(number, &mut records[0], 5).unwrap();
            portable.seal(number, &mut records[1], 5).unwrap();
            prop_assert_eq!(&records[0], &records[1]);
            let mut record = records[0][5..].to_vec();
            let mut out = vec![0; text.len()];
            system.open(number, &record, &mut out).unwrap();
            prop_assert_eq!(&out, &text);
            out.fill(0);
            portable.open(number, &record, &mut out).unwrap();
            prop_assert_eq!(&out, &text);
            let at = at % record.len();
            record[at] ^= 1;
            prop_assert_eq!(system.open(number, &record, &mut out), Err(CipherError));
            prop_assert_eq!(portable.open(number, &record, &mut out), Err(CipherError));
        }
    }
}
