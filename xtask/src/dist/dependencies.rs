//! The crates that are compiled into the program, from `cargo metadata` and Cargo.lock.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::release::Release;
use crate::check::cargo;

/// A crate of the program.
pub struct Dependency {
    pub name: String,
    pub version: String,
    /// SPDX expression.
    pub license: String,
    pub description: Option<String>,
    pub repository: Option<String>,
    /// Digest of the published archive; none for the crates of this workspace.
    pub checksum: Option<String>,
    pub directory: PathBuf,
    /// Names and versions of the crates that this one uses.
    pub uses: Vec<(String, String)>,
}

/// All crates that the program for `target` uses at run time, sorted; those that only build or test it are left out.
pub fn of_program(release: &Release, target: &str) -> Result<Vec<Dependency>> {
    let metadata = metadata(release, target)?;
    let checksums = checksums(release)?;
    let packages: BTreeMap<_, _> = metadata.packages.iter().map(|it| (&it.id, it)).collect();
    let nodes: BTreeMap<_, _> = metadata.resolve.nodes.iter().map(|it| (&it.id, it)).collect();
    let root = metadata.packages.iter().find(|it| it.name == "exec-server");
    let root = root.context("the workspace has no package exec-server")?;
    let mut seen = BTreeSet::from([&root.id]);
    let mut waiting = vec![&root.id];
    let mut found = Vec::new();
    while let Some(id) = waiting.pop() {
        let package = packages.get(id).context("cargo metadata has no entry for a crate")?;
        let node = nodes.get(id).context("cargo metadata did not resolve a crate")?;
        let mut uses = Vec::new();
        for edge in node.deps.iter().filter(|it| it.dep_kinds.iter().any(|it| it.kind.is_none())) {
            let used =
                packages.get(&edge.pkg).context("cargo metadata has no entry for a crate")?;
            uses.push((used.name.clone(), used.version.clone()));
            if seen.insert(&edge.pkg) {
                waiting.push(&edge.pkg);
            }
        }
        uses.sort();
        found.push(package.with(uses, &checksums)?);
    }
    found.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(found)
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    description: Option<String>,
    repository: Option<String>,
    manifest_path: PathBuf,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Deserialize)]
struct EdgeKind {
    /// `dev` or `build`; none if it is used at run time.
    kind: Option<String>,
}

impl Package {
    fn with(
        &self,
        uses: Vec<(String, String)>,
        checksums: &BTreeMap<(String, String), String>,
    ) -> Result<Dependency> {
        let (name, version) = (self.name.clone(), self.version.clone());
        let license = self.license.clone();
        let license = license.with_context(|| format!("{name} {version} states no licence"))?;
        let directory = self.manifest_path.parent().context("a crate has no directory")?.to_owned();
        let checksum = checksums.get(&(name.clone(), version.clone())).cloned();
        Ok(Dependency {
            name,
            version,
            // The old way to write OR.
            license: license.replace('/', " OR "),
            description: self.description.as_deref().map(|it| it.trim().to_owned()),
            repository: self.repository.clone(),
            checksum,
            directory,
            uses,
        })
    }
}

fn metadata(release: &Release, target: &str) -> Result<Metadata> {
    let output = Command::new(cargo())
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args(["--filter-platform", target])
        .current_dir(&release.root)
        .output()
        .context("cannot run cargo metadata")?;
    let reason = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata failed (run `cargo fetch` first): {reason}");
    serde_json::from_slice(&output.stdout).context("cannot read cargo metadata")
}

fn checksums(release: &Release) -> Result<BTreeMap<(String, String), String>> {
    #[derive(Deserialize)]
    struct Lock {
        package: Vec<Locked>,
    }
    #[derive(Deserialize)]
    struct Locked {
        name: String,
        version: String,
        checksum: Option<String>,
    }
    let lock: Lock = toml::from_str(&release.read("Cargo.lock")?).context("Cargo.lock")?;
    let published = lock.package.into_iter();
    Ok(published.filter_map(|it| Some(((it.name, it.version), it.checksum?))).collect())
}
