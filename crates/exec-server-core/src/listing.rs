//! Checks the names in a server's directory listing before they become part of a path.
//!
//! Owner: the client call that lists the directory.
//! Invariant: every admitted name is one path component, and an exact name is admitted once.

use std::collections::HashSet;

/// A client keeps a listing in memory, about 200 bytes per entry.
pub const MAX_ENTRIES: usize = 2_000_000;
/// Linux allows 255 bytes and no common file system more than 1024.
pub const MAX_NAME_BYTES: usize = 4096;

/// Why a listing cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadListing {
    /// An entry without a name.
    #[error("a directory entry has an empty name")]
    Empty,
    /// `.` or `..`.
    #[error("a directory entry is named `{0}`")]
    Dots(String),
    /// A name with a slash.
    #[error("the name {0:?} of a directory entry contains a slash")]
    Slash(String),
    /// A name with a NUL byte.
    #[error("the name {0:?} of a directory entry contains a NUL byte")]
    Nul(String),
    /// A name longer than any file system allows.
    #[error("the name of a directory entry is longer than {MAX_NAME_BYTES} bytes")]
    TooLong,
    /// Two entries of one directory with the same name.
    #[error("the directory entry {0:?} is listed twice")]
    Duplicate(String),
    /// A URI whose last component differs from the name.
    #[error("the directory entry {name:?} has the address of {address:?}")]
    Address {
        /// The name as text.
        name: String,
        /// Last component of the URI.
        address: String,
    },
    /// More entries than [`MAX_ENTRIES`].
    #[error("a directory has more than {MAX_ENTRIES} entries")]
    TooMany,
    /// A page without entries that announces another page.
    #[error("an empty page of a directory announces another page")]
    EmptyPage,
}

/// Names of one directory that were admitted so far.
#[derive(Debug, Default)]
pub struct Listing {
    seen: HashSet<Vec<u8>>,
    count: usize,
}

impl Listing {
    /// Checks the next entry and returns its exact name.
    ///
    /// `address` is the last component of the entry's URI. Without one, a name with U+FFFD may stand for several files.
    pub fn handle_entry(
        &mut self,
        text: &str,
        address: Option<&[u8]>,
    ) -> Result<Vec<u8>, BadListing> {
        let name = match address {
            Some(address) if String::from_utf8_lossy(address) == text => address,
            Some(address) => {
                let address = String::from_utf8_lossy(address).into_owned();
                return Err(BadListing::Address { name: text.to_owned(), address });
            }
            None => text.as_bytes(),
        };
        check_name(name)?;
        self.count += 1;
        if self.count > MAX_ENTRIES {
            return Err(BadListing::TooMany);
        }
        let is_exact = address.is_some() || !text.contains(char::REPLACEMENT_CHARACTER);
        if is_exact && !self.seen.insert(name.to_vec()) {
            return Err(BadListing::Duplicate(text.to_owned()));
        }
        Ok(name.to_vec())
    }

    /// Checks the end of a page; unique names bound the number of pages that are not empty.
    pub fn handle_page_end(&self, entries: usize, has_next: bool) -> Result<(), BadListing> {
        if has_next && entries == 0 { Err(BadListing::EmptyPage) } else { Ok(()) }
    }
}

/// Whether a name is one path component.
pub fn check_name(name: &[u8]) -> Result<(), BadListing> {
    let text = || String::from_utf8_lossy(name).into_owned();
    match name {
        b"" => Err(BadListing::Empty),
        b"." | b".." => Err(BadListing::Dots(text())),
        name if name.len() > MAX_NAME_BYTES => Err(BadListing::TooLong),
        name if name.contains(&b'/') => Err(BadListing::Slash(text())),
        name if name.contains(&0) => Err(BadListing::Nul(text())),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_component_and_unique() {
        let mut listing = Listing::default();
        let mut admit = |text: &str| listing.handle_entry(text, None).map(|_| ());
        assert_eq!(admit(""), Err(BadListing::Empty));
        for name in [".", ".."] {
            assert_eq!(admit(name), Err(BadListing::Dots(name.to_owned())));
        }
        for name in ["/", "../x", "a/../../x", "/etc/passwd", "a/"] {
            assert_eq!(admit(name), Err(BadListing::Slash(name.to_owned())));
        }
        assert_eq!(admit("a\0b"), Err(BadListing::Nul("a\0b".to_owned())));
        assert_eq!(admit(&"a".repeat(MAX_NAME_BYTES + 1)), Err(BadListing::TooLong));
        for name in ["a", "...", ".a", "a..", "..a", "a b", "\u{1b}[2J", "\\"] {
            assert_eq!(admit(name), Ok(()), "{name}");
        }
        assert_eq!(admit("a"), Err(BadListing::Duplicate("a".to_owned())));
    }

    #[test]
    fn an_address_gives_the_bytes_of_its_own_name_only() {
        let mut listing = Listing::default();
        assert_eq!(listing.handle_entry("bad\u{fffd}", Some(b"bad\xff")), Ok(b"bad\xff".to_vec()));
        assert_eq!(listing.handle_entry("bad\u{fffd}", Some(b"bad\xfe")), Ok(b"bad\xfe".to_vec()));
        let again = listing.handle_entry("bad\u{fffd}", Some(b"bad\xfe"));
        assert_eq!(again, Err(BadListing::Duplicate("bad\u{fffd}".to_owned())));
        for address in [&b"other"[..], b"", b".."] {
            let refused = listing.handle_entry("name", Some(address));
            assert!(matches!(refused, Err(BadListing::Address { .. })), "{address:?}");
        }
        // A server that gives no addresses lists both files under one text.
        let mut plain = Listing::default();
        assert!(plain.handle_entry("bad\u{fffd}", None).is_ok());
        assert!(plain.handle_entry("bad\u{fffd}", None).is_ok());
    }

    #[test]
    fn pages_end() {
        let listing = Listing::default();
        assert_eq!(listing.handle_page_end(0, true), Err(BadListing::EmptyPage));
        assert_eq!(listing.handle_page_end(0, false), Ok(()));
        assert_eq!(listing.handle_page_end(1, true), Ok(()));
    }
}
