//! Parses and formats key fingerprints, which users compare and pin.

use std::fmt;
use std::str::FromStr;

use crate::noise::identity::fingerprint;
use crate::registry_types::PublicKey;
use exec_server_protocol::base64;

const PREFIX: &str = "SHA256:";

/// The SHA-256 digest of a public key: `SHA256:` and 43 characters of unpadded base64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFingerprint(String);

/// The text is not a fingerprint; the field holds the rejected text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a key fingerprint; expected `SHA256:` and 43 characters of base64")]
pub struct FingerprintError(String);

impl KeyFingerprint {
    /// Computes the fingerprint of `key`.
    pub fn of(key: &PublicKey) -> Self {
        Self(fingerprint(key))
    }
}

impl FromStr for KeyFingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let error = || FingerprintError(text.to_owned());
        let (prefix, digest) = text.trim().split_at_checked(PREFIX.len()).ok_or_else(error)?;
        let digest = digest.trim_end_matches('=');
        let bytes = base64::decode(&format!("{digest}=")).map_err(|_| error())?;
        let is_valid = prefix.eq_ignore_ascii_case(PREFIX) && bytes.len() == 32;
        if is_valid { Ok(Self(format!("{PREFIX}{digest}"))) } else { Err(error()) }
    }
}

impl fmt::Display for KeyFingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_may_differ_in_case_padding_and_surrounding_space() {
        let digest = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU";
        let expected = format!("SHA256:{digest}");
        for text in [&expected, &format!(" sha256:{digest}= "), &format!("Sha256:{digest}")] {
            assert_eq!(text.parse::<KeyFingerprint>().unwrap().to_string(), expected);
        }
        for text in ["", "SHA256:", digest, &expected[..49], "SHA1:47DEQpj8", "SHA256:é"] {
            assert!(text.parse::<KeyFingerprint>().is_err(), "{text}");
        }
    }
}
