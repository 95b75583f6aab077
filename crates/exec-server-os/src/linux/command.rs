//! A program as execve takes it: paths to try, arguments, environment and working directory.

use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::spawn::{SpawnError, SpawnRequest, Stdio};

/// A program to execute.
#[derive(Debug, Serialize, Deserialize)]
pub struct Command {
    /// Paths to try in order.
    pub candidates: Vec<CString>,
    /// The arguments, with the program's own name first.
    pub argv: Vec<CString>,
    /// The environment as `NAME=value`.
    pub env: Vec<CString>,
    /// The working directory.
    pub cwd: CString,
    /// Whether descriptor 0 becomes the controlling terminal.
    pub has_terminal: bool,
    /// Content that is readable as descriptor 3.
    pub extra_input: Option<Vec<u8>>,
}

impl Command {
    /// The program that a request describes.
    pub fn of(request: &SpawnRequest) -> Result<Self, SpawnError> {
        if request.program.is_empty() {
            return Err(SpawnError::NoProgram);
        }
        Ok(Self {
            candidates: candidates(request)?,
            argv: c_strings(&request.argv, "an argument")?,
            env: c_environment(&request.env)?,
            cwd: c_string(request.cwd.as_os_str(), "the working directory")?,
            has_terminal: matches!(request.stdio, Stdio::Terminal(_)),
            extra_input: request.extra_input.clone(),
        })
    }
}

/// Paths to try: the program itself if it contains a slash, else its name in each directory of the child's `PATH`.
fn candidates(request: &SpawnRequest) -> Result<Vec<CString>, SpawnError> {
    let program = request.program.as_os_str();
    if program.as_bytes().contains(&b'/') {
        return Ok(vec![c_string(program, "the program")?]);
    }
    let path =
        request.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_bytes());
    // The C library's default.
    let path = path.unwrap_or(b"/bin:/usr/bin");
    path.split(|byte| *byte == b':')
        .map(|directory| match directory {
            b"" => Path::new(".").join(program),
            directory => Path::new(OsStr::from_bytes(directory)).join(program),
        })
        .map(|candidate| c_string(candidate.as_os_str(), "the program"))
        .collect()
}

fn c_string(text: &OsStr, what: &'static str) -> Result<CString, SpawnError> {
    CString::new(text.as_bytes()).map_err(|_| SpawnError::NulByte(what))
}

fn c_strings(texts: &[OsString], what: &'static str) -> Result<Vec<CString>, SpawnError> {
    texts.iter().map(|text| c_string(text, what)).collect()
}

fn c_environment(env: &[(OsString, OsString)]) -> Result<Vec<CString>, SpawnError> {
    env.iter()
        .map(|(name, value)| {
            let mut entry = name.clone().into_vec();
            entry.push(b'=');
            entry.extend_from_slice(value.as_bytes());
            CString::new(entry).map_err(|_| SpawnError::NulByte("the environment"))
        })
        .collect()
}

/// The null-terminated pointer array that execve takes.
pub fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
}
