//! Escapes control characters in log fields.

use std::fmt::{self, Debug, Write as _};
use std::io::{self, Write};

use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

/// Fields for people: `name=value`, and the message without its name.
pub fn text_fields() -> impl for<'writer> FormatFields<'writer> + Send + Sync + 'static {
    let format =
        |writer: &mut Writer<'_>, field: &tracing::field::Field, value: &dyn Debug| match field
            .name()
        {
            "message" => write!(Escaped(writer), "{value:?}"),
            name => write!(Escaped(writer), "{name}={value:?}"),
        };
    debug_fn(format).delimited(" ")
}

/// Passes text on with its control characters escaped.
struct Escaped<'a, W>(&'a mut W);

impl<W: fmt::Write> fmt::Write for Escaped<'_, W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive(char::is_control) {
            match part.chars().next_back().filter(|last| last.is_control()) {
                None => self.0.write_str(part)?,
                Some(last) => {
                    self.0.write_str(&part[..part.len() - last.len_utf8()])?;
                    write!(self.0, "{}", last.escape_debug())?;
                }
            }
        }
        Ok(())
    }
}

/// Passes JSON lines on with the control characters escaped that JSON does not escape itself.
///
/// They can only be in strings, because elsewhere JSON has no characters beyond ASCII.
pub struct JsonLines<W>(W);

impl<W: Write> JsonLines<W> {
    /// Lines for this writer.
    pub fn new(writer: W) -> Self {
        Self(writer)
    }
}

impl<W: Write> Write for JsonLines<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // A line is written whole, so no character is split.
        let Ok(text) = std::str::from_utf8(bytes) else { return self.0.write(bytes) };
        let is_left = |letter: char| letter.is_control() && !letter.is_ascii_control();
        let is_left = |letter: char| is_left(letter) || letter == '\u{7f}';
        if !text.contains(is_left) {
            return self.0.write(bytes);
        }
        let mut escaped = String::with_capacity(text.len() + 16);
        for letter in text.chars() {
            if is_left(letter) {
                write!(escaped, "\\u{:04x}", u32::from(letter)).expect("a string takes everything");
            } else {
                escaped.push(letter);
            }
        }
        self.0.write_all(escaped.as_bytes()).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_no_control_characters_left() {
        let mut text = String::new();
        let hostile = "a\nb\r\u{1b}[31mc\u{9b}d\u{7f}é\t\u{0}";
        write!(Escaped(&mut text), "{hostile}").unwrap();
        assert_eq!(text, r"a\nb\r\u{1b}[31mc\u{9b}d\u{7f}é\t\0");
    }

    #[test]
    fn escaped_json_keeps_its_meaning() {
        let mut line = Vec::new();
        let value = serde_json::json!({"a": "x\u{9b}y\u{7f}z\n\u{1b}é"});
        writeln!(JsonLines::new(&mut line), "{value}").unwrap();
        let line = String::from_utf8(line).unwrap();
        assert!(!line.trim_end_matches('\n').contains(char::is_control), "{line:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&line).unwrap(), value);
    }
}
