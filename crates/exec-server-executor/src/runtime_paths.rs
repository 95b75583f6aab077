//! Names the program that a server starts for sandboxes.

use std::io;
use std::path::{Path, PathBuf};

/// The program that a server starts for sandboxes.
///
/// `exec-server` starts itself. A program that embeds the server must name an `exec-server` binary here, because its
/// own `main` does not handle the arguments of a sandbox start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecServerRuntimePaths {
    program: Option<PathBuf>,
}

impl ExecServerRuntimePaths {
    /// Uses the `exec-server` binary at an absolute path.
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
            return invalid("is not a file");
        }
        Ok(Self { program: Some(program) })
    }

    /// Uses the running program, which must be `exec-server`.
    pub fn of_this_program() -> Self {
        Self::default()
    }

    /// The configured program; `None` means the running program.
    pub fn program(&self) -> Option<&Path> {
        self.program.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_relative_or_not_a_file_is_rejected() {
        for path in ["", "exec-server", "/", "/no/such/program"] {
            let error = ExecServerRuntimePaths::new(path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path}");
        }
        assert_eq!(ExecServerRuntimePaths::of_this_program().program(), None);
    }
}
