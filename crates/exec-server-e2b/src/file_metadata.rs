//! Metadata that uploads give to files.
//!
//! The server has no extended attributes, so they are kept here, for the life of the facade. A file that was replaced by
//! other means has another inode, and loses them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use http::HeaderMap;

use crate::refusal::{Code, Refusal};

const PREFIX: &str = "x-metadata-";
/// The bytes of all names and values of a file, as in the block of extended attributes that E2B uses.
const MAX_BYTES: usize = 4096;
/// Each file has at most 4 KiB, so that this is 40 MiB.
const MAX_FILES: usize = 10_000;

/// The metadata of uploaded files by their path.
#[derive(Default)]
pub struct FileMetadata {
    by_path: Mutex<BTreeMap<String, Kept>>,
}

struct Kept {
    inode: u64,
    pairs: Pairs,
}

/// Names and values.
pub type Pairs = BTreeMap<String, String>;

impl FileMetadata {
    /// Replaces the metadata of a file.
    pub fn set(&self, path: &str, inode: u64, pairs: Pairs) -> Result<(), Refusal> {
        let mut files = self.lock();
        files.remove(path);
        if pairs.is_empty() {
            return Ok(());
        }
        if files.len() >= MAX_FILES {
            let text = format!("{MAX_FILES} files have metadata already");
            return Err(Refusal::new(Code::ResourceExhausted, text));
        }
        files.insert(path.to_owned(), Kept { inode, pairs });
        Ok(())
    }

    /// The metadata of a file, if it is still the same one.
    pub fn of(&self, path: &str, inode: u64) -> Option<Pairs> {
        let files = self.lock();
        files.get(path).filter(|kept| kept.inode == inode).map(|kept| kept.pairs.clone())
    }

    /// A file or directory has a new path.
    pub fn handle_move(&self, from: &str, to: &str) {
        let mut files = self.lock();
        let below = format!("{from}/");
        let is_moved = |path: &&String| *path == from || path.starts_with(&below);
        let moved: Vec<String> = files.keys().filter(is_moved).cloned().collect();
        for path in moved {
            let kept = files.remove(&path).expect("the path was listed above");
            files.insert(format!("{to}{}", &path[from.len()..]), kept);
        }
    }

    /// A file or directory is gone.
    pub fn handle_remove(&self, path: &str) {
        let below = format!("{path}/");
        self.lock().retain(|kept, _| kept != path && !kept.starts_with(&below));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Kept>> {
        self.by_path.lock().expect("no holder panics")
    }
}

/// The metadata of an upload.
pub fn from_headers(headers: &HeaderMap) -> Result<Pairs, Refusal> {
    let mut pairs = Pairs::new();
    let mut bytes = 0;
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(PREFIX) else { continue };
        let value = value.to_str().ok().filter(|text| text.chars().all(|c| matches!(c, ' '..='~')));
        let value = value.ok_or_else(|| {
            Refusal::invalid(format!("the metadata {key:?} is not printable ASCII"))
        })?;
        if key.is_empty() {
            return Err(Refusal::invalid("metadata without a name"));
        }
        bytes += key.len() + value.len();
        pairs.insert(key.to_owned(), value.to_owned());
    }
    if bytes > MAX_BYTES {
        return Err(Refusal::invalid(format!("the metadata has more than {MAX_BYTES} bytes")));
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_follows_moves_and_leaves_with_its_file() {
        let metadata = FileMetadata::default();
        let pairs = Pairs::from([("a".to_owned(), "1".to_owned())]);
        metadata.set("/d/file", 7, pairs.clone()).unwrap();
        assert_eq!(metadata.of("/d/file", 7), Some(pairs.clone()));
        assert_eq!(metadata.of("/d/file", 8), None);
        metadata.handle_move("/d", "/e");
        assert_eq!(metadata.of("/e/file", 7), Some(pairs));
        metadata.handle_remove("/e");
        assert_eq!(metadata.of("/e/file", 7), None);
    }

    #[test]
    fn metadata_is_printable_and_small() {
        let check = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert("x-metadata-k", http::HeaderValue::from_bytes(value).unwrap());
            from_headers(&headers)
        };
        assert_eq!(check(b"v").unwrap(), Pairs::from([("k".to_owned(), "v".to_owned())]));
        assert!(check("ö".as_bytes()).is_err());
        assert!(check(&[b'x'; 4096]).is_err());
    }
}
