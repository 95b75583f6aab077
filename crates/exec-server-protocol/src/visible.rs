//! Texts of others as they can be shown: they do nothing to a terminal, stay on one line, and come to an end.

/// The text with everything invisible written out, and no longer than `max` characters of it.
pub fn visible(text: &str, max: usize) -> String {
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

/// What changes how its neighbours look, or looks like nothing.
fn is_invisible(letter: char) -> bool {
    matches!(letter,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_somebody_else_does_nothing_to_a_terminal_and_comes_to_an_end() {
        for (text, shown) in [
            ("plain ü 漢", "plain ü 漢"),
            ("\u{1b}[2Jgone\r\n", "\\u{1b}[2Jgone\\r\\n"),
            ("a\u{202e}b\u{200b}\u{9b}31m", "a\\u{202e}b\\u{200b}\\u{9b}31m"),
            ("123456789012", "1234567890…"),
        ] {
            assert_eq!(visible(text, if shown.ends_with('…') { 10 } else { 100 }), shown);
        }
    }
}
