//! File operations of a copy, on this machine or on a server. Paths are bytes separated by slashes.

use std::collections::BTreeSet;

use bytes::Bytes;

use super::super::failure::Failure;
use super::destination_path::DestinationPath;
use super::local::{self, LocalReader, LocalWriter};
use super::remote::{RemoteEndpoint, RemoteWriter};
use exec_server_client::FileReadStream;

/// One end of a copy; cheap to clone.
#[derive(Debug, Clone)]
pub enum Endpoint {
    /// This machine.
    Local,
    /// A server.
    Remote(RemoteEndpoint),
}

/// A path together with its endpoint.
#[derive(Debug)]
pub struct Location {
    pub side: Endpoint,
    pub path: Vec<u8>,
}

/// Metadata of a file before it is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    pub kind: Kind,
    pub size: u64,
    /// Permission bits; none if the server does not report them.
    pub mode: Option<u32>,
    /// Modification time in milliseconds since 1970.
    pub modified_ms: i64,
}

/// File types as far as a copy distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Link,
    /// A local pipe or device: written in place, never replaced.
    Stream,
    /// A socket; on a server also a pipe or a device.
    Other,
    /// A file whose name is not UTF-8, on a server that reports only the lossy name.
    Nameless,
}

/// Permission bits and times that a copy gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attributes {
    /// Permission bits for a new file; an existing file keeps its own.
    New(u32),
    /// Permission bits and time of the source (`-p`).
    Keep { mode: Option<u32>, modified_ms: i64 },
}

/// Reads a file of any size, block by block.
pub enum Reader {
    Local(LocalReader),
    Remote(FileReadStream),
}

/// Writes a file block by block; dropping it without [`Writer::finish`] discards the content.
pub enum Writer {
    Local(LocalWriter),
    Remote(RemoteWriter),
}

impl Location {
    /// The path as error messages show it.
    pub fn describe(&self) -> String {
        self.side.describe(&self.path)
    }
}

impl Endpoint {
    /// Metadata of a path, links followed; none if it does not exist.
    pub async fn stat(&self, path: &[u8]) -> Result<Option<Entry>, Failure> {
        match self {
            Self::Local => local::stat(path).await,
            Self::Remote(remote) => remote.stat(path).await,
        }
    }

    /// Entries of a directory; links are not followed.
    pub async fn list(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Entry)>, Failure> {
        match self {
            Self::Local => local::list(path).await,
            Self::Remote(remote) => remote.list(path).await,
        }
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Local => local::read_link(path).await,
            Self::Remote(remote) => remote.read_link(path).await,
        }
    }

    /// Reads a small file with one request.
    pub async fn read(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Local => local::read(path).await,
            Self::Remote(remote) => remote.read(path).await,
        }
    }

    /// Opens a file of any size for reading.
    pub async fn reader(&self, path: &[u8]) -> Result<Reader, Failure> {
        match self {
            Self::Local => local::reader(path).await.map(Reader::Local),
            Self::Remote(remote) => remote.reader(path).await.map(Reader::Remote),
        }
    }

    /// Writes a small file with one request.
    pub async fn write(
        &self,
        dest: &DestinationPath,
        content: Vec<u8>,
        attributes: Attributes,
    ) -> Result<(), Failure> {
        match self {
            Self::Local => local::write(dest, content, attributes).await,
            Self::Remote(remote) => remote.write(dest.path(), content, attributes).await,
        }
    }

    /// Opens a file of any size for writing.
    pub async fn writer(
        &self,
        dest: &DestinationPath,
        attributes: Attributes,
    ) -> Result<Writer, Failure> {
        match self {
            Self::Local => local::writer(dest, attributes).await.map(Writer::Local),
            Self::Remote(remote) => {
                remote.writer(dest.path(), attributes).await.map(Writer::Remote)
            }
        }
    }

    /// Creates a directory, unless it exists.
    pub async fn make_directory(&self, dest: &DestinationPath) -> Result<(), Failure> {
        match self {
            Self::Local => local::make_directory(dest).await,
            Self::Remote(remote) => remote.make_directory(dest.path()).await,
        }
    }

    /// Creates a symbolic link, and replaces an existing one.
    pub async fn make_link(&self, dest: &DestinationPath, target: Vec<u8>) -> Result<(), Failure> {
        match self {
            Self::Local => local::make_link(dest, target).await,
            Self::Remote(remote) => remote.make_link(dest.path(), target).await,
        }
    }

    /// Sets the permission bits and the time of a copied directory.
    pub async fn set_attributes(
        &self,
        dest: &DestinationPath,
        like: &Entry,
    ) -> Result<(), Failure> {
        let (mode, modified_ms) = (like.mode, like.modified_ms);
        match self {
            Self::Local => local::set_attributes(dest, mode, modified_ms).await,
            Self::Remote(remote) => remote.set_attributes(dest.path(), mode, modified_ms).await,
        }
    }

    /// The path as error messages show it.
    pub fn describe(&self, path: &[u8]) -> String {
        let path = super::super::format::plain(&String::from_utf8_lossy(path));
        match self {
            Self::Local => path,
            Self::Remote(remote) => format!("{}:{path}", remote.name()),
        }
    }

    /// Which of `names` are symbolic links in a directory of a server; empty for this machine.
    pub async fn links_among(
        &self,
        directory: &[u8],
        names: &BTreeSet<&[u8]>,
    ) -> Result<BTreeSet<Vec<u8>>, Failure> {
        match self {
            // Local writes go through directory descriptors, which never follow links.
            Self::Local => Ok(BTreeSet::new()),
            Self::Remote(remote) => remote.links_among(directory, names).await,
        }
    }

    /// The endpoint as messages show it.
    pub fn title(&self) -> String {
        match self {
            Self::Local => "this machine".to_owned(),
            Self::Remote(remote) => remote.title(),
        }
    }

    /// The error for a source that does not exist.
    pub fn missing(&self, path: &[u8]) -> Failure {
        let source = std::io::Error::new(std::io::ErrorKind::NotFound, "no such file or directory");
        Failure::local(self.describe(path), source)
    }
}

impl Reader {
    /// The next block; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        match self {
            Self::Local(reader) => reader.next().await,
            Self::Remote(stream) => Ok(stream.next_block().await?),
        }
    }
}

impl Writer {
    /// Appends a block.
    pub async fn write(&mut self, piece: Bytes) -> Result<(), Failure> {
        match self {
            Self::Local(writer) => writer.write(piece).await,
            Self::Remote(writer) => writer.write(piece).await,
        }
    }

    /// Moves the complete content to its final name.
    pub async fn finish(self) -> Result<(), Failure> {
        match self {
            Self::Local(writer) => writer.finish().await,
            Self::Remote(writer) => writer.finish().await,
        }
    }
}

/// Joins a directory and a name.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
    [directory, slash, name].concat()
}

/// The last component of a path; none for `/`, `.` and `..`.
pub fn name_of(path: &[u8]) -> Option<&[u8]> {
    let path = path.split(|byte| *byte == b'/').rfind(|part| !part.is_empty())?;
    (path != b"." && path != b"..").then_some(path)
}
