//! Finds the members of a request that this server does not know.
//!
//! The params are decoded a second time, so this runs only for clients that ask for the report.

use exec_server_protocol::escape_untrusted::escape_untrusted;
use exec_server_protocol::fs::{
    FsAppendParams, FsBatchParams, FsCancelSearchParams, FsCanonicalizeParams, FsCloseParams,
    FsCopyParams, FsCreateDirectoryParams, FsEditParams, FsFindParams, FsGetMetadataParams,
    FsNextPageParams, FsOpenParams, FsReadBlockParams, FsReadChangesParams, FsReadDirectoryParams,
    FsReadFileParams, FsReadLinkParams, FsRemoveParams, FsRenameParams, FsSearchParams,
    FsSetPermissionsParams, FsSymlinkParams, FsTruncateParams, FsUnwatchParams, FsWalkParams,
    FsWatchMissingParams, FsWatchParams, FsWriteBlockParams, FsWriteFileParams,
};
use exec_server_protocol::http::HttpRequestParams;
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::ProcessStartParams;
use serde::de::DeserializeOwned;
use serde_ignored::Path;

/// Bounds the report, because a request may have thousands of unknown members.
const MAX_NAMES: usize = 32;
/// Bounds each reported name, because the client chooses it.
const MAX_NAME_CHARS: usize = 128;

/// The unknown members as paths below the params, such as `limits.memory`.
pub fn members(method: Method, raw: &str) -> Vec<String> {
    let mut found = Vec::new();
    match method {
        Method::ProcessStart => find::<ProcessStartParams>(raw, "", &mut found),
        Method::HttpRequest => find::<HttpRequestParams>(raw, "", &mut found),
        Method::FsBatch => find_in_batch(raw, &mut found),
        method => find_in_file_call(method, raw, "", &mut found),
    }
    found
}

fn find_in_file_call(method: Method, raw: &str, prefix: &str, found: &mut Vec<String>) {
    let find = match method {
        Method::FsReadFile => find::<FsReadFileParams>,
        Method::FsOpen => find::<FsOpenParams>,
        Method::FsReadBlock => find::<FsReadBlockParams>,
        Method::FsWriteBlock => find::<FsWriteBlockParams>,
        Method::FsClose => find::<FsCloseParams>,
        Method::FsWriteFile => find::<FsWriteFileParams>,
        Method::FsAppend => find::<FsAppendParams>,
        Method::FsTruncate => find::<FsTruncateParams>,
        Method::FsEdit => find::<FsEditParams>,
        Method::FsCreateDirectory => find::<FsCreateDirectoryParams>,
        Method::FsGetMetadata => find::<FsGetMetadataParams>,
        Method::FsCanonicalize => find::<FsCanonicalizeParams>,
        Method::FsReadDirectory => find::<FsReadDirectoryParams>,
        Method::FsWalk => find::<FsWalkParams>,
        Method::FsRemove => find::<FsRemoveParams>,
        Method::FsCopy => find::<FsCopyParams>,
        Method::FsRename => find::<FsRenameParams>,
        Method::FsSymlink => find::<FsSymlinkParams>,
        Method::FsReadLink => find::<FsReadLinkParams>,
        Method::FsSetPermissions => find::<FsSetPermissionsParams>,
        Method::FsWatch => find::<FsWatchParams>,
        Method::FsReadChanges => find::<FsReadChangesParams>,
        Method::FsUnwatch => find::<FsUnwatchParams>,
        Method::FsSearch => find::<FsSearchParams>,
        Method::FsFind => find::<FsFindParams>,
        Method::FsNextPage => find::<FsNextPageParams>,
        Method::FsCancelSearch => find::<FsCancelSearchParams>,
        Method::FsWatchMissing => find::<FsWatchMissingParams>,
        _ => return,
    };
    find(raw, prefix, found);
}

fn find_in_batch(raw: &str, found: &mut Vec<String>) {
    find::<FsBatchParams>(raw, "", found);
    let Ok(batch) = serde_json::from_str::<FsBatchParams>(raw) else { return };
    for (place, request) in batch.requests.iter().enumerate() {
        if let Some(method) = Method::by_name(&request.method) {
            let prefix = format!("requests.{place}.params.");
            find_in_file_call(method, request.params.get(), &prefix, found);
        }
    }
}

/// A decode error is ignored here, because the handler rejects the request.
fn find<T: DeserializeOwned>(raw: &str, prefix: &str, found: &mut Vec<String>) {
    let mut json = serde_json::Deserializer::from_str(raw);
    let _ = serde_ignored::deserialize::<_, _, T>(&mut json, |path| {
        if found.len() < MAX_NAMES {
            found.push(escape_untrusted(&format!("{prefix}{}", dotted(&path)), MAX_NAME_CHARS));
        }
    });
}

/// The names and indexes of a path, without the decoder's own steps such as options and newtypes.
fn dotted(path: &Path) -> String {
    let (parent, step) = match path {
        Path::Root => return String::new(),
        Path::Seq { parent, index } => (parent, index.to_string()),
        Path::Map { parent, key } => (parent, key.clone()),
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => return dotted(parent),
    };
    let before = dotted(parent);
    if before.is_empty() { step } else { format!("{before}.{step}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_members_are_found_at_any_depth() {
        let start = r#"{"processId":"p","argv":["x"],"cwd":"file:///","env":{"NEW":"1"},"tty":false,"colour":1,
            "size":{"rows":1,"cols":2,"depth":3},"sandbox":{"anything":1}}"#;
        assert_eq!(members(Method::ProcessStart, start), ["colour", "size.depth"]);
        let write = r#"{"path":"file:///f","dataBase64":"","sandbox":{"x":1},"modeBit":1}"#;
        assert_eq!(members(Method::FsWriteFile, write), ["modeBit"]);
        let batch = r#"{"requests":[{"method":"fs/readFile","params":{"path":"file:///f","a":1},"b":2}],"c":3}"#;
        assert_eq!(members(Method::FsBatch, batch), ["requests.0.b", "c", "requests.0.params.a"]);
        let request = r#"{"method":"GET","url":"http://a/","requestId":"","headers":[{"name":"a","value":"b","c":1}]}"#;
        assert_eq!(members(Method::HttpRequest, request), ["headers.0.c"]);
        assert_eq!(members(Method::ProcessRead, r#"{"x":1}"#), [""; 0]);
        assert_eq!(members(Method::FsOpen, r#"["h","file:///a"]"#), [""; 0]);
    }

    #[test]
    fn every_fs_method_reports_unknown_members() {
        for method in Method::ALL {
            if method.name().starts_with("fs/") {
                // The unknown member is reported before the decoder fails on missing members.
                assert_eq!(members(*method, r#"{"unknown":1}"#), ["unknown"], "{}", method.name());
            }
        }
    }

    #[test]
    fn names_are_few_and_short() {
        let many: Vec<String> =
            (0..100).map(|at| format!("\"{at}{}\":1", "x".repeat(500))).collect();
        let found = members(Method::FsClose, &format!("{{{}}}", many.join(",")));
        assert_eq!(found.len(), MAX_NAMES);
        assert!(found.iter().all(|name| name.chars().count() <= MAX_NAME_CHARS + 1));
    }
}
