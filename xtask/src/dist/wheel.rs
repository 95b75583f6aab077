//! The Python wheel: the SDK and the program, with the metadata of `sdk/python/pyproject.toml`.
//!
//! `pip install sdk/python` and the source archive go through maturin, which compiles the program; the wheel of a
//! release has the same files around the program of the release. `tools/test-dist.sh` compares the two.

use std::collections::BTreeMap;
use std::io::{Cursor, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use base64_turbo::URL_SAFE_NO_PAD;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::program::{Linkage, Program};
use super::release::{Release, VERSION};
use super::tree::Tree;
use super::{Artefact, Parts};

#[derive(Deserialize)]
struct PyProject {
    project: Project,
}

/// Every field is named, so that a new one cannot be left out of the wheel without an error.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Project {
    name: String,
    description: String,
    readme: String,
    requires_python: String,
    license: String,
    #[serde(rename = "dynamic")]
    _dynamic: Vec<String>,
    dependencies: Vec<String>,
    classifiers: Vec<String>,
    optional_dependencies: BTreeMap<String, Vec<String>>,
    entry_points: BTreeMap<String, BTreeMap<String, String>>,
}

/// The wheel for the platform of the program.
pub fn wheel(parts: &Parts) -> Result<Artefact> {
    let Parts { release, program, licences, .. } = parts;
    let text = release.read("sdk/python/pyproject.toml")?;
    let PyProject { project } = toml::from_str(&text).context("sdk/python/pyproject.toml")?;
    let readme = release.read(&format!("sdk/python/{}", project.readme))?;
    let name = project.name.replace('-', "_");
    let version = python_version();
    let tag = format!("py3-none-{}", platform_tag(program));

    let mut tree = Tree::default();
    add_sources(&mut tree, &release.root.join("sdk/python/src"), "")?;
    let scripts = format!("{name}-{version}.data/scripts");
    tree.add_program(format!("{scripts}/exec-server"), program.bytes.clone());
    let info = format!("{name}-{version}.dist-info");
    tree.add(format!("{info}/METADATA"), metadata(&project, &version, &readme));
    tree.add(format!("{info}/WHEEL"), wheel_file(&tag));
    tree.add(format!("{info}/entry_points.txt"), entry_points(&project));
    tree.add(format!("{info}/licenses/LICENSE"), release.read("LICENSE")?);
    tree.add(format!("{info}/licenses/THIRD-PARTY-LICENSES.txt"), licences);
    let record = record(&tree, &format!("{info}/RECORD"));
    tree.add(format!("{info}/RECORD"), record);
    Ok(Artefact::new(format!("{name}-{version}-{tag}.whl"), zip(&tree, release)?))
}

/// `1.0.0-rc.1` is `1.0.0rc1` in Python.
fn python_version() -> String {
    VERSION.replace("-rc.", "rc").replace("-beta.", "b").replace("-alpha.", "a")
}

/// A static program runs with every C library.
fn platform_tag(program: &Program) -> String {
    let arch = program.arch.name();
    match program.linkage {
        Linkage::Static => {
            format!("manylinux_2_17_{arch}.manylinux2014_{arch}.musllinux_1_1_{arch}")
        }
        Linkage::Dynamic => format!("linux_{arch}"),
    }
}

fn add_sources(tree: &mut Tree, dir: &Path, prefix: &str) -> Result<()> {
    for entry in std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        if entry.file_type()?.is_dir() {
            if name != "__pycache__" {
                add_sources(tree, &entry.path(), &format!("{path}/"))?;
            }
        } else if name.ends_with(".py") || name == "py.typed" {
            tree.add(path, std::fs::read(entry.path())?);
        }
    }
    Ok(())
}

fn metadata(project: &Project, version: &str, readme: &str) -> String {
    let mut lines = vec![
        "Metadata-Version: 2.4".to_owned(),
        format!("Name: {}", project.name),
        format!("Version: {version}"),
    ];
    lines.extend(project.classifiers.iter().map(|it| format!("Classifier: {it}")));
    lines.extend(project.dependencies.iter().map(|it| format!("Requires-Dist: {it}")));
    for (extra, packages) in &project.optional_dependencies {
        lines.push(format!("Provides-Extra: {extra}"));
        let requires = |it: &String| format!("Requires-Dist: {it} ; extra == '{extra}'");
        lines.extend(packages.iter().map(requires));
    }
    lines.extend([
        "License-File: LICENSE".to_owned(),
        "License-File: THIRD-PARTY-LICENSES.txt".to_owned(),
        format!("Summary: {}", project.description),
        format!("License-Expression: {}", project.license),
        format!("Requires-Python: {}", project.requires_python),
        "Description-Content-Type: text/markdown; charset=UTF-8; variant=GFM".to_owned(),
        String::new(),
    ]);
    format!("{}\n{readme}", lines.join("\n"))
}

fn wheel_file(tag: &str) -> String {
    let (python, platforms) = tag.rsplit_once('-').expect("a tag has three parts");
    let tags: String =
        platforms.split('.').map(|platform| format!("Tag: {python}-{platform}\n")).collect();
    format!("Wheel-Version: 1.0\nGenerator: xtask dist\nRoot-Is-Purelib: false\n{tags}")
}

fn entry_points(project: &Project) -> String {
    let mut text = String::new();
    for (group, points) in &project.entry_points {
        text += &format!("[{group}]\n");
        for (name, target) in points {
            text += &format!("{name}={target}\n");
        }
        text.push('\n');
    }
    text
}

/// Digest and size of every file; the record has neither for itself.
fn record(tree: &Tree, own: &str) -> String {
    let mut text = String::new();
    for (path, file) in tree.files() {
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(&file.content));
        text += &format!("{path},sha256={digest},{}\n", file.content.len());
    }
    text + &format!("{own},,\n")
}

fn zip(tree: &Tree, release: &Release) -> Result<Vec<u8>> {
    let time = time::OffsetDateTime::from_unix_timestamp(i64::try_from(release.epoch)?)?;
    let (date, time) = (time.date(), time.time());
    let year = u16::try_from(date.year()).context("the year of the commit")?;
    let time = DateTime::from_date_and_time(
        year,
        date.month().into(),
        date.day(),
        time.hour(),
        time.minute(),
        time.second(),
    )
    .context("zip archives cannot have the time of the commit")?;
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (path, file) in tree.files() {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(i64::from(release.effort.gzip_level())))
            .last_modified_time(time)
            .unix_permissions(0o100_000 | file.mode);
        archive.start_file(path, options)?;
        archive.write_all(&file.content)?;
    }
    Ok(archive.finish()?.into_inner())
}
