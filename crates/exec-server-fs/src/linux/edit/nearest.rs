//! Finds the place of a text that is most similar to a piece of text that does not occur in it.
//!
//! Lines are compared by their pairs of adjacent bytes, without the white space around them. The longest line of the
//! piece selects a few candidates; all of its lines together select one of them.

use std::collections::BTreeSet;

use crate::request::Nearest;

/// Places that are compared line by line.
const MAX_CANDIDATES: usize = 8;
/// Lines of the piece that are compared; more change the result rarely.
const MAX_LINES: usize = 50;
/// Bytes of a line that are compared, so that a file of one long line costs no more than others.
const MAX_LINE_BYTES: usize = 4096;
/// Bytes of the text in the result.
const MAX_TEXT_BYTES: usize = 400;
/// Similarity in thousandths below which a place has nothing to do with the piece.
const LEAST: u64 = 300;

/// The most similar place, if one is similar at all.
pub fn find(content: &[u8], piece: &[u8]) -> Option<Nearest> {
    let wanted: Vec<Profile> = lines(piece).take(MAX_LINES).map(Profile::of).collect();
    let anchor = (0..wanted.len()).max_by_key(|at| (wanted[*at].size, usize::MAX - at))?;
    if wanted[anchor].size == 0 {
        return None;
    }
    let mut scratch = Scratch::default();
    let mut candidates = BTreeSet::new();
    for (number, line) in lines(content).enumerate() {
        let score = wanted[anchor].similarity(line, &mut scratch);
        if score >= LEAST {
            // The earlier of two equal lines counts.
            candidates.insert((score, usize::MAX - number));
            if candidates.len() > MAX_CANDIDATES {
                candidates.pop_first();
            }
        }
    }
    let starts: BTreeSet<usize> = candidates
        .into_iter()
        .map(|(_, number)| (usize::MAX - number).saturating_sub(anchor))
        .collect();
    let last = starts.last()? + wanted.len();
    let all: Vec<&[u8]> = lines(content).take(last).collect();
    let score = |start: usize, scratch: &mut Scratch| -> u64 {
        let window = all[start..].iter();
        wanted.iter().zip(window).map(|(wanted, line)| wanted.similarity(line, scratch)).sum()
    };
    let best = starts
        .iter()
        .copied()
        .max_by_key(|start| (score(*start, &mut scratch), usize::MAX - start))?;
    let window = &all[best..all.len().min(best + wanted.len())];
    Some(Nearest { line: best as u64 + 1, text: shortened(window) })
}

fn shortened(lines: &[&[u8]]) -> String {
    let mut text = Vec::new();
    for (place, line) in lines.iter().enumerate() {
        if place > 0 {
            text.push(b'\n');
        }
        text.extend_from_slice(&line[..line.len().min(MAX_TEXT_BYTES)]);
        if text.len() >= MAX_TEXT_BYTES {
            text.truncate(MAX_TEXT_BYTES);
            return String::from_utf8_lossy(&text).trim_end_matches('\u{fffd}').to_owned() + "…";
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    text.split(|byte| *byte == b'\n')
}

/// The part of a line that is compared.
fn compared(line: &[u8]) -> &[u8] {
    let line = line.trim_ascii();
    &line[..line.len().min(MAX_LINE_BYTES)]
}

/// The set of adjacent bytes of one line.
struct Profile {
    pairs: Vec<u64>,
    size: u64,
}

const ALL_PAIRS: usize = 1 << 16;

impl Profile {
    fn of(line: &[u8]) -> Self {
        let mut pairs = vec![0; ALL_PAIRS / 64];
        let mut size = 0;
        for pair in pairs_of(compared(line)) {
            let (word, bit) = (pair / 64, 1 << (pair % 64));
            size += u64::from(pairs[word] & bit == 0);
            pairs[word] |= bit;
        }
        Self { pairs, size }
    }

    /// Twice the common pairs through the sum of both sets, in thousandths.
    fn similarity(&self, line: &[u8], scratch: &mut Scratch) -> u64 {
        scratch.round += 1;
        let (mut common, mut size) = (0, 0);
        for pair in pairs_of(compared(line)) {
            if std::mem::replace(&mut scratch.seen[pair], scratch.round) == scratch.round {
                continue;
            }
            size += 1;
            common += (self.pairs[pair / 64] >> (pair % 64)) & 1;
        }
        match self.size + size {
            // Two blank lines are equal.
            0 => 1000,
            sum => 2000 * common / sum,
        }
    }
}

/// A pair of one byte stands for a line of one byte.
fn pairs_of(line: &[u8]) -> impl Iterator<Item = usize> {
    let single = if let [byte] = line { Some(usize::from(*byte)) } else { None };
    let pairs = line.windows(2).map(|pair| usize::from(pair[0]) << 8 | usize::from(pair[1]));
    single.into_iter().chain(pairs)
}

/// Which pairs the current line has had, without clearing a table per line.
struct Scratch {
    seen: Vec<u64>,
    round: u64,
}

impl Default for Scratch {
    fn default() -> Self {
        Self { seen: vec![0; ALL_PAIRS], round: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(content: &str, piece: &str, expected: Option<(u64, &str)>) {
        let found = find(content.as_bytes(), piece.as_bytes());
        let found = found.as_ref().map(|nearest| (nearest.line, nearest.text.as_str()));
        assert_eq!(found, expected, "{piece:?}");
    }

    #[test]
    fn other_white_space_and_small_differences_are_near() {
        let content = "alpha\n\tbeta gamma\ndelta\nbeta\n";
        check(content, "    beta gamma", Some((2, "\tbeta gamma")));
        check(content, "beta gamme\ndelta", Some((2, "\tbeta gamma\ndelta")));
        check(content, "alpha\nbeta gamma\n", Some((1, "alpha\n\tbeta gamma")));
        check(content, "nothing like this", None);
        check(content, "", None);
        check("", "text", None);
    }

    #[test]
    fn all_lines_decide_between_equal_ones() {
        let content = "if a {\n  return 1;\n}\nif b {\n  return 1;\n}\n";
        check(content, "if b {\n    return 1;\n}", Some((4, "if b {\n  return 1;\n}")));
        check(content, "if a {\n    return 1;\n}", Some((1, "if a {\n  return 1;\n}")));
    }

    #[test]
    fn the_text_is_short() {
        let line = "ä".repeat(1000);
        let found = find(line.as_bytes(), "ää".as_bytes()).expect("it is similar");
        assert!(found.text.len() <= MAX_TEXT_BYTES + 4 && found.text.ends_with('…'));
    }
}
