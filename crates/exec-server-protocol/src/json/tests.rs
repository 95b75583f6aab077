use proptest::prelude::*;

use super::*;

fn scan(text: &str) -> Result<Vec<(String, String)>, JsonError> {
    let mut members = Vec::new();
    scan_object(text, |key, value| members.push((key.to_owned(), value.to_owned())))?;
    Ok(members)
}

#[test]
fn members_are_found_with_their_raw_text() {
    let members = scan(" {\"a\" : [1, {\"b\":null}] ,\"\\u0063\":\"x\\\"y\"}\n").unwrap();
    assert_eq!(members[0], ("a".into(), "[1, {\"b\":null}]".into()));
    assert_eq!(members[1], ("c".into(), "\"x\\\"y\"".into()));
}

#[test]
fn anything_but_one_object_is_refused() {
    for text in ["[]", "[{}]", "1", "\"x\"", "null", "true"] {
        assert_eq!(scan(text), Err(JsonError::NotAnObject), "{text}");
    }
    for text in [
        "",
        "  ",
        "not-json",
        "{} {}",
        "{",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{a:1}",
        "\u{feff}{}",
    ] {
        assert!(matches!(scan(text), Err(JsonError::Syntax { .. })), "{text}");
    }
    for value in [
        "NaN",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "\"\u{1}\"",
        "\"\\x\"",
        "\"\\ud800\"",
        "\"\\ud800\\u0041\"",
        "tru",
    ] {
        assert!(
            matches!(scan(&format!("{{\"a\":{value}}}")), Err(JsonError::Syntax { .. })),
            "{value}"
        );
    }
}

#[test]
fn a_duplicate_key_is_found_at_any_depth_and_behind_escapes() {
    let duplicate = |text: &str| scan(text) == Err(JsonError::DuplicateKey("a".into()));
    assert!(duplicate(r#"{"a":1,"a":2}"#));
    assert!(duplicate(r#"{"x":[{"y":{"a":1,"b":2,"\u0061":3}}]}"#));
    assert!(scan(r#"{"a":{"a":{"a":1}},"b":{"a":1}}"#).is_ok());
    let many: Vec<String> = (0..100).map(|n| format!("\"k{n}\":{n}")).collect();
    assert!(scan(&format!("{{{}}}", many.join(","))).is_ok());
    assert!(scan(&format!("{{{},\"k50\":1}}", many.join(","))).is_err());
    assert!(scan(&format!("{{{},\"k3\":1}}", many.join(","))).is_err());
}

#[test]
fn depth_and_values_are_bounded() {
    let nested = |levels: usize| format!("{{\"a\":{}{}}}", "[".repeat(levels), "]".repeat(levels));
    assert!(scan(&nested(126)).is_ok());
    assert_eq!(scan(&nested(127)), Err(JsonError::TooDeep));
    assert_eq!(scan(&nested(1_000_000)), Err(JsonError::TooDeep));
    let wide = |values: usize| format!("{{\"a\":[{}]}}", vec!["1"; values].join(","));
    assert!(scan(&wide(MAX_JSON_VALUES - 2)).is_ok());
    assert_eq!(scan(&wide(MAX_JSON_VALUES - 1)), Err(JsonError::TooManyValues));
}

#[test]
fn control_characters_are_found_wherever_they_hide() {
    for place in [0, 1, 255, 256, 257, 1000] {
        let mut text = "x".repeat(1001);
        text.replace_range(place..=place, "\n");
        assert!(scan(&format!("{{\"a\":\"{text}\"}}")).is_err(), "at {place}");
    }
}

#[test]
fn every_special_byte_is_found_at_every_place_whatever_its_neighbours_are() {
    for length in [0, 1, 7, 8, 9, 31, 32, 33, 40, 300] {
        for plain in [b' ', b'!', b'#', b'[', b']', 0x7f, 0x80, 0xa2, 0xdc, 0xff] {
            let mut bytes = vec![plain; length];
            assert_eq!(find_special(&bytes), None, "{length} {plain}");
            for place in 0..length.min(50) {
                for special in [b'"', b'\\', 0, 1, 0x1f] {
                    bytes[place] = special;
                    assert_eq!(find_special(&bytes), Some(place), "{length} {plain} {special}");
                }
                bytes[place] = plain;
            }
        }
    }
}

proptest! {
    #[test]
    fn the_first_special_byte_is_found(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let special = |byte: &u8| *byte == b'"' || *byte == b'\\' || *byte < 0x20;
        prop_assert_eq!(find_special(&bytes), bytes.iter().position(special));
    }

    #[test]
    fn agrees_with_a_full_parser_on_near_json(text in r#"[\{\}\[\]",:0-9a-c\\u \-\.eE]{0,24}"#) {
        // A number too large for a float is valid JSON, so acceptance is compared on the raw text.
        let raw = serde_json::from_str::<&serde_json::value::RawValue>(&text);
        match scan(&text) {
            Ok(_) => prop_assert_eq!(raw.unwrap().get().as_bytes().first(), Some(&b'{')),
            Err(JsonError::DuplicateKey(_) | JsonError::NotAnObject) => prop_assert!(raw.is_ok()),
            Err(_) => prop_assert!(serde_json::from_str::<serde_json::Value>(&text).is_err()),
        }
    }

    #[test]
    fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = scan(&String::from_utf8_lossy(&bytes));
    }
}
