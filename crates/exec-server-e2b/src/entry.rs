//! What is told about a file.

use exec_server_client::protocol::fs::FsGetMetadataResponse;
use exec_server_client::{ExecServerError, ExecutorFileSystem};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::file_metadata::FileMetadata;
use crate::paths::{name_of, text_of, uri_of};
use crate::refusal::Refusal;

/// The entry of an absolute path.
pub async fn stat(
    fs: &ExecutorFileSystem,
    path: &str,
    metadata: &FileMetadata,
) -> Result<Value, Refusal> {
    let target = match fs.metadata(uri_of(path)).await {
        Ok(found) if !found.is_symlink => return Ok(entry(path, &found, None, metadata)),
        Ok(found) => Some(found),
        // A link that leads nowhere is still an entry.
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error.into()),
    };
    link(fs, path, target.as_ref(), metadata).await
}

/// The entry of a link.
pub async fn link(
    fs: &ExecutorFileSystem,
    path: &str,
    target: Option<&FsGetMetadataResponse>,
    metadata: &FileMetadata,
) -> Result<Value, Refusal> {
    let own = fs.symlink_metadata(uri_of(path)).await?;
    let place = match fs.canonicalize(uri_of(path)).await {
        Ok(place) => Some(text_of(&place)),
        Err(ExecServerError::Server { .. }) => {
            own.details.as_ref().and_then(|details| details.link_target.clone())
        }
        Err(error) => return Err(error.into()),
    };
    let mut entry = entry(path, &own, target, metadata);
    entry["isSymlink"] = true.into();
    entry["symlinkTarget"] = place.into();
    Ok(entry)
}

/// The entry of something whose metadata is known; for a link also that of its target.
pub fn entry(
    path: &str,
    own: &FsGetMetadataResponse,
    target: Option<&FsGetMetadataResponse>,
    metadata: &FileMetadata,
) -> Value {
    let facts = target.unwrap_or(own);
    let kind = match (facts.is_directory, own.is_symlink && target.is_none()) {
        (true, _) => "FILE_TYPE_DIRECTORY",
        (false, true) => "FILE_TYPE_SYMLINK",
        (false, false) => "FILE_TYPE_FILE",
    };
    let mut entry = json!({
        "name": name_of(path),
        "type": kind,
        "path": path,
        "size": own.size.to_string(),
        "modifiedTime": rfc3339(own.modified_at_ms),
    });
    if let Some(details) = &own.details {
        let letter = if own.is_symlink {
            'L'
        } else if own.is_directory {
            'd'
        } else {
            '-'
        };
        entry["mode"] = (details.mode & 0o777).into();
        entry["permissions"] = permissions(letter, details.mode).into();
        let name = |name: &Option<String>, id: u32| name.clone().unwrap_or_else(|| id.to_string());
        entry["owner"] = name(&details.owner_name, details.uid).into();
        entry["group"] = name(&details.group_name, details.gid).into();
        if let Some(found) = metadata.of(path, details.inode) {
            entry["metadata"] = json!(found);
        }
    }
    entry
}

fn permissions(letter: char, mode: u32) -> String {
    let mut text = String::from(letter);
    for shift in [6, 3, 0] {
        for (bit, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
            text.push(if mode >> shift & bit != 0 { letter } else { '-' });
        }
    }
    text
}

/// A time in Unix milliseconds as text.
pub fn rfc3339(millis: i64) -> String {
    let time = OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000);
    let time = time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    time.format(&Rfc3339).expect("a time of four-digit years has this form")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_and_times_have_their_usual_form() {
        assert_eq!(permissions('-', 0o644), "-rw-r--r--");
        assert_eq!(permissions('d', 0o1751), "drwxr-x--x");
        assert_eq!(rfc3339(1_700_000_000_250), "2023-11-14T22:13:20.25Z");
    }
}
