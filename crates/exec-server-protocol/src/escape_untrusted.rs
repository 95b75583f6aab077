//! Escapes control characters in untrusted text and truncates it.

/// Escapes control and invisible characters; keeps at most `max` characters.
pub fn escape_untrusted(text: &str, max: usize) -> String {
    let mut shown = String::new();
    for (count, letter) in text.chars().enumerate() {
        if count == max {
            shown.push('…');
            break;
        }
        if letter.is_control() || is_invisible(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// Bidirectional controls, zero-width characters and tags.
fn is_invisible(letter: char) -> bool {
    matches!(letter,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_long_text_is_truncated() {
        for (text, shown) in [
            ("plain ü 漢", "plain ü 漢"),
            ("\u{1b}[2Jgone\r\n", "\\u{1b}[2Jgone\\r\\n"),
            ("a\u{202e}b\u{200b}\u{9b}31m", "a\\u{202e}b\\u{200b}\\u{9b}31m"),
            ("123456789012", "1234567890…"),
        ] {
            assert_eq!(escape_untrusted(text, if shown.ends_with('…') { 10 } else { 100 }), shown);
        }
    }
}
