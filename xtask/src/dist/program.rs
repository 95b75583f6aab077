//! The compiled program that a release packages, and the names of its platform in each package format.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use super::release::VERSION;

/// A processor architecture of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Arch {
    #[value(name = "x86_64", alias = "x86_64-unknown-linux-musl")]
    X86_64,
    #[value(name = "aarch64", alias = "aarch64-unknown-linux-musl")]
    Aarch64,
}

impl Arch {
    /// The name in Rust targets, rpm packages and wheels.
    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// The name in Debian packages and container images.
    pub fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// The name in Node.
    pub fn node(self) -> &'static str {
        match self {
            Self::X86_64 => "x64",
            Self::Aarch64 => "arm64",
        }
    }

    /// The target of the static program.
    pub fn musl_target(self) -> String {
        format!("{}-unknown-linux-musl", self.name())
    }
}

/// A program to package.
pub struct Program {
    pub path: PathBuf,
    pub arch: Arch,
    pub linkage: Linkage,
    pub bytes: Rc<[u8]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linkage {
    /// Needs no library of the machine.
    Static,
    /// Needs the C library of the machine.
    Dynamic,
}

impl Program {
    /// Reads a program, and checks its version where this machine can run it.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {shown}"))?;
        let (arch, linkage) = inspect(&bytes).with_context(|| format!("cannot package {shown}"))?;
        let path = path.canonicalize().with_context(|| format!("cannot resolve {shown}"))?;
        let program = Self { path, arch, linkage, bytes: bytes.into() };
        if program.runs_here() {
            let version = program.run(&["--version"])?;
            let expected = format!("exec-server {VERSION}");
            ensure!(
                version.trim() == expected,
                "{shown} is `{}`, this release is `{expected}`; build it again",
                version.trim()
            );
        } else {
            eprintln!("dist: {shown} is for another processor: its version was not checked");
        }
        Ok(program)
    }

    /// The Rust target that names the archives.
    pub fn target(&self) -> String {
        match self.linkage {
            Linkage::Static => self.arch.musl_target(),
            Linkage::Dynamic => format!("{}-unknown-linux-gnu", self.arch.name()),
        }
    }

    pub fn runs_here(&self) -> bool {
        self.arch.name() == std::env::consts::ARCH
    }

    /// The output of the program with these arguments.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let shown = format!("{} {}", self.path.display(), arguments.join(" "));
        // Variables of this machine would appear as defaults in the documents.
        let output = Command::new(&self.path)
            .args(arguments)
            .env_clear()
            .output()
            .with_context(|| format!("cannot run `{shown}`"))?;
        if !output.status.success() {
            bail!("`{shown}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        String::from_utf8(output.stdout).with_context(|| format!("`{shown}` printed no text"))
    }
}

/// Architecture and linkage of an ELF file: 64 bits, little endian, for Linux.
fn inspect(bytes: &[u8]) -> Result<(Arch, Linkage)> {
    const PROGRAM_INTERPRETER: usize = 3;
    ensure!(bytes.starts_with(b"\x7fELF\x02\x01"), "it is not a 64-bit program for Linux");
    let field = |at: usize, size: usize| -> Result<usize> {
        let bytes = bytes.get(at..at + size).context("its header is cut off")?;
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(bytes);
        usize::try_from(u64::from_le_bytes(wide)).context("its header is damaged")
    };
    let arch = match field(18, 2)? {
        62 => Arch::X86_64,
        183 => Arch::Aarch64,
        other => bail!("there are no packages for its processor (ELF machine {other})"),
    };
    let (table, size, count) = (field(32, 8)?, field(54, 2)?, field(56, 2)?);
    for index in 0..count {
        let entry = table.checked_add(index * size).context("its header is damaged")?;
        if field(entry, 4)? == PROGRAM_INTERPRETER {
            return Ok((arch, Linkage::Dynamic));
        }
    }
    Ok((arch, Linkage::Static))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_says_its_processor_and_whether_it_needs_a_loader() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let (arch, linkage) = inspect(&own).unwrap();
        assert_eq!(arch.name(), std::env::consts::ARCH);
        let is_static = cfg!(target_feature = "crt-static");
        assert_eq!(linkage == Linkage::Static, is_static);
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert!(inspect(b"#!/bin/sh\n").is_err());
        assert!(inspect(b"\x7fELF\x02\x01").unwrap_err().to_string().contains("cut off"));
    }
}
