//! Bytes that are base64 text on the wire.

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::base64;

/// Bytes that are base64 text on the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Bytes64(pub Vec<u8>);

impl From<Vec<u8>> for Bytes64 {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Serialize for Bytes64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&base64::encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Bytes64;

            fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
                formatter.write_str("a base64 string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes64, E> {
                base64::decode(text).map(Bytes64).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}
