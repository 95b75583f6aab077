//! Paths of requests: absolute, or beginning in the home of a user.

use exec_server_client::protocol::environment::EnvironmentInfo;
use exec_server_client::protocol::path_uri::{NativePaths, PathUri};

use crate::refusal::Refusal;

/// The home of the server's user.
pub fn own_home(info: &EnvironmentInfo) -> String {
    let home = info.user_home_dir.as_ref().or(info.cwd.as_ref()).map(text_of);
    home.unwrap_or_else(|| "/".to_owned())
}

/// The absolute path, without `.`, `..` and empty segments; a relative one begins in the home.
pub fn absolute(home: &str, path: &str) -> Result<String, Refusal> {
    if path.contains('\0') {
        return Err(Refusal::invalid("a path contains a NUL byte"));
    }
    let path = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{home}{rest}"),
        Some(_) => {
            return Err(Refusal::invalid(format!("{path:?}: homes of other users are not known")));
        }
        None if path.starts_with('/') => path.to_owned(),
        None => format!("{home}/{path}"),
    };
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    Ok(format!("/{}", segments.join("/")))
}

/// The URI of an absolute path.
pub fn uri_of(path: &str) -> PathUri {
    PathUri::from_posix(path.as_bytes())
}

/// The path of a URI; names that are not UTF-8 are shown with replacements.
pub fn text_of(uri: &PathUri) -> String {
    match uri.to_posix(NativePaths::Accept) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => uri.as_str().to_owned(),
    }
}

/// The last name of a path.
pub fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// The directory of a path.
pub fn parent_of(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_begin_at_the_root_or_in_the_home() {
        let absolute = |path| absolute("/home/user", path);
        let check = |path| absolute(path).unwrap();
        assert_eq!(check("/a//b/./../c/"), "/a/c");
        assert_eq!(check("a/b"), "/home/user/a/b");
        assert_eq!(check("~/x"), "/home/user/x");
        assert_eq!(check("~"), "/home/user");
        assert_eq!(check(""), "/home/user");
        assert_eq!(check("/../.."), "/");
        assert!(absolute("~other/x").is_err());
        assert!(absolute("a\0b").is_err());
        assert_eq!((name_of("/a/b"), parent_of("/a/b"), parent_of("/a")), ("b", "/a", "/"));
    }
}
