//! Results of `fs/*` as text; the content of files goes straight into the message.

use std::io;

use exec_server_os::files::{FsError, FsReply, OpenFile, Patience};
use exec_server_protocol::base64;
use exec_server_protocol::limits::{MAX_MESSAGE_BYTES, MAX_WHOLE_FILE_BYTES};
use exec_server_transport::text::MessageText;

use crate::errors::RequestError;

/// Appends a result to a message.
pub fn write(reply: &FsReply, detailed: bool, text: &mut MessageText) -> Result<(), RequestError> {
    if let FsReply::Opened(file) = reply {
        return write_content(file, detailed, Patience::Disk, text);
    }
    reply
        .write_to(text)
        .expect("new content is staged for handles only, and a message takes everything");
    Ok(())
}

/// What a message has beside the content of a file.
const AROUND_CONTENT_BYTES: usize = 256;

/// How much a file adds to a message.
pub fn room_for(file: &OpenFile) -> usize {
    let size = usize::try_from(file.size().min(MAX_WHOLE_FILE_BYTES)).unwrap_or(0);
    base64::encoded_len(size) + AROUND_CONTENT_BYTES
}

/// Appends the result of `fs/readFile`.
pub fn write_content(
    file: &OpenFile,
    detailed: bool,
    patience: Patience,
    text: &mut MessageText,
) -> Result<(), RequestError> {
    let room = MAX_MESSAGE_BYTES.saturating_sub(text.len() + AROUND_CONTENT_BYTES);
    let limit = MAX_WHOLE_FILE_BYTES.min((room / 4 * 3) as u64);
    if file.size() > limit {
        return Err(RequestError::FileTooLarge);
    }
    let version = if detailed { Some(file.version_tag().map_err(system)?) } else { None };
    text.push("{\"dataBase64\":\"");
    let read = file
        .read_pieces(0, limit + 1, patience, |piece| text.push_base64(piece))
        .map_err(system)?;
    if read > limit {
        return Err(RequestError::FileTooLarge);
    }
    text.push("\"");
    if let Some(version) = version {
        text.push(",\"versionTag\":");
        text.push_json(&version);
    }
    text.push("}");
    Ok(())
}

/// Appends the result of `fs/readBlock`.
pub fn write_block(
    file: &OpenFile,
    offset: u64,
    len: u64,
    patience: Patience,
    text: &mut MessageText,
) -> Result<(), RequestError> {
    text.push("{\"chunk\":\"");
    let read =
        file.read_pieces(offset, len, patience, |piece| text.push_base64(piece)).map_err(system)?;
    text.push(if read < len { "\",\"eof\":true}" } else { "\",\"eof\":false}" });
    Ok(())
}

/// Whether the content could not be read without waiting.
pub fn would_block(error: &RequestError) -> bool {
    matches!(error, RequestError::Files(FsError::System(error)) if error.kind() == io::ErrorKind::WouldBlock)
}

fn system(error: io::Error) -> RequestError {
    RequestError::Files(error.into())
}
