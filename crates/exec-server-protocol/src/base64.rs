//! Base64: the standard alphabet with padding for the wire, the URL alphabet without padding for tokens.

use base64_turbo::{STANDARD, URL_SAFE_NO_PAD};

/// Why a base64 text was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Base64Error {
    /// A character outside the standard alphabet.
    #[error("Invalid symbol {symbol}, offset {offset}.")]
    Symbol {
        /// The byte that was found.
        symbol: u8,
        /// Its position in the text.
        offset: usize,
    },
    /// The padding is missing or misplaced.
    #[error("Invalid padding")]
    Padding,
}

/// Appends `bytes` as base64 to `text`.
pub fn encode_into(bytes: &[u8], text: &mut Vec<u8>) {
    let start = text.len();
    text.resize(start + encoded_len(bytes.len()), 0);
    encode_to(bytes, &mut text[start..]);
}

/// Writes `bytes` as base64 to `text`, which must have the exact length.
pub fn encode_to(bytes: &[u8], text: &mut [u8]) {
    let written = STANDARD.encode_slice(bytes, text).expect("the caller made room");
    debug_assert_eq!(written, encoded_len(bytes.len()));
}

/// The base64 text of `bytes`.
pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Length of the base64 text of `len` bytes.
pub const fn encoded_len(len: usize) -> usize {
    len.div_ceil(3) * 4
}

/// Decodes `text`.
pub fn decode(text: &str) -> Result<Vec<u8>, Base64Error> {
    STANDARD.decode(text).map_err(|_| explain(text.as_bytes()))
}

/// The base64url text of `bytes`, without padding.
pub fn encode_url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes base64url `text` without padding; `None` if it is invalid.
pub fn decode_url(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Finds the error in a text that the fast decoder rejected.
fn explain(text: &[u8]) -> Base64Error {
    let body = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let is_symbol = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'+' || *byte == b'/';
    match body.iter().position(|byte| !is_symbol(byte)) {
        Some(offset) => Base64Error::Symbol { symbol: body[offset], offset },
        None => Base64Error::Padding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_symbol_outside_the_alphabet_is_named_with_its_place() {
        assert_eq!(decode("!!!!").unwrap_err().to_string(), "Invalid symbol 33, offset 0.");
        assert_eq!(decode("ab-_").unwrap_err(), Base64Error::Symbol { symbol: b'-', offset: 2 });
    }

    #[test]
    fn urls_have_an_alphabet_of_their_own() {
        assert_eq!(encode_url(&[0xfb, 0xff, 1]), "-_8B");
        assert_eq!(decode_url("-_8B").unwrap(), [0xfb, 0xff, 1]);
        assert_eq!(decode_url(&encode_url(b"a")).unwrap(), b"a");
        assert!(decode_url("+/8B").is_none());
    }

    #[test]
    fn padding_is_required_and_bytes_round_trip() {
        assert_eq!(decode("YQ").unwrap_err(), Base64Error::Padding);
        assert_eq!(decode("YQ==").unwrap(), b"a");
        for len in 0..200usize {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            assert_eq!(encode(&bytes).len(), encoded_len(len));
            assert_eq!(decode(&encode(&bytes)).unwrap(), bytes);
        }
    }
}
