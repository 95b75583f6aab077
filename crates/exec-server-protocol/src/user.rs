//! The user that a request runs as.

use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

/// A user of the server's machine: a name, or a number as text or as a JSON integer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct UserName(pub String);

impl UserName {
    /// The name, or the decimal digits of the number.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for UserName {
    fn from(name: &str) -> Self {
        Self(name.to_owned())
    }
}

impl From<String> for UserName {
    fn from(name: String) -> Self {
        Self(name)
    }
}

impl From<u32> for UserName {
    fn from(uid: u32) -> Self {
        Self(uid.to_string())
    }
}

impl<'de> Deserialize<'de> for UserName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrNumber;

        impl Visitor<'_> for NameOrNumber {
            type Value = UserName;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("the name or the number of a user")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<UserName, E> {
                Ok(name.into())
            }

            fn visit_u64<E: de::Error>(self, uid: u64) -> Result<UserName, E> {
                let uid = u32::try_from(uid);
                uid.map(Into::into).map_err(|_| E::custom("the number of a user is too large"))
            }
        }

        deserializer.deserialize_any(NameOrNumber)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_name_or_a_number() {
        let read = serde_json::from_str::<UserName>;
        assert_eq!(read("\"ann\"").unwrap(), "ann".into());
        assert_eq!(read("1000").unwrap(), 1000.into());
        assert_eq!(read("\"1000\"").unwrap(), 1000.into());
        for bad in ["-1", "1.5", "4294967296", "null", "true", "{}", "[]"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
