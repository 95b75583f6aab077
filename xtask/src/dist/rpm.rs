//! The RPM package, made without rpmbuild.

use anyhow::{Context, Result};
use rpm::{BuildConfig, CompressionWithLevel, Dependency, FileOptions, PackageBuilder, Scriptlet};

use super::program::Linkage;
use super::release::{SUMMARY, VERSION};
use super::{Artefact, Parts};

const DESCRIPTION: &str = "Server, client commands, relay and MCP server in one program. Sessions survive lost \
    connections, and commands can run in a sandbox that the kernel enforces.";

/// The same files as in the Debian package; services are neither enabled nor started.
pub fn rpm(parts: &Parts) -> Result<Artefact> {
    let Parts { release, program, documents, licences, .. } = parts;
    let mut tree = documents.in_system("site-functions")?;
    tree.add_program("usr/bin/exec-server", program.bytes.clone());
    tree.add_tree("", &release.service_files()?);
    tree.add("usr/share/licenses/exec-server/LICENSE", release.read("LICENSE")?);
    tree.add("usr/share/licenses/exec-server/THIRD-PARTY-LICENSES.txt", licences);
    let arch = program.arch.name();
    let version = VERSION.replacen('-', "~", 1);
    let date = u32::try_from(release.epoch).context("the time of the commit is too large")?;
    let config = BuildConfig::v4()
        .compression(CompressionWithLevel::Gzip(release.effort.gzip_level()))
        .source_date(date)
        .reserved_space(None);
    let mut package = PackageBuilder::new("exec-server", &version, "Apache-2.0", arch, SUMMARY);
    package
        .using_config(config)
        .release("1")
        .description(DESCRIPTION)
        .build_host("exec-server")
        .recommends(Dependency::any("ca-certificates"))
        .post_install_script(Scriptlet::new(release.read("packaging/rpm/post")?))
        .pre_uninstall_script(Scriptlet::new(release.read("packaging/rpm/preun")?));
    if program.linkage == Linkage::Dynamic {
        package.requires(Dependency::any("glibc"));
    }
    for (path, file) in tree.files() {
        let mode = u16::try_from(file.mode).context("the mode of a file")?;
        package.with_file_contents(
            &*file.content,
            FileOptions::new(format!("/{path}")).permissions(mode),
        )?;
    }
    let mut bytes = Vec::new();
    package.build()?.write(&mut bytes)?;
    Ok(Artefact::new(format!("exec-server-{version}-1.{arch}.rpm"), bytes))
}
