//! Temporary directory of the benchmark, with shared input files and a writable place.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::failure::Result;

/// The directory, removed on drop.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates the directory beside the benchmark's program, because the system's temporary directory may be in memory.
    pub fn create() -> Result<Scratch> {
        let program = std::env::current_exe()?;
        let path = program.with_file_name(format!("bench-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Scratch { path })
    }

    /// Writes a file.
    pub fn put(&self, name: &str, content: &[u8]) -> Result<PathBuf> {
        let path = self.path.join(name);
        let mut file = File::create(&path)?;
        file.write_all(content)?;
        // Synced now, so that no measurement includes the write to disk.
        file.sync_all()?;
        Ok(path)
    }

    /// An empty directory; existing content is removed.
    pub fn fresh(&self, name: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// A file or directory that is created on first use.
    pub fn once(&self, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let path = self.path.join(name);
        if !path.exists() {
            // Created under a temporary name, so that a failure leaves no incomplete content.
            let draft = self.path.join(format!("{name}-draft"));
            make(&draft)?;
            rustix::fs::syncfs(File::open(&draft)?)?;
            fs::rename(&draft, &path)?;
        }
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Remaining files are in the target directory.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The URI of a path, which needs no escaping in JSON.
pub fn uri(path: &Path) -> String {
    let mut uri = String::from("file://");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' | b'~' => {
                uri.push(char::from(*byte));
            }
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    uri
}

/// Bytes that differ by position.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index ^ (index >> 8) ^ (index >> 16)) as u8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_escapes_what_could_mean_something_else() {
        assert_eq!(uri(Path::new("/my files/a-b_c.d~")), "file:///my%20files/a-b_c.d~");
        assert_eq!(uri(Path::new("/100%/\"#?")), "file:///100%25/%22%23%3F");
    }
}
