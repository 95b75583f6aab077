//! Results of requests about files.

use std::fs::File;
use std::io;

use exec_server_protocol::fs::{
    FsCanonicalizeResponse, FsEditResponse, FsGetMetadataResponse, FsReadDirectoryResponse,
    FsReadLinkResponse, FsWalkResponse, FsWriteFileResponse,
};

use crate::platform::{OpenFile, StagedFile};

/// Result of an [`FsRequest`](crate::FsRequest).
#[derive(Debug)]
pub enum FsReply {
    /// Success without a result.
    Done,
    /// An open file to read from.
    Opened(OpenFile),
    /// Staged content to fill and publish.
    Staged(StagedFile),
    /// The content was written; the second field is to be dropped after the reply is sent.
    Written(FsWriteFileResponse, Leftovers),
    /// Result of `fs/edit`; the second field is to be dropped after the reply is sent.
    Edited(FsEditResponse, Leftovers),
    /// Result of `fs/getMetadata`.
    Metadata(FsGetMetadataResponse),
    /// Result of `fs/canonicalize`.
    Canonical(FsCanonicalizeResponse),
    /// Result of `fs/readDirectory`.
    Listing(FsReadDirectoryResponse),
    /// Result of `fs/walk`.
    Walked(FsWalkResponse),
    /// Result of `fs/readLink`.
    Link(FsReadLinkResponse),
    /// A result that a file worker has already serialized as JSON.
    Text(String),
}

impl From<()> for FsReply {
    fn from((): ()) -> Self {
        Self::Done
    }
}

impl FsReply {
    /// Writes the JSON result for the client; open and staged files have none and give an error.
    pub fn write_to(&self, mut writer: impl io::Write) -> io::Result<()> {
        match self {
            Self::Opened(_) | Self::Staged(_) => {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            Self::Done => return writer.write_all(b"{}"),
            Self::Text(text) => return writer.write_all(text.as_bytes()),
            Self::Written(response, _) => serde_json::to_writer(writer, response),
            Self::Edited(response, _) => serde_json::to_writer(writer, response),
            Self::Metadata(response) => serde_json::to_writer(writer, response),
            Self::Canonical(response) => serde_json::to_writer(writer, response),
            Self::Listing(response) => serde_json::to_writer(writer, response),
            Self::Walked(response) => serde_json::to_writer(writer, response),
            Self::Link(response) => serde_json::to_writer(writer, response),
        }
        .map_err(io::Error::from)
    }
}

/// Resources to drop after the reply to a write is sent: closing the last reference to a replaced file
/// can block on the disk.
#[derive(Debug, Default)]
pub struct Leftovers {
    pub(crate) _old: Option<File>,
    pub(crate) _data: Vec<u8>,
}
