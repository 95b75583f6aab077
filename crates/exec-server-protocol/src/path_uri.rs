//! `file:` URIs, the form of every path on the wire, and conversion to host paths.
//!
//! Parsing follows the WHATWG URL rules. Dot segments are resolved lexically, without disk access, so `link/../x` is
//! `x`. A path that looks like a path of another operating system is sent in an opaque form.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use url::Url;

use crate::base64;
use crate::escape_untrusted::escape_untrusted;

/// A path on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PathUri {
    text: String,
    form: Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    Uri,
    /// A native absolute path, as early protocol versions sent it.
    Native,
}

/// Whether native absolute paths are accepted in place of a URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NativePaths {
    /// Only `file:` URIs are accepted.
    Reject,
    /// `/a/b` means `file:///a/b`.
    Accept,
}

/// Why a text is not a valid path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathUriError {
    /// Not a URI at all.
    #[error("invalid URI: {0}")]
    Invalid(String),
    /// A native path where only URIs are accepted.
    #[error(
        "invalid URI: relative URL without a base: `{path}` is a native path; send `{uri}`, or start the server with \
         --accept-native-paths"
    )]
    Native {
        /// The rejected path.
        path: String,
        /// The URI of the same path.
        uri: String,
    },
    /// A URI with another scheme than `file`.
    #[error("unsupported path URI scheme `{0}`")]
    Scheme(String),
    /// The URI has a query.
    #[error("query parameters are not allowed in path URIs")]
    Query,
    /// The URI has a fragment.
    #[error("fragments are not allowed in path URIs")]
    Fragment,
    /// The path has a NUL byte.
    #[error("path URI holds a NUL byte")]
    Nul,
}

/// The URI is a path of another operating system.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{uri}' is invalid on '{os}'")]
pub struct ForeignPath {
    /// The rejected URI.
    pub uri: String,
    /// The operating system of this server.
    pub os: &'static str,
}

/// Limit for a path that is quoted in an error.
const MAX_SHOWN_CHARS: usize = 200;

/// Path prefix of every opaque URI; a real path cannot hold a NUL byte.
const OPAQUE_PREFIX: &str = "/%00/bad/path/";

/// Characters that the reference percent-encodes in paths.
const ENCODED: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'\\')
    .add(b'`')
    .add(b'{')
    .add(b'}');

impl PathUri {
    /// Parses a URI; a native absolute path is kept until [`PathUri::to_posix`] accepts or rejects it.
    pub fn parse(text: &str) -> Result<Self, PathUriError> {
        if text.starts_with('/') && !text.starts_with("//") && !text.contains('\0') {
            return Ok(Self { text: text.to_owned(), form: Form::Native });
        }
        let url = Url::parse(text).map_err(|error| PathUriError::Invalid(error.to_string()))?;
        if url.scheme() != "file" {
            return Err(PathUriError::Scheme(url.scheme().to_owned()));
        }
        if url.query().is_some() {
            return Err(PathUriError::Query);
        }
        if url.fragment().is_some() {
            return Err(PathUriError::Fragment);
        }
        let is_opaque = url.path().starts_with(OPAQUE_PREFIX);
        if !is_opaque && percent_decode_str(url.path()).any(|byte| byte == 0) {
            return Err(PathUriError::Nul);
        }
        Ok(Self { text: url.into(), form: Form::Uri })
    }

    /// The URI of an absolute POSIX path.
    pub fn from_posix(path: &[u8]) -> Self {
        let text = if looks_like_a_drive(path) {
            let encoded = base64::encode_url(path);
            format!("file://{OPAQUE_PREFIX}{encoded}")
        } else {
            format!("file://{}", percent_encode(path, ENCODED))
        };
        Self { text, form: Form::Uri }
    }

    /// The URI of an entry of this directory; existing escapes are not encoded again.
    pub fn child(&self, name: &[u8]) -> Self {
        if self.may_have_opaque_children()
            && let Ok(path) = self.to_posix(NativePaths::Accept)
        {
            let path = if path == b"/" { &[][..] } else { &path };
            return Self::from_posix(&[path, b"/", name].concat());
        }
        let mut text = String::with_capacity(self.text.len() + 1 + name.len());
        text.push_str(self.text.strip_suffix('/').unwrap_or(&self.text));
        text.push('/');
        text.extend(percent_encode(name, ENCODED));
        Self { text, form: Form::Uri }
    }

    /// Only the first segment of a path can look like a drive letter.
    fn may_have_opaque_children(&self) -> bool {
        let path = self.text.strip_prefix("file://").unwrap_or(&self.text);
        self.form == Form::Native || path == "/" || path.starts_with(OPAQUE_PREFIX)
    }

    /// The URI as it is written on the wire.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The absolute, lexically normalised POSIX path.
    pub fn to_posix(&self, native: NativePaths) -> Result<Vec<u8>, ToPathError> {
        if self.form == Form::Native {
            return match native {
                NativePaths::Accept => Ok(normalise(self.text.as_bytes())),
                NativePaths::Reject => {
                    let uri = Self::from_posix(self.text.as_bytes());
                    Err(PathUriError::Native {
                        path: escape_untrusted(&self.text, MAX_SHOWN_CHARS),
                        uri: escape_untrusted(&uri.text, MAX_SHOWN_CHARS),
                    }
                    .into())
                }
            };
        }
        let url = Url::parse(&self.text).expect("was parsed when this was made");
        if url.host_str().is_some_and(|host| !host.is_empty()) {
            return Err(self.foreign().into());
        }
        if let Some(encoded) = url.path().strip_prefix(OPAQUE_PREFIX) {
            return self.opaque(encoded);
        }
        // Checked before decoding: a drive letter is one whatever the segments below it decode to.
        let first = url.path().split('/').find(|segment| !segment.is_empty());
        if first.is_some_and(|first| is_drive(&percent_decode_str(first).collect::<Vec<u8>>())) {
            return Err(self.foreign().into());
        }
        Ok(normalise(&percent_decode_str(url.path()).collect::<Vec<u8>>()))
    }

    /// An opaque URI is valid only for a path that has no ordinary form.
    fn opaque(&self, encoded: &str) -> Result<Vec<u8>, ToPathError> {
        let path = base64::decode_url(encoded)
            .ok_or_else(|| PathUriError::Invalid("malformed opaque path".to_owned()))?;
        let is_normal = !path.contains(&0) && normalise(&path) == path;
        if !is_normal || Self::from_posix(&path).text != self.text {
            return Err(self.foreign().into());
        }
        Ok(path)
    }

    fn foreign(&self) -> ForeignPath {
        ForeignPath { uri: self.text.clone(), os: std::env::consts::OS }
    }
}

/// Why a [`PathUri`] is not a path of this host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ToPathError {
    /// The URI is invalid.
    #[error(transparent)]
    Uri(#[from] PathUriError),
    /// The URI belongs to another operating system.
    #[error(transparent)]
    Foreign(#[from] ForeignPath),
}

impl<'de> Deserialize<'de> for PathUri {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

impl Serialize for PathUri {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

/// Resolves `.`, `..` and empty segments by text, and drops a trailing slash.
fn normalise(path: &[u8]) -> Vec<u8> {
    let mut segments: Vec<&[u8]> = Vec::new();
    for segment in path.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let mut normal = Vec::with_capacity(path.len());
    for segment in &segments {
        normal.push(b'/');
        normal.extend_from_slice(segment);
    }
    if normal.is_empty() {
        normal.push(b'/');
    }
    normal
}

fn looks_like_a_drive(path: &[u8]) -> bool {
    let first = path.split(|byte| *byte == b'/').find(|segment| !segment.is_empty());
    first.is_some_and(is_drive)
}

fn is_drive(segment: &[u8]) -> bool {
    matches!(segment, [letter, b':'] if letter.is_ascii_alphabetic())
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
