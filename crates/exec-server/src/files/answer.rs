//! Results of `fs/*` as text; the content of files goes straight into the message.

use exec_server_os::files::{FsReply, OpenFile, Patience};
use exec_server_protocol::base64;
use exec_server_protocol::limits::{MAX_MESSAGE_BYTES, MAX_WHOLE_FILE_BYTES};
use serde::Serialize;

use crate::errors::RequestError;

/// Appends a result to a message.
pub fn write(reply: FsReply, detailed: bool, text: &mut Vec<u8>) -> Result<(), RequestError> {
    match reply {
        FsReply::Done => text.extend_from_slice(b"{}"),
        FsReply::Opened(file) => write_content(&file, detailed, Patience::Disk, text)?,
        FsReply::Staged(_) => unreachable!("new content is staged for handles only"),
        FsReply::Written(response) => write_json(&response, text),
        FsReply::Metadata(response) => write_json(&response, text),
        FsReply::Canonical(response) => write_json(&response, text),
        FsReply::Listing(response) => write_json(&response, text),
        FsReply::Walked(response) => write_json(&response, text),
        FsReply::Link(response) => write_json(&response, text),
    }
    Ok(())
}

fn write_json(response: &impl Serialize, text: &mut Vec<u8>) {
    serde_json::to_writer(text, response).expect("wire types cannot fail to serialise");
}

/// How much a file adds to a message.
pub fn room_for(file: &OpenFile) -> usize {
    let size = usize::try_from(file.size().min(MAX_WHOLE_FILE_BYTES)).unwrap_or(0);
    base64::encoded_len(size) + 128
}

/// Appends the result of `fs/readFile`.
pub fn write_content(
    file: &OpenFile,
    detailed: bool,
    patience: Patience,
    text: &mut Vec<u8>,
) -> Result<(), RequestError> {
    let taken = base64::encoded_len(text.len() / 4 * 3) as u64;
    let limit = MAX_WHOLE_FILE_BYTES.saturating_sub(taken.min(MAX_MESSAGE_BYTES as u64));
    if file.size() > limit {
        return Err(RequestError::FileTooLarge);
    }
    let version = if detailed { Some(file.version_tag().map_err(system)?) } else { None };
    text.extend_from_slice(b"{\"dataBase64\":\"");
    let read = file
        .read_pieces(0, limit + 1, patience, |piece| base64::encode_into(piece, text))
        .map_err(system)?;
    if read > limit {
        return Err(RequestError::FileTooLarge);
    }
    text.push(b'"');
    if let Some(version) = version {
        text.extend_from_slice(b",\"versionTag\":");
        write_json(&version, text);
    }
    text.push(b'}');
    Ok(())
}

/// Appends the result of `fs/readBlock`.
pub fn write_block(
    file: &OpenFile,
    offset: u64,
    len: u64,
    patience: Patience,
    text: &mut Vec<u8>,
) -> Result<(), RequestError> {
    text.extend_from_slice(b"{\"chunk\":\"");
    let read = file
        .read_pieces(offset, len, patience, |piece| base64::encode_into(piece, text))
        .map_err(system)?;
    let end: &[u8] = if read < len { b"\",\"eof\":true}" } else { b"\",\"eof\":false}" };
    text.extend_from_slice(end);
    Ok(())
}

fn system(error: std::io::Error) -> RequestError {
    RequestError::Files(error.into())
}
