//! `fs/*` of the bare server: each request makes just its system calls. Paths are not unescaped, because the paths of
//! the benchmark need no escaping.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use base64_turbo::STANDARD;
use serde::Deserialize;

use super::messages::{self, FileWrite};

/// A walk stops where its reply would exceed this size, with this overhead per entry.
const WALK_SIZE: usize = 4 << 20;
const ENTRY_SIZE: usize = 64;

/// Open files of one client, and a read buffer.
#[derive(Default)]
pub struct Files {
    open: HashMap<String, File>,
    bytes: Vec<u8>,
}

/// Params of file requests that the bare server supports.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct FileParams<'a> {
    path: &'a str,
    handle_id: &'a str,
    offset: u64,
    len: usize,
}

impl Files {
    /// Appends the reply to a request, or nothing if it fails.
    pub fn answer(
        &mut self,
        out: &mut Vec<u8>,
        id: i64,
        method: &str,
        params: &FileParams<'_>,
    ) -> io::Result<()> {
        let path = path_of(params.path);
        self.bytes.clear();
        // The result before and after its base64 content, if any.
        let (head, tail) = match method {
            "fs/readFile" => {
                File::open(path)?.read_to_end(&mut self.bytes)?;
                (r#"{"dataBase64":""#.to_owned(), r#""}"#)
            }
            "fs/readBlock" => {
                let eof = self.read_block(params)?;
                let tail = if eof { r#"","eof":true}"# } else { r#"","eof":false}"# };
                (r#"{"chunk":""#.to_owned(), tail)
            }
            "fs/open" => {
                self.open.insert(params.handle_id.to_owned(), File::open(path)?);
                (format!(r#"{{"handleId":"{}"}}"#, params.handle_id), "")
            }
            "fs/close" => {
                self.open.remove(params.handle_id);
                ("{}".to_owned(), "")
            }
            "fs/getMetadata" => (describe(path)?, ""),
            "fs/readDirectory" => (list(path)?, ""),
            "fs/walk" => (walk(path)?, ""),
            _ => return Err(io::ErrorKind::Unsupported.into()),
        };
        let head = format!(r#"{{"id":{id},"result":{head}"#);
        messages::push_encoded(out, &head, &self.bytes, &format!("{tail}}}"));
        Ok(())
    }

    /// Writes a whole file.
    pub fn write(&mut self, write: &FileWrite<'_>) -> io::Result<()> {
        self.bytes.clear();
        STANDARD.decode_vec(write.data, &mut self.bytes).map_err(io::Error::other)?;
        fs::write(path_of(write.path), &self.bytes)
    }

    /// Reads a block and returns whether the file ends in it.
    fn read_block(&mut self, params: &FileParams<'_>) -> io::Result<bool> {
        let file = self.open.get(params.handle_id).ok_or(io::ErrorKind::NotFound)?;
        self.bytes.resize(params.len, 0);
        let count = file.read_at(&mut self.bytes, params.offset)?;
        self.bytes.truncate(count);
        Ok(count < params.len)
    }
}

fn describe(path: &Path) -> io::Result<String> {
    let found = fs::metadata(path)?;
    let (is_directory, is_file) = (found.is_dir(), found.is_file());
    let (size, modified) = (found.len(), found.mtime() * 1000);
    Ok(format!(
        r#"{{"isDirectory":{is_directory},"isFile":{is_file},"isSymlink":false,"size":{size},"createdAtMs":0,"modifiedAtMs":{modified}}}"#
    ))
}

fn list(path: &Path) -> io::Result<String> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        let (name, is_directory, is_file) = (name.display(), kind.is_dir(), kind.is_file());
        entries.push(format!(
            r#"{{"fileName":"{name}","isDirectory":{is_directory},"isFile":{is_file}}}"#
        ));
    }
    Ok(format!(r#"{{"entries":[{}]}}"#, entries.join(",")))
}

fn walk(root: &Path) -> io::Result<String> {
    let mut directories = VecDeque::from([root.to_owned()]);
    let (mut entries, mut size) = (Vec::new(), 0);
    while let Some(directory) = directories.pop_front().filter(|_| size <= WALK_SIZE) {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let (path, is_directory) = (entry.path(), entry.file_type()?.is_dir());
            let uri = format!("file://{}", path.display());
            size += uri.len() + ENTRY_SIZE;
            if size > WALK_SIZE {
                break;
            }
            let kind = if is_directory { "directory" } else { "file" };
            entries.push(format!(r#"{{"path":"{uri}","kind":"{kind}"}}"#));
            if is_directory {
                directories.push_back(path);
            }
        }
    }
    let (entries, truncated) = (entries.join(","), size > WALK_SIZE);
    Ok(format!(r#"{{"entries":[{entries}],"errors":[],"truncated":{truncated}}}"#))
}

fn path_of(uri: &str) -> &Path {
    Path::new(uri.strip_prefix("file://").unwrap_or(uri))
}
