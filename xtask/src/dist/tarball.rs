//! The archive for all machines, as `.tar.zst` and as `.tar.gz`, and the script that installs from it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::documents::guides;
use super::release::{Release, VERSION};
use super::tree::{Directories, Tree, gzip, zstd};
use super::{Artefact, Parts};

/// Program, documents and units in one directory.
pub fn tarballs(parts: &Parts) -> Result<Vec<Artefact>> {
    let Parts { release, program, documents, licences, .. } = parts;
    let mut tree = Tree::default();
    tree.add_program("exec-server", program.bytes.clone());
    for name in ["README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md"] {
        tree.add(name, release.read(name)?);
    }
    tree.add("THIRD-PARTY-LICENSES.txt", licences);
    for (name, text) in guides(release)? {
        tree.add(format!("docs/{name}"), text);
    }
    for (name, text) in &documents.manuals {
        tree.add(format!("man/man1/{name}"), text);
    }
    tree.add("completions/exec-server.bash", &documents.bash);
    tree.add("completions/_exec-server", &documents.zsh);
    tree.add("completions/exec-server.fish", &documents.fish);
    tree.add_tree("", &release.service_files()?);
    let name = release.name(&program.target());
    let tar = tree.tar(&format!("{name}/"), Directories::Listed, release.epoch)?;
    Ok(vec![
        Artefact::new(format!("{name}.tar.zst"), zstd(&tar, release.effort)?),
        Artefact::new(format!("{name}.tar.gz"), gzip(&tar, release.effort)?),
    ])
}

/// `install.sh` with the address and the signers of this release in it.
pub fn installer(release: &Release, url: Option<&str>, signers: Option<&str>) -> Result<Artefact> {
    let url = url.unwrap_or_default();
    let signers = signers.unwrap_or_default();
    ensure!(
        !url.contains('\'') && !signers.contains('\''),
        "a quote cannot be put into install.sh"
    );
    let mut text = release.read("packaging/install.sh")?;
    for (name, value) in [("@VERSION@", VERSION), ("@RELEASE_URL@", url), ("@SIGNERS@", signers)] {
        ensure!(text.contains(name), "packaging/install.sh has no {name}");
        text = text.replace(name, value);
    }
    Ok(Artefact::new("install.sh", text.into_bytes()).executable())
}

/// The line for `ssh-keygen -Y verify` that accepts signatures of this key.
pub fn allowed_signer(key: &Path) -> Result<String> {
    let public = if key.extension().is_some_and(|it| it == "pub") {
        std::fs::read_to_string(key).with_context(|| format!("cannot read {}", key.display()))?
    } else {
        let output = Command::new("ssh-keygen")
            .args(["-y", "-f"])
            .arg(key)
            .output()
            .context("cannot run ssh-keygen")?;
        let reason = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot use {} to sign: {}", key.display(), reason.trim());
        String::from_utf8(output.stdout).context("ssh-keygen printed no text")?
    };
    let mut words = public.split_whitespace();
    let (Some(kind), Some(key)) = (words.next(), words.next()) else {
        anyhow::bail!("{} is no key", key.display())
    };
    Ok(format!("release namespaces=\"exec-server\" {kind} {key}"))
}
