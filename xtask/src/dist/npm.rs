//! npm packages: one per platform with the program, and `exec-server`, which starts the one for the machine.

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::program::{Arch, Program};
use super::release::{Release, SUMMARY, VERSION};
use super::tree::{Directories, Tree, gzip};
use super::{Artefact, Parts};

/// The package with the program for one platform.
pub fn platform_package(parts: &Parts) -> Result<Artefact> {
    let Parts { release, program, licences, .. } = parts;
    let arch = program.arch;
    let mut manifest =
        manifest(&package_name(arch), &format!("{SUMMARY} (Linux, {})", arch.node()));
    manifest.insert("os".to_owned(), json!(["linux"]));
    manifest.insert("cpu".to_owned(), json!([arch.node()]));
    manifest.insert("files".to_owned(), json!(["bin", "THIRD-PARTY-LICENSES.txt"]));
    let mut tree = Tree::default();
    tree.add_program("bin/exec-server", program.bytes.clone());
    tree.add("THIRD-PARTY-LICENSES.txt", licences);
    pack(release, tree, manifest, &format!("exec-server-linux-{}-{VERSION}.tgz", arch.node()))
}

/// The package that users name.
pub fn launcher_package(release: &Release, programs: &[Program]) -> Result<Artefact> {
    let platforms: Map<_, _> =
        programs.iter().map(|it| (package_name(it.arch), json!(VERSION))).collect();
    let mut manifest = manifest("exec-server", SUMMARY);
    manifest.insert("bin".to_owned(), json!({ "exec-server": "bin/exec-server.js" }));
    manifest.insert("files".to_owned(), json!(["bin"]));
    manifest.insert("engines".to_owned(), json!({ "node": ">=18" }));
    manifest.insert("optionalDependencies".to_owned(), Value::Object(platforms));
    let mut tree = Tree::default();
    let launcher = release.read("packaging/npm/exec-server.js")?;
    tree.add_program("bin/exec-server.js", launcher.into_bytes().into());
    pack(release, tree, manifest, &format!("exec-server-{VERSION}.tgz"))
}

fn package_name(arch: Arch) -> String {
    format!("@exec-server/linux-{}", arch.node())
}

fn manifest(name: &str, description: &str) -> Map<String, Value> {
    let fields = [
        ("name", name),
        ("version", VERSION),
        ("description", description),
        ("license", "Apache-2.0"),
    ];
    fields.into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect()
}

fn pack(
    release: &Release,
    mut tree: Tree,
    manifest: Map<String, Value>,
    name: &str,
) -> Result<Artefact> {
    let manifest = serde_json::to_string_pretty(&Value::Object(manifest))?;
    tree.add("package.json", manifest + "\n");
    tree.add("LICENSE", release.read("LICENSE")?);
    tree.add("README.md", release.read("packaging/npm/README.md")?);
    let tar = tree.tar("package/", Directories::Implied, release.epoch)?;
    Ok(Artefact::new(name, gzip(&tar, release.effort)?))
}
