//! Detects escape sequences such as `~.` in typed input, as ssh does.
//!
//! The escape character counts only at the beginning of a line, and is held until the next key.

/// The escape character; `None` disables escape sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EscapeChar(Option<u8>);

impl EscapeChar {
    /// Default of `--escape-char`.
    pub const DEFAULT: &str = "~";

    /// The character as the user types it.
    pub fn name(self) -> String {
        match self.0 {
            None => "none".to_owned(),
            Some(byte @ 0..0x20) => format!("^{}", char::from(byte + 0x40)),
            Some(byte) => char::from(byte).to_string(),
        }
    }
}

/// A text that is no escape character.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no escape character; use one character, ^X for Ctrl-X, or none")]
pub struct EscapeCharError(String);

impl std::str::FromStr for EscapeChar {
    type Err = EscapeCharError;

    fn from_str(text: &str) -> Result<Self, EscapeCharError> {
        match text.as_bytes() {
            b"none" => Ok(Self(None)),
            [byte] if byte.is_ascii_graphic() => Ok(Self(Some(*byte))),
            [b'^', letter @ (b'@'..=b'_' | b'a'..=b'z')] => Ok(Self(Some(letter & 0x1f))),
            _ => Err(EscapeCharError(text.to_owned())),
        }
    }
}

/// Action of an escape sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escape {
    /// Leave at once; the process keeps running.
    Leave,
    /// Detach, as the detach keys do.
    Detach,
    /// Suspend this program until its shell continues it.
    Suspend,
    /// List the escape sequences.
    Help,
}

/// A part of the typed input.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes for the process.
    Bytes(Vec<u8>),
    /// A local action.
    Escape(Escape),
}

/// Removes escape sequences from typed input.
#[derive(Debug)]
pub struct EscapeWatch {
    character: Option<u8>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    LineStart,
    InLine,
    /// The escape character was typed at the beginning of a line, and is held.
    Escaped,
}

const CTRL_Z: u8 = 0x1a;

impl EscapeWatch {
    /// Watches for sequences of `character`.
    pub fn new(character: EscapeChar) -> Self {
        Self { character: character.0, state: State::LineStart }
    }

    /// Handles typed bytes.
    pub fn handle_typed(&mut self, typed: &[u8]) -> Vec<Piece> {
        let Some(character) = self.character else { return vec![Piece::Bytes(typed.to_vec())] };
        let mut pieces = Vec::new();
        let mut bytes = Vec::new();
        for &byte in typed {
            if self.state == State::LineStart && byte == character {
                self.state = State::Escaped;
                continue;
            }
            let escape = match (self.state, byte) {
                (State::Escaped, b'.') => Some(Escape::Leave),
                (State::Escaped, b'd') => Some(Escape::Detach),
                (State::Escaped, b'?') => Some(Escape::Help),
                (State::Escaped, CTRL_Z) => Some(Escape::Suspend),
                _ => None,
            };
            if let Some(escape) = escape {
                if !bytes.is_empty() {
                    pieces.push(Piece::Bytes(std::mem::take(&mut bytes)));
                }
                pieces.push(Piece::Escape(escape));
                self.state = State::LineStart;
                continue;
            }
            // A doubled escape character is sent once.
            if self.state == State::Escaped && byte != character {
                bytes.push(character);
            }
            bytes.push(byte);
            self.state =
                if matches!(byte, b'\r' | b'\n') { State::LineStart } else { State::InLine };
        }
        if !bytes.is_empty() {
            pieces.push(Piece::Bytes(bytes));
        }
        pieces
    }
}

/// The help text of `~?`.
pub fn help(character: EscapeChar) -> String {
    let name = character.name();
    [
        "escape sequences, after Enter:".to_owned(),
        format!("  {name}.   leave at once, also when the connection is lost; the command runs on"),
        format!("  {name}d   detach; the server keeps the command"),
        format!("  {name}^Z  suspend this client"),
        format!("  {name}?   this list"),
        format!("  {name}{name}   send one {name}"),
    ]
    .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escape_counts_at_the_beginning_of_a_line() {
        check("~", &[b"~."], "[leave]");
        check("~", &[b"ls\r~."], "ls\\r[leave]");
        check("~", &[b"ls\r", b"~", b"."], "ls\\r[leave]");
        check("~", &[b"ls\n~d"], "ls\\n[detach]");
        check("~", &[b"~?~."], "[help][leave]");
        check("~", &[b"~\x1als"], "[suspend]ls");
        check("^]", &[b"\x1d."], "[leave]");
    }

    #[test]
    fn text_that_resembles_an_escape_passes_unchanged() {
        check("~", &[b"ls ~."], "ls ~.");
        check("~", &[b"~/bin"], "~/bin");
        check("~", &[b"~", b"/bin"], "~/bin");
        check("~", &[b"~\r~."], "~\\r[leave]");
        check("none", &[b"\r~."], "\\r~.");
        check("^]", &[b"\r~."], "\\r~.");
    }

    #[test]
    fn the_character_twice_is_sent_once() {
        check("~", &[b"~~."], "~.");
        check("~", &[b"\r~~~."], "\\r~~.");
    }

    #[test]
    fn characters_are_written_as_ssh_writes_them() {
        assert_eq!("~".parse(), Ok(EscapeChar(Some(b'~'))));
        assert_eq!("^]".parse(), Ok(EscapeChar(Some(0x1d))));
        assert_eq!("^a".parse(), Ok(EscapeChar(Some(1))));
        assert_eq!("none".parse(), Ok(EscapeChar(None)));
        assert_eq!(EscapeChar(Some(0x1d)).name(), "^]");
        for wrong in ["", "~~", "^1", "\u{e9}", "\n"] {
            assert!(wrong.parse::<EscapeChar>().is_err(), "{wrong:?}");
        }
    }

    fn check(character: &str, typed: &[&[u8]], expected: &str) {
        let mut watch = EscapeWatch::new(character.parse().unwrap());
        let mut text = String::new();
        for piece in typed.iter().flat_map(|typed| watch.handle_typed(typed)) {
            match piece {
                Piece::Bytes(bytes) => text.push_str(&bytes.escape_ascii().to_string()),
                Piece::Escape(escape) => {
                    text.push_str(&format!("[{escape:?}]").to_lowercase());
                }
            }
        }
        assert_eq!(text, expected, "{character} {typed:?}");
    }
}
