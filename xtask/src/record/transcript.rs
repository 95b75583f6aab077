//! Turns the output of a program on a terminal into coloured lines with the times at which they appeared.
//!
//! The demo prints whole lines with colours (SGR) and moves the cursor nowhere, so that this is all a terminal has to do.

use std::time::Duration;

/// The lines of a run.
pub struct Transcript {
    pub lines: Vec<Line>,
    /// When the program ended.
    pub end: Duration,
    columns: usize,
    /// Bytes of a character or an escape sequence that is not complete.
    rest: Vec<u8>,
    style: Style,
    /// Whether the next character begins a line.
    is_at_start: bool,
}

/// A line of the terminal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Line {
    pub time: Duration,
    pub spans: Vec<(Style, String)>,
}

/// How characters look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Style {
    #[default]
    Plain,
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
}

impl Line {
    /// The characters without their looks.
    pub fn text(&self) -> String {
        self.spans.iter().map(|(_, text)| text.as_str()).collect()
    }

    fn width(&self) -> usize {
        self.spans.iter().map(|(_, text)| text.chars().count()).sum()
    }
}

impl Transcript {
    pub fn new(columns: usize) -> Self {
        let (lines, rest) = (Vec::new(), Vec::new());
        Self { lines, end: Duration::ZERO, columns, rest, style: Style::Plain, is_at_start: true }
    }

    /// Adds output of this time.
    pub fn add(&mut self, bytes: &[u8], time: Duration) {
        self.rest.extend_from_slice(bytes);
        let complete = complete_part(&self.rest);
        let text: Vec<u8> = self.rest.drain(..complete).collect();
        let text = String::from_utf8_lossy(&text).into_owned();
        let mut letters = text.chars();
        while let Some(letter) = letters.next() {
            match letter {
                '\x1b' => {
                    let sequence: String =
                        letters.by_ref().take_while(|it| !it.is_ascii_alphabetic()).collect();
                    self.style = style(sequence.trim_start_matches('['));
                }
                '\n' => {
                    // An empty line appears as well.
                    self.line(time);
                    self.is_at_start = true;
                }
                letter if letter.is_control() => {}
                letter => self.put(letter, time),
            }
        }
    }

    /// The program has ended.
    pub fn finish(&mut self, time: Duration) {
        self.end = time;
    }

    fn put(&mut self, letter: char, time: Duration) {
        if self.lines.last().is_some_and(|line| line.width() >= self.columns) {
            self.is_at_start = true;
        }
        let style = self.style;
        let line = self.line(time);
        match line.spans.last_mut() {
            Some((last, text)) if *last == style => text.push(letter),
            _ => line.spans.push((style, letter.to_string())),
        }
    }

    /// The current line, which begins now if there is none.
    fn line(&mut self, time: Duration) -> &mut Line {
        if self.is_at_start {
            self.lines.push(Line { time, spans: Vec::new() });
            self.is_at_start = false;
        }
        self.lines.last_mut().expect("a line was just added")
    }
}

/// The part that has whole characters and whole escape sequences.
fn complete_part(bytes: &[u8]) -> usize {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.len(),
        // A character that goes on in the next block; other invalid bytes are replaced.
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Err(_) => bytes.len(),
    };
    match bytes[..text].iter().rposition(|byte| *byte == 0x1b) {
        Some(escape) if !bytes[escape..text].iter().any(u8::is_ascii_alphabetic) => escape,
        _ => text,
    }
}

fn style(codes: &str) -> Style {
    match codes {
        "1" => Style::Bold,
        "2" => Style::Dim,
        "31" => Style::Red,
        "32" => Style::Green,
        "33" => Style::Yellow,
        _ => Style::Plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_their_time_and_looks_however_the_output_is_cut() {
        let output = "\x1b[1mone\x1b[0m é\r\n\r\nabcdefghijkl\n".as_bytes();
        let whole = {
            let mut transcript = Transcript::new(10);
            transcript.add(output, Duration::ZERO);
            transcript.lines
        };
        let texts: Vec<String> = whole.iter().map(Line::text).collect();
        assert_eq!(texts, ["one é", "", "abcdefghij", "kl"]);
        assert_eq!(whole[0].spans[0], (Style::Bold, "one".to_owned()));
        let mut transcript = Transcript::new(10);
        for byte in output {
            transcript.add(&[*byte], Duration::ZERO);
        }
        assert_eq!(transcript.lines, whole);
    }
}
