//! What can be done with files, here or there. Paths are bytes with slashes.

use bytes::Bytes;

use super::super::failure::Failure;
use super::here::{self, LocalReader, LocalWriter};
use super::there::{RemoteWriter, There};
use exec_server_client::FileReadStream;

/// One end of a copy; cheap to clone.
#[derive(Debug, Clone)]
pub enum Side {
    /// This machine.
    Here,
    /// A server.
    There(There),
}

/// A place on one side.
#[derive(Debug)]
pub struct Location {
    /// Which side.
    pub side: Side,
    /// Where there.
    pub path: Vec<u8>,
}

/// What is known about something before it is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Its size in bytes.
    pub size: u64,
    /// Its permission bits.
    pub mode: u32,
    /// When its content last changed, in milliseconds since 1970.
    pub modified_ms: i64,
}

/// What can be copied, and what not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A pipe, a socket, a device.
    Other,
}

/// What a copy is like beside its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attributes {
    /// The permission bits for a file that is new; one that was there keeps its own.
    New(u32),
    /// The permission bits and the time of the original.
    Keep {
        /// The bits.
        mode: u32,
        /// The time.
        modified_ms: i64,
    },
}

/// Content, piece by piece.
pub enum Reader {
    /// From this machine.
    Here(LocalReader),
    /// From a server.
    There(FileReadStream),
}

/// New content, piece by piece; without [`Writer::finish`] it never happened.
pub enum Writer {
    /// On this machine.
    Here(LocalWriter),
    /// On a server.
    There(RemoteWriter),
}

impl Location {
    /// For messages.
    pub fn describe(&self) -> String {
        self.side.describe(&self.path)
    }
}

impl Side {
    /// What is at a path, with links followed; none if nothing is.
    pub async fn look(&self, path: &[u8]) -> Result<Option<Entry>, Failure> {
        match self {
            Self::Here => here::look(path).await,
            Self::There(there) => there.look(path).await,
        }
    }

    /// What is in a directory, links as links.
    pub async fn list(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Entry)>, Failure> {
        match self {
            Self::Here => here::list(path).await,
            Self::There(there) => there.list(path).await,
        }
    }

    /// The text of a link.
    pub async fn read_link(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Here => here::read_link(path).await,
            Self::There(there) => there.read_link(path).await,
        }
    }

    /// The whole of a small file.
    pub async fn read(&self, path: &[u8]) -> Result<Vec<u8>, Failure> {
        match self {
            Self::Here => here::read(path).await,
            Self::There(there) => there.read(path).await,
        }
    }

    /// A file of any size.
    pub async fn reader(&self, path: &[u8]) -> Result<Reader, Failure> {
        match self {
            Self::Here => here::reader(path).await.map(Reader::Here),
            Self::There(there) => there.reader(path).await.map(Reader::There),
        }
    }

    /// A small file, at once.
    pub async fn write(
        &self,
        path: &[u8],
        content: Vec<u8>,
        attributes: Attributes,
    ) -> Result<(), Failure> {
        match self {
            Self::Here => here::write(path, content, attributes).await,
            Self::There(there) => there.write(path, content, attributes).await,
        }
    }

    /// A file of any size.
    pub async fn writer(&self, path: &[u8], attributes: Attributes) -> Result<Writer, Failure> {
        match self {
            Self::Here => here::writer(path, attributes).await.map(Writer::Here),
            Self::There(there) => there.writer(path, attributes).await.map(Writer::There),
        }
    }

    /// A directory, if it is not there yet.
    pub async fn make_directory(&self, path: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Here => here::make_directory(path).await,
            Self::There(there) => there.make_directory(path).await,
        }
    }

    /// A link, in place of one that is there.
    pub async fn make_link(&self, path: &[u8], target: Vec<u8>) -> Result<(), Failure> {
        match self {
            Self::Here => here::make_link(path, target).await,
            Self::There(there) => there.make_link(path, target).await,
        }
    }

    /// Gives a directory the permission bits and the time of another.
    pub async fn set_attributes(&self, path: &[u8], like: &Entry) -> Result<(), Failure> {
        match self {
            Self::Here => here::set_attributes(path, like.mode, like.modified_ms).await,
            Self::There(there) => there.set_attributes(path, like.mode, like.modified_ms).await,
        }
    }

    /// For messages.
    pub fn describe(&self, path: &[u8]) -> String {
        let path = super::super::show::plain(&String::from_utf8_lossy(path));
        match self {
            Self::Here => path,
            Self::There(there) => format!("{}:{path}", there.name()),
        }
    }

    /// There is nothing to copy.
    pub fn missing(&self, path: &[u8]) -> Failure {
        let source = std::io::Error::new(std::io::ErrorKind::NotFound, "no such file or directory");
        Failure::here(self.describe(path), source)
    }
}

impl Reader {
    /// The next piece; none at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        match self {
            Self::Here(reader) => reader.next().await,
            Self::There(stream) => Ok(stream.next_block().await?),
        }
    }
}

impl Writer {
    /// Takes the next piece.
    pub async fn write(&mut self, piece: Bytes) -> Result<(), Failure> {
        match self {
            Self::Here(writer) => writer.write(piece).await,
            Self::There(writer) => writer.write(piece).await,
        }
    }

    /// Puts the content in its place.
    pub async fn finish(self) -> Result<(), Failure> {
        match self {
            Self::Here(writer) => writer.finish().await,
            Self::There(writer) => writer.finish().await,
        }
    }
}

/// A path below a directory.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory.ends_with(b"/") { b"" } else { b"/" };
    [directory, slash, name].concat()
}

/// The last part of a path; none for `/`, `.` and `..`, which have no name of their own.
pub fn name_of(path: &[u8]) -> Option<&[u8]> {
    let path = path.split(|byte| *byte == b'/').rfind(|part| !part.is_empty())?;
    (path != b"." && path != b"..").then_some(path)
}
