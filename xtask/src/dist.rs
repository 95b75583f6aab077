//! `cargo xtask dist`: makes the artefacts of a release.
//!
//! The same commit and program give the same bytes: members are sorted, owned by root, and have the time of the commit.

mod compile;
mod deb;
mod dependencies;
mod documents;
mod licences;
mod npm;
mod oci;
mod program;
mod release;
mod rpm;
mod sbom;
mod sums;
mod tarball;
mod tree;
mod wheel;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};

use documents::Documents;
use program::{Arch, Program};
use release::{Release, VERSION};
use tree::Effort;

const EXAMPLES: &str = "\
Examples:
  cargo xtask dist --fetch                                     download what a release needs, once
  cargo xtask dist                                             make everything, offline
  cargo xtask dist --arch x86_64,aarch64 --sign-key ~/.ssh/release
  cargo xtask dist --only tarball,deb --binary target/debug/exec-server --out /tmp/dist

--binary skips the compilation. A program that is not static makes packages for this machine's C library.
docs/install.md says how users install each piece, RELEASING.md how a release is made.";

/// Options of `cargo xtask dist`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// Make only these pieces, separated by commas [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PIECE")]
    only: Vec<Piece>,
    /// Processor architectures to compile for, separated by commas
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "x86_64",
        conflicts_with = "binary"
    )]
    arch: Vec<Arch>,
    /// Package this program instead of compiling one; repeat it for several architectures
    #[arg(long, value_name = "FILE")]
    binary: Vec<PathBuf>,
    /// Directory for the artefacts; emptied of artefacts first [default: target/dist]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// SSH key that signs SHA256SUMS: a private key, or the public key of one in the SSH agent
    #[arg(long, value_name = "FILE", env = "EXEC_SERVER_SIGNING_KEY")]
    sign_key: Option<PathBuf>,
    /// Public key that signs SHA256SUMS later, elsewhere: install.sh requires its signature
    #[arg(long, value_name = "FILE.pub", conflicts_with = "sign_key")]
    signer: Option<PathBuf>,
    /// Address of the files of this release, for install.sh; {version} stands for the version
    #[arg(long, value_name = "URL", env = "EXEC_SERVER_RELEASE_URL")]
    release_url: Option<String>,
    /// Maintainer of the Debian package, as `NAME <ADDRESS>` [default: `authors` in Cargo.toml]
    #[arg(long, value_name = "TEXT", env = "EXEC_SERVER_MAINTAINER", value_parser = deb::maintainer)]
    maintainer: Option<String>,
    /// Download what a release needs (crates, Rust targets, a C compiler), and stop
    #[arg(long)]
    fetch: bool,
    /// Compress less, for tests
    #[arg(long)]
    fast: bool,
    /// Do not install and run the artefacts, which tools/test-dist.sh does with every complete release that is compiled here
    #[arg(long)]
    no_check: bool,
    /// Allow cargo to use the network
    #[arg(long)]
    online: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Piece {
    /// .tar.zst and .tar.gz: program, man pages, completions, units, docs
    Tarball,
    /// install.sh, which installs from the tarball
    Installer,
    /// Debian package
    Deb,
    /// RPM package
    Rpm,
    /// npm packages: one per platform, and the one that users name
    Npm,
    /// Python wheel: the SDK with the program inside
    Wheel,
    /// Container image as an OCI layout
    Oci,
    /// Bill of materials (CycloneDX)
    Sbom,
    /// Licences of the libraries in the program
    Licences,
}

/// What the packages of one platform are made of.
struct Parts<'a> {
    release: &'a Release,
    program: &'a Program,
    documents: &'a Documents,
    licences: &'a str,
    maintainer: &'a str,
}

/// A file of the release.
struct Artefact {
    name: String,
    bytes: Vec<u8>,
    is_executable: bool,
}

impl Artefact {
    fn new(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { name: name.into(), bytes, is_executable: false }
    }

    fn executable(self) -> Self {
        Self { is_executable: true, ..self }
    }
}

/// Makes the artefacts and prints a table of them.
pub fn run_task(options: &Options) -> ExitCode {
    match make(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dist: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn make(options: &Options) -> Result<()> {
    let release = Release::of_workspace(if options.fast { Effort::Fast } else { Effort::Best })?;
    if options.fetch {
        return compile::fetch(&release, &options.arch);
    }
    let programs = programs(&release, options)?;
    let here = programs.iter().find(|it| it.runs_here());
    let here = here.context("no program runs on this machine, so there are no man pages")?;
    let documents = Documents::of(here)?;
    let out = options.out.clone().unwrap_or_else(|| release.root.join("target/dist"));
    let mut writer = Writer::new(&out)?;
    let wants = |piece| options.only.is_empty() || options.only.contains(&piece);
    let mut all_dependencies = Vec::new();
    for program in &programs {
        let target = program.target();
        let dependencies = dependencies::of_program(&release, &target)?;
        let licences = licences::report(&dependencies)?;
        let parts = Parts {
            release: &release,
            program,
            documents: &documents,
            licences: &licences,
            maintainer: options.maintainer.as_deref().unwrap_or(AUTHORS),
        };
        if wants(Piece::Tarball) {
            for artefact in tarball::tarballs(&parts)? {
                writer.write(&artefact)?;
            }
        }
        if wants(Piece::Deb) {
            writer.write(&deb::deb(&parts)?)?;
        }
        if wants(Piece::Rpm) {
            writer.write(&rpm::rpm(&parts)?)?;
        }
        if wants(Piece::Npm) {
            writer.write(&npm::platform_package(&parts)?)?;
        }
        if wants(Piece::Wheel) {
            writer.write(&wheel::wheel(&parts)?)?;
        }
        if wants(Piece::Sbom) {
            writer.write(&sbom::sbom(&release, &target, &dependencies)?)?;
        }
        all_dependencies.extend(dependencies);
    }
    // Platforms differ in a few crates.
    all_dependencies.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    all_dependencies.dedup_by(|a, b| (&a.name, &a.version) == (&b.name, &b.version));
    let licences = licences::report(&all_dependencies)?;
    if wants(Piece::Npm) {
        writer.write(&npm::launcher_package(&release, &programs)?)?;
    }
    if wants(Piece::Oci) {
        writer.write(&oci::image(&release, &programs, &licences)?)?;
    }
    if wants(Piece::Licences) {
        writer.write(&Artefact::new("THIRD-PARTY-LICENSES.txt", licences.into_bytes()))?;
    }
    let key = options.sign_key.as_deref();
    if wants(Piece::Installer) {
        let signer = key.or(options.signer.as_deref());
        let signers = signer.map(tarball::allowed_signer).transpose()?;
        let url = options.release_url.as_deref();
        writer.write(&tarball::installer(&release, url, signers.as_deref())?)?;
    }
    writer.finish(&release, &programs, key)?;
    // What is compiled here is what users get, so it is installed and run here first.
    if options.only.is_empty() && options.binary.is_empty() && !options.no_check {
        let mut check = Command::new(release.root.join("tools/test-dist.sh"));
        run(check.args(["--static", "--dist"]).arg(std::path::absolute(&out)?))
            .context("the artefacts do not pass their checks")?;
    }
    Ok(())
}

/// The given programs, or new ones.
fn programs(release: &Release, options: &Options) -> Result<Vec<Program>> {
    let mut found: Vec<Program> = Vec::new();
    for path in &options.binary {
        found.push(Program::read(path)?);
    }
    if found.is_empty() {
        for arch in &options.arch {
            let path = compile::compile(release, *arch, !options.online)?;
            found.push(Program::read(&path)?.static_only()?);
        }
    }
    let mut programs: Vec<Program> = Vec::new();
    for program in found {
        if let Some(other) = programs.iter().find(|it| it.arch == program.arch) {
            bail!(
                "{} and {} are for the same processor",
                other.path.display(),
                program.path.display()
            );
        }
        programs.push(program);
    }
    Ok(programs)
}

/// Writes artefacts to a directory that has nothing else.
struct Writer {
    out: PathBuf,
    /// Name, size and digest of each artefact.
    written: Vec<(String, usize, String)>,
}

/// Maintainer of the packages unless another is named.
const AUTHORS: &str = env!("CARGO_PKG_AUTHORS");

/// Version and files of the release, for `exec-server update --check`.
const FACTS: &str = "release.json";

/// The file that marks a directory of artefacts.
const SUMS: &str = "SHA256SUMS";

impl Writer {
    /// Empties a directory that an earlier run made; refuses any other that has files.
    fn new(out: &Path) -> Result<Self> {
        let shown = out.display();
        if out.exists() {
            let is_empty = std::fs::read_dir(out)
                .with_context(|| format!("cannot read {shown}"))?
                .next()
                .is_none();
            ensure!(
                is_empty || out.join(SUMS).exists(),
                "{shown} has other files in it; name an empty directory"
            );
            std::fs::remove_dir_all(out).with_context(|| format!("cannot empty {shown}"))?;
        }
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {shown}"))?;
        // A run that is interrupted leaves a directory that the next run may empty.
        std::fs::write(out.join(SUMS), "").with_context(|| format!("cannot write to {shown}"))?;
        Ok(Self { out: out.to_owned(), written: Vec::new() })
    }

    fn write(&mut self, artefact: &Artefact) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let path = self.out.join(&artefact.name);
        eprintln!("dist: {}", artefact.name);
        std::fs::write(&path, &artefact.bytes)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let mode = if artefact.is_executable { 0o755 } else { 0o644 };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
            .with_context(|| format!("cannot set the mode of {}", path.display()))?;
        let digest = sums::sha256(&artefact.bytes);
        self.written.push((artefact.name.clone(), artefact.bytes.len(), digest));
        Ok(())
    }

    fn finish(mut self, release: &Release, programs: &[Program], key: Option<&Path>) -> Result<()> {
        self.written.sort();
        let facts = release.facts(&self.written, programs)?;
        self.write(&Artefact::new(FACTS, facts))?;
        self.written.sort();
        let sums: Vec<_> =
            self.written.iter().map(|(name, _, sum)| (name.clone(), sum.clone())).collect();
        sums::write(&self.out, &sums, key)?;
        let width = self.written.iter().map(|(name, ..)| name.len()).max().unwrap_or_default();
        println!("{:<width$}  {:>10}  sha256", "artefact", "bytes");
        for (name, size, digest) in &self.written {
            println!("{name:<width$}  {size:>10}  {digest}");
        }
        match key {
            Some(key) => println!("SHA256SUMS is signed with {}", key.display()),
            None => println!("SHA256SUMS is NOT signed; --sign-key FILE signs it"),
        }
        println!("exec-server {VERSION} is in {}", self.out.display());
        Ok(())
    }
}

/// Runs a command and fails with what it was.
fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{:?}", command.get_program());
    let status = command.status().with_context(|| format!("cannot run {shown}"))?;
    ensure!(status.success(), "{shown} failed with {status}");
    Ok(())
}
