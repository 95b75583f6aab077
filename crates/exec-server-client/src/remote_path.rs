//! Paths on the server's machine, and their conversion to URIs.

use std::path::{Path, PathBuf};

use exec_server_protocol::path_uri::{NativePaths, PathUri};

use crate::error::ExecServerError;

/// A path on the server's machine: absolute, relative to the server's working directory, or a `file:` URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePath(Form);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    Uri(PathUri),
    Text(Vec<u8>),
}

impl RemotePath {
    /// The URI of the path; `cwd` is the server's working directory, if it is known.
    pub fn resolve(self, cwd: Option<&PathUri>) -> Result<PathUri, ExecServerError> {
        let text = match self.0 {
            Form::Uri(uri) => return Ok(uri),
            Form::Text(text) => text,
        };
        if text.contains(&0) {
            return Err(ExecServerError::Invalid("a path contains a NUL byte".to_owned()));
        }
        if text.starts_with(b"file:") {
            let text = String::from_utf8_lossy(&text);
            let wrong =
                |error| ExecServerError::Invalid(format!("`{text}` is not a path: {error}"));
            return PathUri::parse(&text).map_err(wrong);
        }
        if text.starts_with(b"/") {
            return Ok(PathUri::from_posix(&text));
        }
        let cwd = cwd.ok_or_else(|| {
            let text = String::from_utf8_lossy(&text);
            let what = "is relative, and the server did not report its working directory";
            ExecServerError::Invalid(format!("`{text}` {what}"))
        })?;
        let foreign =
            |error| ExecServerError::Invalid(format!("the server's working directory: {error}"));
        let mut whole = cwd.to_posix(NativePaths::Accept).map_err(foreign)?;
        whole.push(b'/');
        whole.extend(text);
        Ok(PathUri::from_posix(&whole))
    }

    /// Whether [`RemotePath::resolve`] needs the server's working directory.
    pub fn is_relative(&self) -> bool {
        match &self.0 {
            Form::Uri(_) => false,
            Form::Text(text) => !text.starts_with(b"/") && !text.starts_with(b"file:"),
        }
    }
}

impl From<PathUri> for RemotePath {
    fn from(uri: PathUri) -> Self {
        Self(Form::Uri(uri))
    }
}

impl From<&PathUri> for RemotePath {
    fn from(uri: &PathUri) -> Self {
        Self(Form::Uri(uri.clone()))
    }
}

impl From<&str> for RemotePath {
    fn from(path: &str) -> Self {
        Self(Form::Text(path.as_bytes().to_vec()))
    }
}

impl From<&String> for RemotePath {
    fn from(path: &String) -> Self {
        path.as_str().into()
    }
}

impl From<String> for RemotePath {
    fn from(path: String) -> Self {
        Self(Form::Text(path.into_bytes()))
    }
}

impl From<&Path> for RemotePath {
    fn from(path: &Path) -> Self {
        Self(Form::Text(path.as_os_str().as_encoded_bytes().to_vec()))
    }
}

impl From<&PathBuf> for RemotePath {
    fn from(path: &PathBuf) -> Self {
        path.as_path().into()
    }
}

impl From<PathBuf> for RemotePath {
    fn from(path: PathBuf) -> Self {
        path.as_path().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_absolute_on_the_server() {
        let cwd = PathUri::from_posix(b"/srv");
        let resolve = |path: &str| RemotePath::from(path).resolve(Some(&cwd));
        assert_eq!(resolve("/a b").unwrap().as_str(), "file:///a%20b");
        assert_eq!(resolve("a/b").unwrap().as_str(), "file:///srv/a/b");
        assert_eq!(resolve("file:///a%20b").unwrap().as_str(), "file:///a%20b");
        assert!(resolve("file://\0").is_err());
        assert!(RemotePath::from("a").resolve(None).unwrap_err().to_string().contains("relative"));
        assert!(RemotePath::from("/a").resolve(None).is_ok());
    }
}
