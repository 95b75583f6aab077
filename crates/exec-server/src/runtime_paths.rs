//! Where the programs are that a server starts for its own purposes.

use std::io;
use std::path::{Path, PathBuf};

/// Where the program is that a server starts sandboxes with.
///
/// The `exec-server` program does that itself. A program of your own that serves names an `exec-server` here: its own
/// `main` would not know what to do when it is started for a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecServerRuntimePaths {
    program: Option<PathBuf>,
}

impl ExecServerRuntimePaths {
    /// The `exec-server` program at an absolute path.
    pub fn new(program: impl Into<PathBuf>) -> io::Result<Self> {
        let program = program.into();
        let invalid = |what: &str| {
            let text = format!("{} {what}", program.display());
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        };
        if !program.is_absolute() {
            return invalid("is not an absolute path");
        }
        if !program.is_file() {
            return invalid("is no file");
        }
        Ok(Self { program: Some(program) })
    }

    /// The running program, which must be an `exec-server`.
    pub fn of_this_program() -> Self {
        Self::default()
    }

    /// The program, if it is another one than this.
    pub fn program(&self) -> Option<&Path> {
        self.program.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_cannot_be_meant_is_refused() {
        for path in ["", "exec-server", "/", "/no/such/program"] {
            let error = ExecServerRuntimePaths::new(path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path}");
        }
        assert_eq!(ExecServerRuntimePaths::of_this_program().program(), None);
    }
}
