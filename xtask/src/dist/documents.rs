//! Documents of the packages: man pages and completions, which the program prints, and files of the source tree.

use anyhow::{Context, Result};

use super::program::Program;
use super::release::Release;
use super::tree::{Effort, Tree, gzip};

/// Man pages and shell completions.
pub struct Documents {
    /// Name and text of each page of section 1.
    pub manuals: Vec<(String, String)>,
    pub bash: String,
    pub zsh: String,
    pub fish: String,
}

impl Documents {
    /// Runs the program to get its documents.
    pub fn of(program: &Program) -> Result<Self> {
        let dir = tempfile::tempdir().context("cannot make a temporary directory")?;
        let path = dir.path().to_str().context("the temporary directory has a strange name")?;
        program.run(&["__man", path])?;
        let mut manuals = Vec::new();
        for file in std::fs::read_dir(dir.path()).context("cannot list the man pages")? {
            let file = file.context("cannot list the man pages")?;
            let name = file.file_name().to_string_lossy().into_owned();
            manuals.push((name, std::fs::read_to_string(file.path())?));
        }
        manuals.sort();
        Ok(Self {
            manuals,
            bash: program.run(&["completions", "bash"])?,
            zsh: program.run(&["completions", "zsh"])?,
            fish: program.run(&["completions", "fish"])?,
        })
    }

    /// The documents in the directories of a distribution.
    ///
    /// Distributions differ in the directory below `usr/share/zsh`.
    pub fn in_system(&self, zsh: &str) -> Result<Tree> {
        let mut tree = Tree::default();
        for (name, text) in &self.manuals {
            tree.add(format!("usr/share/man/man1/{name}.gz"), gzip(text.as_bytes(), Effort::Best)?);
        }
        tree.add("usr/share/bash-completion/completions/exec-server", &self.bash);
        tree.add(format!("usr/share/zsh/{zsh}/_exec-server"), &self.zsh);
        tree.add("usr/share/fish/vendor_completions.d/exec-server.fish", &self.fish);
        Ok(tree)
    }
}

/// The pages of `docs/` and their pictures, with their names.
pub fn guides(release: &Release) -> Result<Vec<(String, String)>> {
    let dir = release.root.join("docs");
    let files =
        std::fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut pages = Vec::new();
    for file in files {
        let name = file?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") || name.ends_with(".svg") {
            let text = release.read(&format!("docs/{name}"))?;
            pages.push((name, text));
        }
    }
    pages.sort();
    Ok(pages)
}
