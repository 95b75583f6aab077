//! Marks the files that `service install` writes, so that files of others and changes by hand are recognised.

use aws_lc_rs::digest;
use exec_server::protocol::hex;

const OWNER: &str =
    "# Written by `exec-server service install`; `systemctl edit` makes changes that it keeps.";
const DIGEST: &str = "# sha256 of the lines below: ";

/// An existing file compared with the one to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// There is no file.
    Missing,
    /// The file is the one to write.
    Same,
    /// The file is ours, from other arguments or another version.
    Outdated,
    /// The file is ours, and was changed by hand.
    Edited,
    /// The file has another origin.
    Foreign,
}

/// The text with its mark.
pub fn marked(text: &str) -> String {
    format!("{OWNER}\n{DIGEST}{}\n{text}", sum(text))
}

/// Compares an existing file with the text to write, both with marks.
pub fn compare(existing: Option<&str>, wanted: &str) -> State {
    match existing {
        None => State::Missing,
        Some(text) if text == wanted => State::Same,
        Some(text) => origin(text),
    }
}

/// Whether a file is ours: outdated, edited or foreign.
pub fn origin(existing: &str) -> State {
    let rest = existing.strip_prefix(OWNER).and_then(|rest| rest.strip_prefix('\n'));
    let rest = rest.and_then(|rest| rest.strip_prefix(DIGEST));
    match rest.map(|rest| rest.split_once('\n').unwrap_or((rest, ""))) {
        None => State::Foreign,
        Some((noted, text)) if noted == sum(text) => State::Outdated,
        Some(_) => State::Edited,
    }
}

fn sum(text: &str) -> String {
    hex::encode(digest::digest(&digest::SHA256, text.as_bytes()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_others_and_changes_by_hand_are_recognised() {
        let wanted = marked("[Service]\nA=1\n");
        assert_eq!(compare(None, &wanted), State::Missing);
        assert_eq!(compare(Some(&wanted), &wanted), State::Same);
        assert_eq!(compare(Some(&marked("[Service]\nA=0\n")), &wanted), State::Outdated);
        let edited = wanted.replace("A=1", "A=2");
        assert_eq!(compare(Some(&edited), &wanted), State::Edited);
        assert_eq!(compare(Some("[Service]\nA=1\n"), &wanted), State::Foreign);
        assert_eq!(compare(Some(OWNER), &wanted), State::Foreign);
    }
}
