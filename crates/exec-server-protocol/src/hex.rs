//! Bytes as hexadecimal digits, two each.

/// The digits of `bytes`, in lower case.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes `text`; `None` if it is not pairs of hexadecimal digits.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    // Checked digit by digit, because the number parser below would accept a sign.
    if !text.len().is_multiple_of(2) || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_round_trip_and_other_text_is_rejected() {
        assert_eq!(encode(&[0, 1, 254, 255]), "0001feff");
        assert_eq!(decode("0001FEff"), Some(vec![0, 1, 254, 255]));
        for bad in ["0", "+1", "zz", "é", "0 "] {
            assert_eq!(decode(bad), None, "{bad}");
        }
    }
}
