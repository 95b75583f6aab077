//! The Debian package: an `ar` archive of two compressed tar archives, which needs no tools of Debian.

use std::fmt::Write;

use anyhow::Result;
use md5::{Digest, Md5};

use super::program::Linkage;
use super::release::{SUMMARY, UNITS, VERSION};
use super::tree::{Directories, Effort, Tree, gzip};
use super::{Artefact, Parts};

/// The package, with services that are installed but neither enabled nor started.
pub fn deb(parts: &Parts) -> Result<Artefact> {
    let Parts { release, program, documents, licences, maintainer } = parts;
    let mut data = documents.in_system("vendor-completions")?;
    data.add_program("usr/bin/exec-server", program.bytes.clone());
    data.add_tree("", &release.service_files()?);
    let notes = "usr/share/doc/exec-server";
    let changes = release.read("CHANGELOG.md")?;
    data.add(format!("{notes}/copyright"), copyright(&release.read("LICENSE")?));
    data.add(
        format!("{notes}/THIRD-PARTY-LICENSES.txt.gz"),
        gzip(licences.as_bytes(), Effort::Best)?,
    );
    data.add(format!("{notes}/changelog.gz"), gzip(changes.as_bytes(), Effort::Best)?);

    let mut control = Tree::default();
    let arch = program.arch.debian();
    control.add("control", fields(arch, program.linkage, data.size(), maintainer));
    control.add("md5sums", sums(&data));
    for script in ["postinst", "prerm", "postrm"] {
        let text = release.read(&format!("packaging/deb/{script}"))?;
        let text = text.replace("@UNITS@", &UNITS.join(" "));
        control.add_program(script, text.into_bytes().into());
    }
    let packed = |tree: &Tree| -> Result<Vec<u8>> {
        Ok(gzip(&tree.tar("", Directories::Listed, release.epoch)?, release.effort)?)
    };
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.gz", packed(&control)?),
        ("data.tar.gz", packed(&data)?),
    ];
    let package = ar(&members, release.epoch);
    Ok(Artefact::new(format!("exec-server_{}_{arch}.deb", debian_version()), package))
}

/// A pre-release sorts before its release in Debian if it is joined by a tilde.
fn debian_version() -> String {
    VERSION.replacen('-', "~", 1)
}

/// Checks a maintainer as the control file has it; an empty variable names none, so the default is used.
pub fn maintainer(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(super::AUTHORS.to_owned());
    }
    let is_valid = text.split_once(" <").is_some_and(|(name, rest)| {
        let address = rest.strip_suffix('>').and_then(|address| address.split_once('@'));
        !name.is_empty() && address.is_some_and(|(user, host)| !user.is_empty() && !host.is_empty())
    });
    let is_line = !text.contains(|letter: char| letter.is_control());
    if is_valid && is_line {
        Ok(text.to_owned())
    } else {
        Err("expected NAME <USER@HOST>".to_owned())
    }
}

fn fields(arch: &str, linkage: Linkage, bytes: u64, maintainer: &str) -> String {
    let version = debian_version();
    let kib = bytes.div_ceil(1024);
    let depends = match linkage {
        Linkage::Static => "",
        Linkage::Dynamic => "Depends: libc6\n",
    };
    format!(
        "Package: exec-server\nVersion: {version}\nArchitecture: {arch}\n\
         Maintainer: {maintainer}\n\
         Installed-Size: {kib}\n{depends}Recommends: ca-certificates\nSection: net\nPriority: optional\n\
         Description: {SUMMARY}\n \
         Server, client commands, relay and MCP server in one program. Sessions survive\n \
         lost connections, and commands can run in a sandbox that the kernel enforces.\n"
    )
}

fn sums(data: &Tree) -> String {
    let mut text = String::new();
    for (path, file) in data.files() {
        let sum = Md5::digest(&file.content);
        for byte in sum {
            write!(text, "{byte:02x}").expect("a string takes everything");
        }
        writeln!(text, "  {path}").expect("a string takes everything");
    }
    text
}

fn copyright(licence: &str) -> String {
    format!("exec-server is licensed under the Apache License, version 2.0:\n\n{licence}")
}

/// Members with fixed owners and times; a member of odd size is followed by a newline.
fn ar(members: &[(&str, Vec<u8>)], epoch: u64) -> Vec<u8> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, content) in members {
        let size = content.len();
        let header = format!("{name:<16}{epoch:<12}{:<6}{:<6}{:<8}{size:<10}`\n", 0, 0, 100_644);
        debug_assert_eq!(header.len(), 60);
        archive.extend_from_slice(header.as_bytes());
        archive.extend_from_slice(content);
        if size % 2 == 1 {
            archive.push(b'\n');
        }
    }
    archive
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maintainer_has_a_name_and_an_address() {
        assert_eq!(maintainer(" A B <a@b.org> "), Ok("A B <a@b.org>".to_owned()));
        assert_eq!(maintainer(crate::dist::AUTHORS), Ok(crate::dist::AUTHORS.to_owned()));
        assert_eq!(maintainer(""), Ok(crate::dist::AUTHORS.to_owned()));
        for bad in ["A B", "<a@b.org>", "A <b.org>", "A <a@b.org", "A <@b>", "A\nB: c <a@b>"] {
            assert!(maintainer(bad).is_err(), "{bad}");
        }
    }
}
