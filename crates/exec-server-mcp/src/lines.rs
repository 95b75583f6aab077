//! Collects lines of a file, as many as fit into an answer.

/// Collects from a line on; content comes in pieces of any size.
#[derive(Debug)]
pub struct Lines {
    /// The first line, from 1.
    start: usize,
    most_lines: usize,
    most_bytes: usize,
    /// The line that the next byte belongs to.
    line: usize,
    text: Vec<u8>,
    /// Where the current line begins in the text.
    line_at: usize,
    /// The last line that is collected as a whole.
    end: usize,
    is_full: bool,
    is_cut: bool,
}

/// What was collected.
#[derive(Debug, PartialEq, Eq)]
pub struct Read {
    pub text: String,
    /// The last line in the text; the one before the first if there is none.
    pub end: usize,
    /// Whether the text is the beginning of a line that is longer than an answer.
    pub is_cut: bool,
    /// Whether further lines follow.
    pub has_more: bool,
}

impl Lines {
    /// Collects `most_lines` lines from `start` on, and at most `most_bytes` bytes.
    pub fn new(start: usize, most_lines: usize, most_bytes: usize) -> Self {
        Self {
            start,
            most_lines,
            most_bytes,
            line: 1,
            text: Vec::new(),
            line_at: 0,
            end: start - 1,
            is_full: false,
            is_cut: false,
        }
    }

    /// Whether further content changes nothing.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Enters the next piece of the content.
    pub fn push(&mut self, content: &[u8]) {
        for piece in content.split_inclusive(|byte| *byte == b'\n') {
            if self.is_full {
                return;
            }
            if self.line >= self.start {
                self.collect(piece);
            }
            if piece.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    fn collect(&mut self, piece: &[u8]) {
        let room = self.most_bytes - self.text.len();
        if self.line - self.start >= self.most_lines {
            self.is_full = true;
        } else if piece.len() <= room {
            self.text.extend_from_slice(piece);
        } else if self.line_at > 0 {
            // The line has room in the next answer.
            self.text.truncate(self.line_at);
            self.is_full = true;
        } else {
            self.text.extend_from_slice(&piece[..room]);
            (self.is_full, self.is_cut, self.end) = (true, true, self.line);
        }
    }

    fn end_line(&mut self) {
        if self.line >= self.start && !self.is_full {
            (self.line_at, self.end) = (self.text.len(), self.line);
        }
        self.line += 1;
    }

    /// What was collected at the end of the content; none if it is not UTF-8.
    pub fn finish(mut self) -> Option<Read> {
        if !self.is_full && self.text.len() > self.line_at {
            self.end = self.line;
        }
        if self.is_cut {
            // Not within a character.
            let whole = match std::str::from_utf8(&self.text) {
                Err(error) if error.error_len().is_none() => error.valid_up_to(),
                _ => self.text.len(),
            };
            self.text.truncate(whole);
        }
        let text = String::from_utf8(self.text).ok()?;
        Some(Read { text, end: self.end, is_cut: self.is_cut, has_more: self.is_full })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Enters the content in pieces of each size, which must make no difference.
    fn read(content: &str, start: usize, most_lines: usize, most_bytes: usize) -> Read {
        let mut all: Vec<Read> = [1, 3, 1000]
            .map(|size| {
                let mut lines = Lines::new(start, most_lines, most_bytes);
                content.as_bytes().chunks(size).for_each(|piece| lines.push(piece));
                lines.finish().expect("it is UTF-8")
            })
            .into();
        all.dedup();
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    fn expect(text: &str, end: usize, is_cut: bool, has_more: bool) -> Read {
        Read { text: text.to_owned(), end, is_cut, has_more }
    }

    #[test]
    fn lines_are_bounded_by_number_and_size() {
        let text = "one\ntwo\nthree\nfour";
        assert_eq!(read(text, 1, 10, 100), expect(text, 4, false, false));
        assert_eq!(read(text, 2, 2, 100), expect("two\nthree\n", 3, false, true));
        assert_eq!(read(text, 4, 1, 100), expect("four", 4, false, false));
        assert_eq!(read(text, 1, 10, 9), expect("one\ntwo\n", 2, false, true));
        assert_eq!(read(text, 9, 10, 100), expect("", 8, false, false));
        assert_eq!(read("", 1, 10, 100), expect("", 0, false, false));
    }

    #[test]
    fn a_line_that_is_longer_than_an_answer_is_cut_between_characters() {
        assert_eq!(read("äöü\nx\n", 1, 10, 5), expect("äö", 1, true, true));
        assert_eq!(read("x\näöü\n", 1, 10, 5), expect("x\n", 1, false, true));
        assert_eq!(read("x\näöü\n", 2, 10, 5), expect("äö", 2, true, true));
    }

    #[test]
    fn content_that_is_not_text_is_noticed() {
        let mut lines = Lines::new(1, 10, 100);
        lines.push(b"\xff\n");
        assert_eq!(lines.finish(), None);
    }
}
