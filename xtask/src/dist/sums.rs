//! `SHA256SUMS` of a release and its signature.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

/// The digest in hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        write!(text, "{byte:02x}").expect("a string takes everything");
    }
    text
}

/// Writes `SHA256SUMS` as `sha256sum --check` reads it, and signs it where a key is given.
pub fn write(out: &Path, sums: &[(String, String)], key: Option<&Path>) -> Result<()> {
    let file = out.join("SHA256SUMS");
    let signature = out.join("SHA256SUMS.sig");
    let text: String = sums.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    if signature.exists() {
        std::fs::remove_file(&signature).context("cannot remove the old signature")?;
    }
    let Some(key) = key else { return Ok(()) };
    let status = Command::new("ssh-keygen")
        .args(["-q", "-Y", "sign", "-n", "exec-server", "-f"])
        .arg(key)
        .arg(&file)
        .status()
        .context("cannot run ssh-keygen")?;
    ensure!(status.success() && signature.exists(), "ssh-keygen did not sign SHA256SUMS");
    Ok(())
}
