//! Parses an operand of `cp`, `ls` and `cat`: `TARGET:/path`, or a local path.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use super::target::{STDIO_PREFIX, environment_name, is_url};

/// An operand that names a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CpPath {
    /// On this machine.
    Local(PathBuf),
    /// On a server.
    Remote {
        /// None for the default target.
        target: Option<String>,
        /// The path as it was written.
        path: String,
    },
}

impl From<OsString> for CpPath {
    fn from(text: OsString) -> Self {
        match text.to_str() {
            Some(text) => Self::parse(text),
            // A name that is not UTF-8 can only be local.
            None => Self::Local(text.into()),
        }
    }
}

impl FromStr for CpPath {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::parse(text))
    }
}

impl CpPath {
    fn parse(text: &str) -> Self {
        let there = |target: &str, path: &str| Self::Remote {
            target: Some(target.to_owned()).filter(|target| !target.is_empty()),
            path: path.to_owned(),
        };
        if is_url(text) {
            // The colons of the scheme and of the port do not separate a path.
            let start = text.find("://").map_or(0, |place| place + 3);
            let end = [":/", ":~"].iter().filter_map(|mark| text[start..].find(mark)).min();
            return match end {
                Some(place) => there(&text[..start + place], &text[start + place + 1..]),
                None => there(text.strip_suffix(':').unwrap_or(text), ""),
            };
        }
        if text.starts_with(STDIO_PREFIX) {
            // The command may contain colons, so only the last one before a path counts.
            let is_path = |place: usize| {
                matches!(text.as_bytes().get(place + 1), None | Some(b'/' | b'~'))
                    && !text[place..].starts_with("://")
            };
            let colons = text.match_indices(':').map(|(place, _)| place);
            let end = colons.skip(1).filter(|&place| is_path(place)).last();
            return match end {
                Some(place) => there(&text[..place], &text[place + 1..]),
                None => there(text, ""),
            };
        }
        let environment = text.match_indices(':').map(|(place, _)| place).nth(1);
        let (target, path) = text.split_at(environment.unwrap_or(text.len()));
        if environment_name(target).is_some() {
            return there(target, path.strip_prefix(':').unwrap_or_default());
        }
        match text.split_once(':') {
            Some((target, path)) if !target.contains('/') => there(target, path),
            _ => Self::Local(text.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operand_is_local_or_remote() {
        check("notes.txt", None);
        check("./a:b", None);
        check("/a:b", None);
        check("box:/tmp/x", Some(("box", "/tmp/x")));
        check("box:relative:name", Some(("box", "relative:name")));
        check("box:", Some(("box", "")));
        check(":/tmp", Some(("", "/tmp")));
        check("ws://127.0.0.1:7777:/tmp/a:/b", Some(("ws://127.0.0.1:7777", "/tmp/a:/b")));
        check("ws://[::1]:7777/exec:~/x", Some(("ws://[::1]:7777/exec", "~/x")));
        check("ws://127.0.0.1:7777", Some(("ws://127.0.0.1:7777", "")));
        check("unix:///run/x.sock:/etc/hosts", Some(("unix:///run/x.sock", "/etc/hosts")));
        check("unix:///run/x.sock:", Some(("unix:///run/x.sock", "")));
        check("env:build-1:/tmp/a:b", Some(("env:build-1", "/tmp/a:b")));
        check("env:build-1:~/x", Some(("env:build-1", "~/x")));
        check("env:build-1:", Some(("env:build-1", "")));
        check("env:build-1", Some(("env:build-1", "")));
        check("env:/tmp/a", Some(("env", "/tmp/a")));
        check("env:", Some(("env", "")));
        check("./env:x", None);
        check(
            "stdio:ssh h e --listen stdio:/etc/a:b",
            Some(("stdio:ssh h e --listen stdio", "/etc/a:b")),
        );
        check("stdio:e --listen stdio:~/x", Some(("stdio:e --listen stdio", "~/x")));
        check("stdio:e --listen stdio:", Some(("stdio:e --listen stdio", "")));
        check("stdio:e --proxy http://p:1:/x", Some(("stdio:e --proxy http://p:1", "/x")));
        check("stdio:/bin/e", Some(("stdio:/bin/e", "")));
    }

    fn check(text: &str, expected: Option<(&str, &str)>) {
        let expected = match expected {
            None => CpPath::Local(text.into()),
            Some((target, path)) => CpPath::Remote {
                target: Some(target.to_owned()).filter(|target| !target.is_empty()),
                path: path.to_owned(),
            },
        };
        assert_eq!(CpPath::parse(text), expected, "{text}");
    }
}
