//! A tree of files in memory, and archives of it whose bytes depend on nothing else.
//!
//! Members are sorted and owned by root, and have the time of the commit.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::rc::Rc;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};

/// Files by their path, without a leading slash; the directories in between are implied.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    /// The path of a directory ends with a slash.
    files: BTreeMap<String, File>,
}

/// A member of a tree.
#[derive(Debug, Clone)]
pub struct File {
    pub mode: u32,
    pub content: Rc<[u8]>,
}

impl Tree {
    /// Adds a file that everyone can read.
    pub fn add(&mut self, path: impl Into<String>, content: impl AsRef<[u8]>) {
        self.put(path, 0o644, content.as_ref().into());
    }

    /// Adds a program.
    pub fn add_program(&mut self, path: impl Into<String>, content: Rc<[u8]>) {
        self.put(path, 0o755, content);
    }

    /// Adds a directory that is empty or needs another mode than 755.
    pub fn add_directory(&mut self, path: &str, mode: u32) {
        self.put(format!("{path}/"), mode, Rc::default());
    }

    /// Adds all members of `other` below `prefix`, which is empty or ends with a slash.
    pub fn add_tree(&mut self, prefix: &str, other: &Tree) {
        for (path, file) in &other.files {
            self.put(format!("{prefix}{path}"), file.mode, file.content.clone());
        }
    }

    fn put(&mut self, path: impl Into<String>, mode: u32, content: Rc<[u8]>) {
        let path = path.into();
        debug_assert!(!path.starts_with('/') && !path.split('/').any(|part| part == ".."));
        let previous = self.files.insert(path, File { mode, content });
        assert!(previous.is_none(), "every path of an archive is added once");
    }

    /// The files, sorted by path.
    pub fn files(&self) -> impl Iterator<Item = (&str, &File)> {
        let files = self.files.iter().filter(|(path, _)| !path.ends_with('/'));
        files.map(|(path, file)| (path.as_str(), file))
    }

    /// Bytes of all files.
    pub fn size(&self) -> u64 {
        self.files.values().map(|file| file.content.len() as u64).sum()
    }

    /// A tar archive with `prefix` before each path, such as `package/`.
    pub fn tar(&self, prefix: &str, directories: Directories, epoch: u64) -> io::Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        let mut known = String::new();
        for (path, file) in &self.files {
            if directories == Directories::Listed {
                for directory in parents(path).filter(|it| !known.starts_with(it)) {
                    let mode = self.files.get(directory).map_or(0o755, |it| it.mode);
                    let header = header(EntryType::Directory, mode, 0, epoch);
                    append(&mut archive, header, &format!("{prefix}{directory}"), &[])?;
                }
                known.clone_from(path);
            }
            if path.ends_with('/') {
                continue;
            }
            let header = header(EntryType::Regular, file.mode, file.content.len() as u64, epoch);
            append(&mut archive, header, &format!("{prefix}{path}"), &file.content)?;
        }
        archive.into_inner()
    }
}

/// Whether an archive has entries for directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Directories {
    Listed,
    Implied,
}

/// The directories above a path, from the top, each with a slash at its end.
fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(slash, _)| &path[..=slash])
}

fn header(kind: EntryType, mode: u32, size: u64, epoch: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_mtime(epoch);
    header.set_uid(0);
    header.set_gid(0);
    header
}

fn append(
    archive: &mut tar::Builder<Vec<u8>>,
    mut header: Header,
    path: &str,
    content: &[u8],
) -> io::Result<()> {
    header.set_username("root")?;
    header.set_groupname("root")?;
    archive.append_data(&mut header, path, content)
}

/// How hard to compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// For tests.
    Fast,
    /// For releases.
    Best,
}

impl Effort {
    pub fn gzip_level(self) -> u32 {
        match self {
            Self::Fast => 1,
            Self::Best => 9,
        }
    }

    fn zstd_level(self) -> i32 {
        match self {
            Self::Fast => 1,
            Self::Best => 19,
        }
    }
}

/// Compresses as `gzip -n` does: without a name and a time.
pub fn gzip(bytes: &[u8], effort: Effort) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(effort.gzip_level()));
    encoder.write_all(bytes)?;
    encoder.finish()
}

/// Compresses as `zstd` does.
pub fn zstd(bytes: &[u8], effort: Effort) -> io::Result<Vec<u8>> {
    zstd::bulk::compress(bytes, effort.zstd_level())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(bytes: &[u8]) -> Vec<String> {
        let mut archive = tar::Archive::new(bytes);
        let entries = archive.entries().unwrap();
        entries.map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect()
    }

    #[test]
    fn an_archive_lists_each_directory_once_and_before_its_files() {
        let mut tree = Tree::default();
        tree.add("usr/share/man/a", "a");
        tree.add("usr/bin/b", "b");
        tree.add("usr/bin-extra", "c");
        tree.add("usr/bin/d", "d");
        tree.add_directory("tmp", 0o1777);
        let listed = tree.tar("", Directories::Listed, 1).unwrap();
        assert_eq!(
            names(&listed),
            [
                "tmp/",
                "usr/",
                "usr/bin-extra",
                "usr/bin/",
                "usr/bin/b",
                "usr/bin/d",
                "usr/share/",
                "usr/share/man/",
                "usr/share/man/a"
            ]
        );
        let implied = tree.tar("package/", Directories::Implied, 1).unwrap();
        assert_eq!(names(&implied)[0], "package/usr/bin-extra");
    }

    #[test]
    fn the_order_of_additions_does_not_change_the_bytes() {
        let (mut one, mut two) = (Tree::default(), Tree::default());
        one.add("a", "1");
        one.add("b/c", "2");
        two.add("b/c", "2");
        two.add("a", "1");
        let tar = |tree: &Tree| tree.tar("", Directories::Listed, 7).unwrap();
        assert_eq!(tar(&one), tar(&two));
        let gzip = |tree: &Tree| gzip(&tar(tree), Effort::Best).unwrap();
        let zstd = |tree: &Tree| zstd(&tar(tree), Effort::Best).unwrap();
        assert_eq!(gzip(&one), gzip(&two));
        assert_eq!(zstd(&one), zstd(&two));
    }
}
