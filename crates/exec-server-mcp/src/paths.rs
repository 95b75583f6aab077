//! Resolves the paths of tools.

use exec_server_protocol::environment::EnvironmentInfo;
use exec_server_protocol::path_uri::{NativePaths, PathUri};

use crate::McpOptions;
use crate::call::ToolError;

/// Where paths start, and what they must be in.
#[derive(Debug)]
pub struct Paths {
    base: String,
    root: Option<String>,
}

impl Paths {
    pub fn new(options: &McpOptions, info: Option<&EnvironmentInfo>) -> Self {
        let server = info.and_then(|info| info.cwd.as_ref()).map(shown);
        let server = server.unwrap_or_else(|| "/".to_owned());
        let root = options.root.as_ref().map(|root| normal(&join(&server, root)));
        let start = root.clone().unwrap_or(server);
        let base = options.cwd.as_ref().map_or_else(|| start.clone(), |cwd| join(&start, cwd));
        Self { base: normal(&base), root }
    }

    /// Where relative paths start.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// The absolute path; an error if it is outside of the root.
    pub fn resolve(&self, path: &str) -> Result<String, ToolError> {
        let path = normal(&join(&self.base, path));
        match &self.root {
            Some(root) if !is_below(&path, root) => Err(ToolError(format!(
                "{path} is outside of {root}, which is all that this server gives access to; use a path below it"
            ))),
            _ => Ok(path),
        }
    }
}

/// A path as tools show it.
pub fn shown(uri: &PathUri) -> String {
    match uri.to_posix(NativePaths::Accept) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => uri.as_str().to_owned(),
    }
}

fn join(base: &str, path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("{base}/{path}") }
}

/// Without `.`, `..` and repeated slashes.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn is_below(path: &str, root: &str) -> bool {
    root == "/"
        || path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_the_root() {
        let options = McpOptions { root: Some("/srv/app/".to_owned()), ..McpOptions::default() };
        let paths = Paths::new(&options, None);
        assert_eq!(paths.base(), "/srv/app");
        for (path, expected) in [
            ("a/./b", Some("/srv/app/a/b")),
            ("/srv/app", Some("/srv/app")),
            ("x/../y", Some("/srv/app/y")),
            ("../other", None),
            ("/srv/apple", None),
            ("/etc/passwd", None),
            ("a/../../../etc", None),
        ] {
            assert_eq!(paths.resolve(path).ok().as_deref(), expected, "{path}");
        }
    }
}
