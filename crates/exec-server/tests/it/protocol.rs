//! The protocol as it is written down: the schema, its page, and what a real server says.

mod page;
mod recorded;
mod transcripts;
mod validator;

use std::path::{Path, PathBuf};

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(docs(name)).expect("the docs are beside the crates")
}
