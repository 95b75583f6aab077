//! Writes results of `fs/*` as JSON; file content is encoded directly into the message.

use std::io;

use exec_server_fs::{Blocking, FsError, FsReply, OpenFile};
use exec_server_protocol::base64;
use exec_server_protocol::limits::{MAX_MESSAGE_BYTES, MAX_WHOLE_FILE_BYTES};
use exec_server_transport::text::MessageText;

use crate::errors::RequestError;

/// Appends a result other than file content.
pub fn write(reply: &FsReply, text: &mut MessageText) {
    reply.write_to(text).expect("content is written by hand, and a message takes everything");
}

/// An upper bound of the message's JSON besides the file content.
const AROUND_CONTENT_BYTES: usize = 256;
/// Memory for a file that reports size 0, as files in /proc do.
const UNKNOWN_SIZE_BYTES: usize = 256 * 1024;

/// The bytes that a file adds to a message; a file above the limit adds only an error.
pub fn size_of(file: &OpenFile) -> usize {
    let size = if file.size() > MAX_WHOLE_FILE_BYTES { 0 } else { file.size() };
    base64::encoded_len(usize::try_from(size).unwrap_or(0)) + AROUND_CONTENT_BYTES
}

/// The memory to reserve for the content of a file.
pub fn room_for(file: &OpenFile) -> usize {
    if file.size() == 0 { UNKNOWN_SIZE_BYTES } else { size_of(file) }
}

/// Whether content was appended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// The content is complete.
    Whole,
    /// More memory is needed than was reserved: about this many bytes.
    NoRoom(usize),
}

/// Appends the result of `fs/readFile`, unless it needs more than `room` bytes.
pub fn write_content(
    file: &OpenFile,
    detailed: bool,
    blocking: Blocking,
    room: usize,
    text: &mut MessageText,
) -> Result<Appended, RequestError> {
    let content = |room: usize| (room.saturating_sub(AROUND_CONTENT_BYTES) / 4 * 3) as u64;
    let most = MAX_WHOLE_FILE_BYTES.min(content(MAX_MESSAGE_BYTES.saturating_sub(text.len())));
    if file.size() > most {
        return Err(RequestError::FileTooLarge);
    }
    let limit = most.min(content(room));
    if file.size() > limit {
        return Ok(Appended::NoRoom(size_of(file).max(room + 1)));
    }
    let version = if detailed { Some(file.version_tag().map_err(system)?) } else { None };
    text.push("{\"dataBase64\":\"");
    let read = file
        .read_pieces(0, limit + 1, blocking, |piece| text.push_base64(piece))
        .map_err(system)?;
    if read > most {
        return Err(RequestError::FileTooLarge);
    }
    if read > limit {
        return Ok(Appended::NoRoom(room.saturating_mul(4).max(UNKNOWN_SIZE_BYTES)));
    }
    text.push("\"");
    if let Some(version) = version {
        text.push(",\"versionTag\":");
        text.push_json(&version);
    }
    text.push("}");
    Ok(Appended::Whole)
}

/// Appends the result of `fs/readBlock`.
pub fn write_block(
    file: &OpenFile,
    offset: u64,
    len: u64,
    blocking: Blocking,
    text: &mut MessageText,
) -> Result<(), RequestError> {
    text.push("{\"chunk\":\"");
    let read =
        file.read_pieces(offset, len, blocking, |piece| text.push_base64(piece)).map_err(system)?;
    text.push(if read < len { "\",\"eof\":true}" } else { "\",\"eof\":false}" });
    Ok(())
}

/// Appends the bytes of a block; returns whether the file ends in it.
pub fn write_bytes(
    file: &OpenFile,
    offset: u64,
    len: u64,
    blocking: Blocking,
    text: &mut MessageText,
) -> Result<bool, RequestError> {
    let read =
        file.read_pieces(offset, len, blocking, |piece| text.push_bytes(piece)).map_err(system)?;
    Ok(read < len)
}

/// Whether a read failed only because the content is not cached.
pub fn would_block(error: &RequestError) -> bool {
    matches!(error, RequestError::Files(FsError::System(error)) if error.kind() == io::ErrorKind::WouldBlock)
}

fn system(error: io::Error) -> RequestError {
    RequestError::Files(error.into())
}
