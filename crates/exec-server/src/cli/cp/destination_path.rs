//! Destination of a copy: a path that the user named, and components below it that come from the source.

use super::endpoint::join;

/// A path in two parts, because links in what the user named are followed and links below it are not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationPath {
    path: Vec<u8>,
    root_len: usize,
}

impl DestinationPath {
    /// Exactly the path that the user named.
    pub fn named(path: Vec<u8>) -> Self {
        Self { root_len: path.len(), path }
    }

    /// An entry of this directory; the caller has checked that `name` is a single component.
    pub fn child(&self, name: &[u8]) -> Self {
        Self { path: join(&self.path, name), root_len: self.root_len }
    }

    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// The part that the user named.
    pub fn root(&self) -> &[u8] {
        &self.path[..self.root_len]
    }

    /// The components below the root.
    pub fn below(&self) -> impl Iterator<Item = &[u8]> {
        self.path[self.root_len..].split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }

    pub fn is_below(&self) -> bool {
        self.below().next().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_that_the_user_named_is_kept() {
        let dest = DestinationPath::named(b"a/b".to_vec());
        assert!(!dest.is_below());
        let below = dest.child(b"c").child(b"d e");
        assert_eq!((below.path(), below.root()), (&b"a/b/c/d e"[..], &b"a/b"[..]));
        assert_eq!(below.below().collect::<Vec<_>>(), [&b"c"[..], b"d e"]);
        let root = DestinationPath::named(b"/".to_vec()).child(b"x");
        assert_eq!((root.path(), root.root()), (&b"/x"[..], &b"/"[..]));
        assert_eq!(root.below().collect::<Vec<_>>(), [b"x"]);
    }
}
