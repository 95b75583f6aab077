//! A key as people write it down and compare it.

use std::fmt;
use std::str::FromStr;

use exec_server_machines::noise::identity::fingerprint;
use exec_server_protocol::base64;
use exec_server_protocol::registry::PublicKey;

const PREFIX: &str = "SHA256:";

/// The SHA-256 of a public key: `SHA256:` and 43 characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFingerprint(String);

/// A text that is no fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no fingerprint of a key; expected `SHA256:` and 43 characters of base64")]
pub struct FingerprintError(String);

impl KeyFingerprint {
    /// That of a key.
    pub fn of(key: &PublicKey) -> Self {
        Self(fingerprint(key))
    }
}

impl FromStr for KeyFingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let wrong = || FingerprintError(text.to_owned());
        let (prefix, digest) = text.trim().split_at_checked(PREFIX.len()).ok_or_else(wrong)?;
        let digest = digest.trim_end_matches('=');
        let bytes = base64::decode(&format!("{digest}=")).map_err(|_| wrong())?;
        let is_one = prefix.eq_ignore_ascii_case(PREFIX) && bytes.len() == 32;
        if is_one { Ok(Self(format!("{PREFIX}{digest}"))) } else { Err(wrong()) }
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
    fn a_fingerprint_is_read_as_people_write_it() {
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
