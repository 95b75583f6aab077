//! A place for files: `TARGET:/path`, or a path of this machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use super::target::{environment_name, is_url};

/// A place for files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spot {
    /// On this machine.
    Here(PathBuf),
    /// On a server.
    There {
        /// Which; none for the default one.
        target: Option<String>,
        /// The path as it was written.
        path: String,
    },
}

impl From<OsString> for Spot {
    fn from(text: OsString) -> Self {
        match text.to_str() {
            Some(text) => Self::parse(text),
            // Names that are no text can only be of this machine.
            None => Self::Here(text.into()),
        }
    }
}

impl FromStr for Spot {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self::parse(text))
    }
}

impl Spot {
    fn parse(text: &str) -> Self {
        let there = |target: &str, path: &str| Self::There {
            target: Some(target.to_owned()).filter(|target| !target.is_empty()),
            path: path.to_owned(),
        };
        if is_url(text) {
            // The colon of the scheme and that of a port are none of ours.
            let start = text.find("://").map_or(0, |place| place + 3);
            let end = [":/", ":~"].iter().filter_map(|mark| text[start..].find(mark)).min();
            return match end {
                Some(place) => there(&text[..start + place], &text[start + place + 1..]),
                None => there(text.strip_suffix(':').unwrap_or(text), ""),
            };
        }
        let environment = text.match_indices(':').map(|(place, _)| place).nth(1);
        let (target, path) = text.split_at(environment.unwrap_or(text.len()));
        if environment_name(target).is_some() {
            return there(target, path.strip_prefix(':').unwrap_or_default());
        }
        match text.split_once(':') {
            Some((target, path)) if !target.contains('/') => there(target, path),
            _ => Self::Here(text.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spot_is_here_or_there() {
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
    }

    fn check(text: &str, expected: Option<(&str, &str)>) {
        let expected = match expected {
            None => Spot::Here(text.into()),
            Some((target, path)) => Spot::There {
                target: Some(target.to_owned()).filter(|target| !target.is_empty()),
                path: path.to_owned(),
            },
        };
        assert_eq!(Spot::parse(text), expected, "{text}");
    }
}
