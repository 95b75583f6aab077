//! Selects the first names of a directory in byte order, with bounded memory.

use std::ffi::{CStr, CString};

use rustix::fs::FileType;

/// A name with the type in its directory entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    pub text: CString,
    pub reported: FileType,
}

/// Collects the smallest `wanted` names of all that were added.
///
/// Invariant: at most twice the wanted number is held.
pub struct FirstNames {
    wanted: usize,
    names: Vec<Name>,
}

impl FirstNames {
    /// Selects the first `wanted` names.
    pub fn new(wanted: usize) -> Self {
        Self { wanted, names: Vec::new() }
    }

    /// Adds a candidate.
    pub fn add(&mut self, text: &CStr, reported: FileType) {
        // Pruning only at twice the size makes the cost per name constant on average.
        if self.names.len() >= self.wanted.saturating_mul(2) {
            self.drop_surplus();
        }
        self.names.push(Name { text: text.to_owned(), reported });
    }

    /// The names in order.
    pub fn into_sorted(mut self) -> Vec<Name> {
        self.drop_surplus();
        self.names.sort_unstable_by(|a, b| a.text.cmp(&b.text));
        self.names
    }

    fn drop_surplus(&mut self) {
        if self.names.len() > self.wanted {
            self.names.select_nth_unstable_by(self.wanted, |a, b| a.text.cmp(&b.text));
            self.names.truncate(self.wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_names_are_kept_in_the_order_of_their_bytes() {
        for wanted in [0, 1, 2, 3, 50, 99, 100, 101, 1000] {
            let mut names = FirstNames::new(wanted);
            let mut held = 0;
            // 37 and 100 have no common factor, so every number comes once, in a mixed order.
            for i in 0..100 {
                let text = CString::new(format!("{:02}", i * 37 % 100)).unwrap();
                names.add(&text, FileType::RegularFile);
                held = held.max(names.names.len());
            }
            let expected = (0..wanted.min(100)).map(|i| format!("{i:02}"));
            let sorted = names.into_sorted();
            assert!(sorted.iter().map(|name| name.text.to_str().unwrap()).eq(expected), "{wanted}");
            assert!(held <= (wanted * 2).max(1), "{wanted} wanted, {held} held");
        }
    }

    #[test]
    fn a_name_comes_before_the_names_that_begin_with_it_and_bytes_count_as_numbers() {
        let mut names = FirstNames::new(10);
        for text in [c"b", c"\xff", c"ab", c"a", c"B", c"a\x01"] {
            names.add(text, FileType::RegularFile);
        }
        let sorted: Vec<_> = names.into_sorted().into_iter().map(|name| name.text).collect();
        assert_eq!(sorted, [c"B", c"a", c"a\x01", c"ab", c"b", c"\xff"].map(CStr::to_owned));
    }
}
