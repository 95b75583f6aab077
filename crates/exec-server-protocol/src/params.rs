//! Decoding of `params`, with the texts that clients of this protocol know.

use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};

/// The parameters of a method that has none: missing, `null` and `{}` are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoParams;

/// Decodes raw JSON, and says in one sentence what is wrong with it.
pub fn decode<T: DeserializeOwned>(raw: &str) -> Result<T, String> {
    serde_json::from_str(raw).map_err(|error| {
        let text = error.to_string();
        // The place is counted inside `params`, which nobody can see.
        match text.rfind(" at line ") {
            Some(end) => text[..end].to_owned(),
            None => text,
        }
    })
}

impl<'de> Deserialize<'de> for NoParams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Unit;
        impl<'de> Visitor<'de> for Unit {
            type Value = NoParams;

            fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
                formatter.write_str("unit")
            }

            fn visit_unit<E: de::Error>(self) -> Result<NoParams, E> {
                Ok(NoParams)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<NoParams, A::Error> {
                Err(de::Error::invalid_type(de::Unexpected::Seq, &self))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<NoParams, A::Error> {
                match map.next_key::<de::IgnoredAny>()? {
                    None => Ok(NoParams),
                    Some(_) => Err(de::Error::invalid_type(de::Unexpected::Map, &self)),
                }
            }
        }
        deserializer.deserialize_any(Unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_method_without_parameters_takes_nothing_null_and_an_empty_object() {
        assert_eq!(decode::<NoParams>("null"), Ok(NoParams));
        assert_eq!(decode::<NoParams>("{}"), Ok(NoParams));
        assert_eq!(decode::<NoParams>("[]").unwrap_err(), "invalid type: sequence, expected unit");
        assert_eq!(
            decode::<NoParams>("{\"x\":1}").unwrap_err(),
            "invalid type: map, expected unit"
        );
    }

    #[test]
    fn errors_name_the_field_and_no_place() {
        let error = decode::<crate::process::ProcessTerminateParams>("{}").unwrap_err();
        assert_eq!(error, "missing field `processId`");
    }
}
