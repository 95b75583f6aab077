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

    /// Refuses a program that would start only beside the libraries of this machine.
    pub fn static_only(self) -> Result<Self> {
        ensure!(
            self.linkage == Linkage::Static,
            "{} is not static, although it was compiled for musl: it has a program interpreter. Look for a linker or \
             flags in the environment and in .cargo/config.toml that override those of this command",
            self.path.display()
        );
        Ok(self)
    }

    /// The compilers and linkers that made the program, as they name themselves in it.
    pub fn toolchain(&self) -> Result<Vec<String>> {
        toolchain(&self.bytes).with_context(|| format!("cannot read {}", self.path.display()))
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
    let arch = match field(bytes, 18, 2)? {
        62 => Arch::X86_64,
        183 => Arch::Aarch64,
        other => bail!("there are no packages for its processor (ELF machine {other})"),
    };
    let segments = (field(bytes, 32, 8)?, field(bytes, 54, 2)?, field(bytes, 56, 2)?);
    for entry in entries(segments)? {
        if field(bytes, entry, 4)? == PROGRAM_INTERPRETER {
            return Ok((arch, Linkage::Dynamic));
        }
    }
    Ok((arch, Linkage::Static))
}

/// What compilers and linkers wrote about themselves into an ELF file (the section `.comment`), sorted.
fn toolchain(bytes: &[u8]) -> Result<Vec<String>> {
    let table = (field(bytes, 40, 8)?, field(bytes, 58, 2)?, field(bytes, 60, 2)?);
    let sections = entries(table)?;
    let Some(names) = sections.get(field(bytes, 62, 2)?) else { return Ok(Vec::new()) };
    let names = field(bytes, names + 24, 8)?;
    for entry in sections {
        let name = names.checked_add(field(bytes, entry, 4)?).and_then(|at| bytes.get(at..));
        if name.is_some_and(|name| name.starts_with(b".comment\0")) {
            let (start, size) = (field(bytes, entry + 24, 8)?, field(bytes, entry + 32, 8)?);
            let end = start.checked_add(size).context("its header is damaged")?;
            let text = bytes.get(start..end).context("its section .comment is cut off")?;
            let words = text.split(|byte| *byte == 0).filter(|word| !word.is_empty());
            let mut words: Vec<_> =
                words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            words.sort();
            words.dedup();
            return Ok(words);
        }
    }
    Ok(Vec::new())
}

/// Where the entries of a table in an ELF file begin: its place, the size of an entry, and their count.
fn entries((table, size, count): (usize, usize, usize)) -> Result<Vec<usize>> {
    let end = count.checked_mul(size).and_then(|length| table.checked_add(length));
    end.context("its header is damaged")?;
    Ok((0..count).map(|index| table + index * size).collect())
}

/// A number of `size` bytes in an ELF file.
fn field(bytes: &[u8], at: usize, size: usize) -> Result<usize> {
    let end = at.checked_add(size).context("its header is damaged")?;
    let bytes = bytes.get(at..end).context("its header is cut off")?;
    let mut wide = [0; 8];
    wide[..size].copy_from_slice(bytes);
    usize::try_from(u64::from_le_bytes(wide)).context("its header is damaged")
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
    fn a_program_names_its_compiler() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let found = toolchain(&own).unwrap();
        assert!(found.iter().any(|line| line.starts_with("rustc version 1.")), "{found:?}");
        assert!(toolchain(&own[..own.len() / 2]).is_err());
    }

    #[test]
    fn a_program_for_musl_that_needs_libraries_is_refused() {
        let program = |linkage| {
            let path = PathBuf::from("target/x86_64-unknown-linux-musl/release/exec-server");
            Program { path, arch: Arch::X86_64, linkage, bytes: Rc::new([]) }.static_only()
        };
        assert!(program(Linkage::Static).is_ok());
        let error = program(Linkage::Dynamic).err().unwrap().to_string();
        assert!(error.contains("release/exec-server is not static"), "{error}");
    }

    #[test]
    fn what_is_no_program_is_refused() {
        assert!(inspect(b"#!/bin/sh\n").is_err());
        assert!(inspect(b"\x7fELF\x02\x01").unwrap_err().to_string().contains("cut off"));
    }
}
