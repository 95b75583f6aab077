//! The licences of the crates in the program, with the texts that their authors ask to pass on.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};

use super::dependencies::Dependency;

/// A list of all crates, and each different text once with the crates that have it.
pub fn report(dependencies: &[Dependency]) -> Result<String> {
    let mut text =
        "exec-server contains these libraries, under the licences that they state:\n\n".to_owned();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let foreign = dependencies.iter().filter(|it| it.checksum.is_some());
    for dependency in foreign {
        let title = format!("{} {}", dependency.name, dependency.version);
        writeln!(text, "{title}: {}", dependency.license)?;
        let found = notices(&dependency.directory)?;
        if found.is_empty() {
            writeln!(text, "    (its archive has no licence file)")?;
        }
        for notice in found {
            texts.entry(notice).or_default().push(title.clone());
        }
    }
    let mut sections: Vec<_> = texts.into_iter().map(|(notice, titles)| (titles, notice)).collect();
    sections.sort();
    for (titles, notice) in sections {
        write!(text, "\n{}\n{}\n\n{}\n", "=".repeat(80), titles.join(", "), notice.trim_end())?;
    }
    Ok(text)
}

/// Licence and notice files at the top of a crate.
fn notices(directory: &Path) -> Result<Vec<String>> {
    const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];
    let files = std::fs::read_dir(directory)
        .with_context(|| format!("cannot read {} (run `cargo fetch`)", directory.display()))?;
    let mut found = BTreeMap::new();
    for file in files {
        let file = file?;
        let name = file.file_name().to_string_lossy().to_uppercase();
        if NAMES.iter().any(|it| name.starts_with(it)) && file.file_type()?.is_file() {
            let bytes = std::fs::read(file.path())?;
            found.insert(name, String::from_utf8_lossy(&bytes).replace("\r\n", "\n"));
        }
    }
    Ok(found.into_values().collect())
}
