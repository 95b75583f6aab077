//! Base64 whose decode error becomes -32600 instead of failing the params (-32602).

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::base64::{self, Base64Error};

/// Bytes as base64 text; a decode error is kept for the handler to report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Data64(pub Result<Vec<u8>, Base64Error>);

impl Data64 {
    /// Decodes untrusted text.
    pub fn decode(text: &str) -> Self {
        Self(base64::decode(text))
    }
}

impl From<Vec<u8>> for Data64 {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Ok(bytes))
    }
}

impl Serialize for Data64 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes = self.0.as_ref().map_err(serde::ser::Error::custom)?;
        serializer.serialize_str(&base64::encode(bytes))
    }
}

impl<'de> Deserialize<'de> for Data64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Data64;

            fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
                formatter.write_str("a base64 string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Data64, E> {
                Ok(Data64::decode(text))
            }
        }
        deserializer.deserialize_str(Text)
    }
}
