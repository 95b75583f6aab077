//! Applies edits to text in memory.

use exec_server_protocol::fs::FsAppliedEdit;
use exec_server_protocol::limits::MAX_EDITED_FILE_BYTES;
use memchr::memmem;

use super::nearest;
use crate::request::{EditRefusal, FsError, TextEdit};

/// Lines of occurrences that an error names.
const MAX_LINES: usize = 10;

/// Applies the edits one after the other; an edit that does not fit fails all.
pub fn apply(
    mut content: Vec<u8>,
    edits: &[TextEdit],
) -> Result<(Vec<u8>, Vec<FsAppliedEdit>), FsError> {
    let mut applied = Vec::with_capacity(edits.len());
    for (index, edit) in edits.iter().enumerate() {
        let found = find(&content, edit.old.as_bytes());
        let fits = if edit.replace_all { found.count > 0 } else { found.count == 1 };
        if !fits {
            return Err(FsError::Edit(Box::new(refusal(index, &content, edit, &found))));
        }
        let line = line_at(&content, found.first);
        content = replace(&content, edit, found.non_overlapping)?;
        applied.push(FsAppliedEdit { replacements: found.non_overlapping, line });
    }
    Ok((content, applied))
}

/// The occurrences of a text.
struct Found {
    /// Occurrences without overlaps: what `replaceAll` replaces.
    non_overlapping: u64,
    /// At least two if a second occurrence overlaps the first one.
    count: u64,
    first: usize,
}

fn find(content: &[u8], old: &[u8]) -> Found {
    let finder = memmem::Finder::new(old);
    let Some(first) = finder.find(content) else {
        return Found { non_overlapping: 0, count: 0, first: 0 };
    };
    let non_overlapping = finder.find_iter(content).count() as u64;
    let has_another = finder.find(&content[first + 1..]).is_some();
    let count = if has_another { non_overlapping.max(2) } else { 1 };
    Found { non_overlapping, count, first }
}

fn replace(content: &[u8], edit: &TextEdit, times: u64) -> Result<Vec<u8>, FsError> {
    let (old, new) = (edit.old.as_bytes(), edit.new.as_bytes());
    let kept = content.len() as u64 - times * old.len() as u64;
    let size = times.checked_mul(new.len() as u64).and_then(|added| added.checked_add(kept));
    let size = size.filter(|size| *size <= MAX_EDITED_FILE_BYTES).ok_or(FsError::TooLargeToEdit)?;
    let mut result = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
    let mut rest = 0;
    for place in memmem::find_iter(content, old) {
        result.extend_from_slice(&content[rest..place]);
        result.extend_from_slice(new);
        rest = place + old.len();
    }
    result.extend_from_slice(&content[rest..]);
    Ok(result)
}

fn refusal(index: usize, content: &[u8], edit: &TextEdit, found: &Found) -> EditRefusal {
    let old = edit.old.as_bytes();
    let places = memmem::find_iter(content, old).take(MAX_LINES);
    let (mut lines, mut counted, mut line) = (Vec::new(), 0, 1);
    for place in places {
        line += newlines(&content[counted..place]);
        counted = place;
        lines.push(line);
    }
    let nearest = if found.count == 0 { nearest::find(content, old) } else { None };
    EditRefusal { index: index as u64, occurrences: found.count, lines, nearest }
}

/// The number of the line that holds this byte, from 1.
fn line_at(content: &[u8], place: usize) -> u64 {
    1 + newlines(&content[..place])
}

fn newlines(text: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', text).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(old: &str, new: &str, replace_all: bool) -> TextEdit {
        TextEdit { old: old.to_owned(), new: new.to_owned(), replace_all }
    }

    fn check(content: &str, edits: &[TextEdit], expected: &str) -> Vec<(u64, u64)> {
        let (result, applied) = apply(content.into(), edits).expect("the edits fit");
        assert_eq!(String::from_utf8(result).unwrap(), expected);
        applied.iter().map(|edit| (edit.replacements, edit.line)).collect()
    }

    fn refused(content: &str, edits: &[TextEdit]) -> EditRefusal {
        match apply(content.into(), edits) {
            Err(FsError::Edit(refusal)) => *refusal,
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn edits_see_the_result_of_the_edits_before_them() {
        let edits = [edit("b", "c", false), edit("c", "d", true)];
        assert_eq!(check("a\nb\nc\n", &edits, "a\nd\nd\n"), [(1, 2), (2, 2)]);
        assert_eq!(check("one", &[edit("one", "", false)], ""), [(1, 1)]);
        assert_eq!(check("aaaa", &[edit("aa", "b", true)], "bb"), [(2, 1)]);
    }

    #[test]
    fn text_that_is_not_unique_is_refused_with_its_lines() {
        let refusal = refused("x\ny\nx x\n", &[edit("y", "z", false), edit("x", "", false)]);
        assert_eq!((refusal.index, refusal.occurrences), (1, 3));
        assert_eq!(refusal.lines, [1, 3, 3]);
        assert_eq!(refusal.nearest, None);
        // Either place could be meant, although `replaceAll` would find only one.
        assert_eq!(refused("aaa", &[edit("aa", "b", false)]).occurrences, 2);
    }

    #[test]
    fn missing_text_is_refused_with_the_nearest_place() {
        let content = "fn main() {\n    println!(\"hello\");\n}\n\nfn other() {}\n";
        let refusal = refused(content, &[edit("  println!(\"helo\");", "", false)]);
        assert_eq!((refusal.occurrences, refusal.lines.len()), (0, 0));
        let nearest = refusal.nearest.expect("there is a similar line");
        assert_eq!((nearest.line, nearest.text.as_str()), (2, "    println!(\"hello\");"));
    }

    #[test]
    fn the_result_is_bounded() {
        let content = "a".repeat(1 << 20);
        let edits = [edit("a", &"b".repeat(1 << 10), true)];
        assert!(matches!(apply(content.into(), &edits), Err(FsError::TooLargeToEdit)));
    }
}
