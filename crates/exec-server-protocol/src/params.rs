//! Decodes `params`, with the error texts of the reference.

use std::borrow::Cow;

use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};

use crate::fs::Sandbox;
use crate::json;
use crate::trace_context::META;
use crate::user::UserName;

/// The params of a method without params: missing, `null` and `{}` are equal; `_meta` is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoParams;

/// Params with the members `sandbox` and `user`.
pub trait Scoped {
    /// Takes the policy and the user out of the params.
    fn take_scope(&mut self) -> (Sandbox, Option<UserName>);
}

/// Decodes raw JSON; the error is one sentence for the client.
pub fn decode<T: DeserializeOwned>(raw: &str) -> Result<T, String> {
    serde_json::from_str(raw).map_err(|error| {
        let text = error.to_string();
        // serde's position is relative to `params`, so it is dropped.
        match text.rfind(" at line ") {
            Some(end) => text[..end].to_owned(),
            None => text,
        }
    })
}

/// Whether raw params are an object with this member, not `null`.
pub fn has_member(raw: &str, name: &str) -> bool {
    member(raw, name).is_some()
}

/// The raw value of a member of raw params, unless it is `null`.
pub fn member<'a>(raw: &'a str, name: &str) -> Option<&'a str> {
    // Only a scan finds an escaped name; without the name and without escapes the member is absent.
    let bytes = raw.as_bytes();
    if memchr::memmem::find(bytes, name.as_bytes()).is_none()
        && memchr::memchr(b'\\', bytes).is_none()
    {
        return None;
    }
    let mut found = None;
    json::scan_object(raw, |key, value| {
        if key == name && value != "null" {
            found = Some(value);
        }
    })
    .ok()?;
    found
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
                while let Some(name) = map.next_key::<Cow<str>>()? {
                    if name != META {
                        return Err(de::Error::invalid_type(de::Unexpected::Map, &self));
                    }
                    map.next_value::<de::IgnoredAny>()?;
                }
                Ok(NoParams)
            }
        }
        deserializer.deserialize_any(Unit)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Checks that a hand-written decoder reads every member of a value whose members are all set.
    pub(crate) fn check_fast_decoder<T>(all: &T, decode_fast: impl Fn(&str) -> Option<T>)
    where
        T: DeserializeOwned + serde::Serialize + PartialEq + std::fmt::Debug,
    {
        let text = serde_json::to_value(all).unwrap();
        let members = text.as_object().unwrap();
        let mut written: Vec<&str> = members.keys().map(String::as_str).collect();
        let mut declared = declared_members::<T>().to_vec();
        written.sort_unstable();
        declared.sort_unstable();
        assert_eq!(written, declared, "the value has every member");
        assert!(members.values().all(|value| !value.is_null()), "every member is set: {text}");
        assert_eq!(decode_fast(&text.to_string()).as_ref(), Some(all));
        assert_eq!(decode::<T>(&text.to_string()).as_ref(), Ok(all));
    }

    /// Member names that the derived decoder of a struct knows.
    fn declared_members<T: DeserializeOwned>() -> &'static [&'static str] {
        struct Names<'a>(&'a mut &'static [&'static str]);
        impl<'de> Deserializer<'de> for Names<'_> {
            type Error = de::value::Error;

            fn deserialize_struct<V: Visitor<'de>>(
                self,
                _: &'static str,
                fields: &'static [&'static str],
                _: V,
            ) -> Result<V::Value, Self::Error> {
                *self.0 = fields;
                Err(de::Error::custom("only the names are wanted"))
            }

            fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
                Err(de::Error::custom("not a struct"))
            }

            serde::forward_to_deserialize_any! {
                bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
                unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
            }
        }
        let mut names: &'static [&'static str] = &[];
        T::deserialize(Names(&mut names)).err().expect("it is never given anything");
        names
    }

    #[test]
    fn a_member_is_found_at_the_top_only_and_however_its_name_is_written() {
        for raw in [r#"{"sandbox":{}}"#, r#"{"a":1, "sandbox" : 7}"#, r#"{"s\u0061ndbox":false}"#] {
            assert!(has_member(raw, "sandbox"), "{raw}");
        }
        for raw in [
            r#"{"sandbox":null}"#,
            r#"{"sandbox" : null }"#,
            r#"{"a":{"sandbox":{}}}"#,
            r#"{"a":"sandbox"}"#,
            r#"["sandbox"]"#,
            r#"{"a":"\\"}"#,
            "null",
            "{}",
        ] {
            assert!(!has_member(raw, "sandbox"), "{raw}");
        }
    }

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
