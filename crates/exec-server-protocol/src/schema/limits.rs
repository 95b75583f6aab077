//! The limits of the protocol as the schema lists them.

use serde_json::{Map, Value, json};

use crate::limits::*;

const SOURCE: &str = include_str!("../limits.rs");

macro_rules! limits {
    ($($name:ident)*) => {
        /// Every limit by its name: its value, and what it bounds.
        pub fn values() -> Map<String, Value> {
            let all = [$((stringify!($name), $name as u64),)*];
            let row = |(name, value)| (str::to_owned(name), json!({"value": value, "description": description(name)}));
            all.into_iter().map(row).collect()
        }
    };
}

limits! {
    MAX_JSON_VALUES
    MAX_JSON_DEPTH
    MAX_MESSAGE_BYTES
    MAX_REQUEST_ID_BYTES
    MAX_CLIENT_NAME_BYTES
    MAX_PROCESS_ID_BYTES
    MAX_ERROR_MESSAGE_BYTES
    MAX_FRAME_BYTES
    MAX_OUTPUT_CHUNK_BYTES
    DEFAULT_RETAINED_OUTPUT_BYTES
    MAX_RETAINED_CHUNKS
    REMEMBERED_WRITE_IDS
    MAX_QUEUED_STDIN_BYTES
    MAX_WAITING_STDIN_BYTES
    MAX_WAITING_STDIN_WRITES
    MAX_CAPABILITY_ROOTS
    MAX_SNAPSHOT_SCOPE_BYTES
    MAX_FILE_BLOCK_BYTES
    MAX_WHOLE_FILE_BYTES
    MAX_FILE_HANDLES
    MAX_HANDLE_ID_BYTES
    MAX_DIRECTORY_ENTRIES
    MAX_DETAILED_ENTRIES
    MAX_TEXT_EDITS
    MAX_EDITED_FILE_BYTES
    MAX_SEARCHES
    MAX_SEARCH_ID_BYTES
    MAX_PATTERN_BYTES
    MAX_SEARCH_GLOBS
    DEFAULT_PAGE_SIZE
    MAX_PAGE_SIZE
    MAX_PAGE_BYTES
    MAX_CONTEXT_LINES
    MAX_MATCH_TEXT_BYTES
    MAX_SEARCHED_LINE_BYTES
    DEFAULT_SEARCH_MS
    MAX_SEARCH_MS
    MAX_WATCHES
    MAX_WATCHED_DIRECTORIES
    DEFAULT_COALESCE_MS
    MAX_COALESCE_MS
    MAX_CHANGES_WAIT_MS
    MAX_WALK_DEPTH
    MAX_WALK_DIRECTORIES
    MAX_WALK_ENTRIES
    MAX_WALK_BYTES
    WALK_ITEM_BYTES
    MAX_WATCHED_PATHS
    MAX_HTTP_EXCHANGES
    MAX_HTTP_HELD_BYTES
    MAX_HTTP_DELTA_BYTES
    MAX_HTTP_REDIRECTS
    MAX_BATCH_REQUESTS
}

/// The comment above a constant, without links.
fn description(name: &str) -> String {
    let (before, _) =
        SOURCE.split_once(&format!("pub const {name}:")).expect("the constant is in this file");
    let comment = before.rsplit("\n\n").next().unwrap_or_default();
    let lines = comment.lines().filter_map(|line| line.strip_prefix("/// "));
    lines.collect::<Vec<_>>().join(" ").replace("[`", "`").replace("`]", "`")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_limit_is_listed_and_described() {
        let declared =
            SOURCE.lines().filter_map(|line| line.strip_prefix("pub const ")?.split(':').next());
        let declared: BTreeSet<String> = declared.map(str::to_owned).collect();
        let values = values();
        assert_eq!(declared, values.keys().cloned().collect());
        for (name, limit) in values {
            assert_ne!(limit["description"], "", "{name}");
        }
    }
}
