//! Paths as bytes, which need not be UTF-8, and serde helpers for messages between the server and its helpers.

use std::path::PathBuf;

/// The local path with these bytes.
#[cfg(unix)]
pub fn path_from_bytes(bytes: Vec<u8>) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    std::ffi::OsString::from_vec(bytes).into()
}

/// The local path with these bytes.
#[cfg(not(unix))]
pub fn path_from_bytes(bytes: Vec<u8>) -> PathBuf {
    String::from_utf8_lossy(&bytes).into_owned().into()
}

pub mod path {
    //! Serializes a path as bytes.

    use std::path::{Path, PathBuf};

    use serde::{Deserializer, Serializer};

    /// Writes a path.
    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(path.as_os_str().as_encoded_bytes())
    }

    /// Reads a path.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        super::bytes::deserialize(deserializer).map(super::path_from_bytes)
    }
}

pub mod paths {
    //! Serializes a list of paths as bytes.

    use std::path::{Path, PathBuf};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize)]
    struct Lent<'a>(#[serde(with = "super::path")] &'a Path);

    #[derive(Deserialize)]
    struct Owned(#[serde(with = "super::path")] PathBuf);

    /// Writes a list of paths.
    pub fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| Lent(path)))
    }

    /// Reads a list of paths.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<PathBuf>, D::Error> {
        let all = Vec::<Owned>::deserialize(deserializer)?;
        Ok(all.into_iter().map(|Owned(path)| path).collect())
    }
}

pub mod bytes {
    //! Serializes content as one byte string instead of a sequence of numbers.

    use serde::de::{self, Visitor};
    use serde::{Deserializer, Serializer};

    /// Writes content.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    /// Reads content.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;

            fn expecting(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
                formatter.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }

            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
                Ok(bytes)
            }
        }
        deserializer.deserialize_byte_buf(Bytes)
    }
}

pub mod errno {
    //! Serializes an I/O error as its errno; an error without one becomes `EIO`.

    use std::io;

    use serde::{Deserialize, Deserializer, Serializer};

    /// The same number on every Unix.
    const EIO: i32 = 5;

    /// Writes an error.
    pub fn serialize<S: Serializer>(error: &io::Error, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i32(error.raw_os_error().unwrap_or(EIO))
    }

    /// Reads an error.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<io::Error, D::Error> {
        i32::deserialize(deserializer).map(io::Error::from_raw_os_error)
    }
}
