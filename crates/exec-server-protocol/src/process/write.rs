//! Fast decoder for `process/write`, the largest message that clients send.

use super::{Bytes64, ProcessWriteParams};
use crate::{base64, json, params};

impl ProcessWriteParams {
    /// Decodes raw params and the base64 chunk without an intermediate string.
    pub fn decode(raw: &str) -> Result<Self, String> {
        Self::decode_fast(raw).map_or_else(|| params::decode(raw), Ok)
    }

    /// Decodes the common form only; `None` falls back to serde, which also produces the error text.
    fn decode_fast(raw: &str) -> Option<Self> {
        let (mut process_id, mut chunk, mut write_id) = (None, None, None);
        json::scan_object(raw, |key, value| match key {
            "processId" => process_id = Some(value),
            "chunk" => chunk = Some(value),
            "writeId" => write_id = Some(value),
            _ => {}
        })
        .ok()?;
        Some(Self {
            process_id: json::string_value(process_id?)?.into(),
            chunk: Bytes64(base64::decode(&json::string_value(chunk?)?).ok()?),
            write_id: match write_id {
                None | Some("null") => None,
                Some(literal) => Some(json::string_value(literal)?.into_owned()),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn both_decoders_agree(
            process_id in r#"("p"|"a\\u0062"|5|null)"#,
            chunk in r#"("aGk="|"aGk"|"\\u0061Gk="|"!"|7)"#,
            write_id in r#"(,"writeId":("1"|null|""|3))?"#,
        ) {
            let raw = format!("{{\"processId\":{process_id},\"chunk\":{chunk},\"x\":[]{write_id}}}");
            prop_assert_eq!(ProcessWriteParams::decode(&raw), params::decode(&raw));
        }
    }

    #[test]
    fn the_fast_decoder_keeps_every_member() {
        let all = ProcessWriteParams {
            process_id: "p".into(),
            chunk: Bytes64(b"content".to_vec()),
            write_id: Some("w".to_owned()),
        };
        params::tests::check_fast_decoder(&all, ProcessWriteParams::decode_fast);
    }

    #[test]
    fn errors_keep_their_texts() {
        assert_eq!(ProcessWriteParams::decode("{}").unwrap_err(), "missing field `processId`");
    }
}
