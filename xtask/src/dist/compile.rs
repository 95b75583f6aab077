//! Compiles the static program: the musl target of Rust, and a C compiler for aws-lc, SQLite and mimalloc.
//!
//! The linker and the C library are those of the Rust toolchain. The C compiler is, in this order: `CC_<target>` of
//! the environment, `zig` of `cargo xtask dist --fetch`, `zig` on the path, `musl-gcc`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::program::Arch;
use super::release::Release;
use super::run;
use crate::check::cargo;

/// Compiles the program for `arch` and returns its path.
pub fn compile(release: &Release, arch: Arch, offline: bool) -> Result<PathBuf> {
    let target = arch.musl_target();
    let tools = Tools::of(release);
    let compiler = tools.c_compiler(arch)?;
    eprintln!("dist: compiling for {target} (C by {})", compiler.shown());
    let mut command = Command::new(cargo());
    command
        .current_dir(&release.root)
        .args(["build", "--release", "--locked", "--package", "exec-server", "--target", &target])
        .args(offline.then_some("--offline"))
        .env("SOURCE_DATE_EPOCH", release.epoch.to_string())
        .env("CARGO_ENCODED_RUSTFLAGS", rust_flags(&release.root)?);
    compiler.set(&mut command, release, arch)?;
    run(&mut command).context("the program was not built")?;
    Ok(target_dir(release).join(target).join("release/exec-server"))
}

/// Downloads what a later build needs: crates, the Rust targets, the C compiler.
pub fn fetch(release: &Release, arches: &[Arch]) -> Result<()> {
    run(Command::new(cargo()).args(["fetch", "--locked"]).current_dir(&release.root))?;
    let targets: Vec<_> = arches.iter().map(|arch| arch.musl_target()).collect();
    run(Command::new("rustup").args(["target", "add"]).args(&targets).current_dir(&release.root))
        .context("the musl targets of Rust were not installed")?;
    let tools = Tools::of(release);
    if tools.own_zig().is_none() {
        let venv = tools.dir.join("venv");
        run(Command::new("python3").args(["-m", "venv"]).arg(&venv))
            .context("Python with venv is needed for the C compiler (or install musl-tools)")?;
        let pip = ["install", "--quiet", "--require-hashes", "--only-binary=:all:", "-r"];
        let zig = release.root.join("packaging/zig.txt");
        run(Command::new(venv.join("bin/pip")).args(pip).arg(zig))
            .context("the C compiler was not installed")?;
    }
    Ok(())
}

fn rust_flags(root: &Path) -> Result<String> {
    let mut flags = vec!["-Clinker=rust-lld".to_owned()];
    flags.extend(remaps(root, "--remap-path-prefix")?);
    Ok(flags.join("\x1f"))
}

/// Options by which paths of this machine do not get into the program, so that it is the same from every directory.
fn remaps(root: &Path, option: &str) -> Result<Vec<String>> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| {
        let home = std::env::var_os("HOME")?;
        Some(Path::new(&home).join(".cargo"))
    });
    let home = home.context("neither CARGO_HOME nor HOME is set")?;
    let paths = [(home.as_path(), "/cargo"), (root, "/exec-server")];
    Ok(paths.map(|(from, to)| format!("{option}={}={to}", from.display())).into())
}

fn target_dir(release: &Release) -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => release.root.join(dir),
        None => release.root.join("target"),
    }
}

/// Programs that were downloaded for releases.
struct Tools {
    dir: PathBuf,
}

enum CCompiler {
    /// The environment names one.
    Given(String),
    Zig(PathBuf),
    MuslGcc,
}

impl Tools {
    fn of(release: &Release) -> Self {
        Self { dir: target_dir(release).join("dist-tools") }
    }

    fn own_zig(&self) -> Option<PathBuf> {
        let versions = std::fs::read_dir(self.dir.join("venv/lib")).ok()?;
        let zig = |version: std::fs::DirEntry| version.path().join("site-packages/ziglang/zig");
        versions.flatten().map(zig).find(|zig| zig.exists())
    }

    fn c_compiler(&self, arch: Arch) -> Result<CCompiler> {
        let variable = format!("CC_{}", arch.musl_target().replace('-', "_"));
        if let Ok(given) = std::env::var(&variable) {
            return Ok(CCompiler::Given(given));
        }
        if let Some(zig) = self.own_zig().or_else(|| on_path("zig")) {
            return Ok(CCompiler::Zig(zig));
        }
        if arch.name() == std::env::consts::ARCH && on_path("musl-gcc").is_some() {
            return Ok(CCompiler::MuslGcc);
        }
        bail!(
            "no C compiler for {}: run `cargo xtask dist --fetch` once, which installs zig below \
             target/, or install Debian's musl-tools, or set {variable}",
            arch.musl_target()
        )
    }
}

impl CCompiler {
    fn shown(&self) -> String {
        match self {
            Self::Given(command) => command.clone(),
            Self::Zig(path) => path.display().to_string(),
            Self::MuslGcc => "musl-gcc".to_owned(),
        }
    }

    fn set(&self, command: &mut Command, release: &Release, arch: Arch) -> Result<()> {
        let target = arch.musl_target().replace('-', "_");
        let maps = remaps(&release.root, "-ffile-prefix-map")?;
        command.env(format!("CFLAGS_{target}"), maps.join(" "));
        match self {
            Self::Given(_) => {}
            Self::MuslGcc => {
                command.env(format!("CC_{target}"), "musl-gcc");
            }
            Self::Zig(zig) => {
                let dir = Tools::of(release).dir.join("bin");
                let cc = dir.join(format!("{}-musl-cc", arch.name()));
                write_program(&cc, &zig_cc(zig, arch))?;
                let ar = dir.join("zig-ar");
                write_program(&ar, &format!("#!/bin/sh\nexec '{}' ar \"$@\"\n", zig.display()))?;
                command.env(format!("CC_{target}"), cc).env(format!("AR_{target}"), ar);
            }
        }
        Ok(())
    }
}

/// zig names targets in its own way, and its checks at run time need a library that is not linked.
fn zig_cc(zig: &Path, arch: Arch) -> String {
    format!(
        r#"#!/bin/sh
for argument do
    shift
    case "$argument" in
        --target=*) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec '{}' cc -target {}-linux-musl -fno-sanitize=all "$@"
"#,
        zig.display(),
        arch.name()
    )
}

/// Writes a script only if it changed: cargo compiles everything again after a newer compiler.
fn write_program(path: &Path, text: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let dir = path.parent().context("the script has no directory")?;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", path.display()))
}

/// The program of this name on the path.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [(&str, &str); 4] = [
        (
            "Cargo.toml",
            "[workspace]\nmembers = ['part']\n[package]\nname = 'whole'\nedition = '2024'\n\
             [dependencies]\npart = { path = 'part' }\n[profile.release]\ndebug = true\n",
        ),
        ("src/main.rs", "fn main() { part::check(std::env::args().count()) }\n"),
        ("part/Cargo.toml", "[package]\nname = 'part'\nedition = '2024'\n"),
        ("part/src/lib.rs", "pub fn check(count: usize) { assert!(count < 9, \"too many\") }\n"),
    ];

    /// The program, with lines of the source for a debugger, which name its directory.
    fn built(root: &Path, flags: &[String]) -> Vec<u8> {
        for (name, text) in FILES {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let mut command = Command::new(cargo());
        command.current_dir(root).args(["build", "--quiet", "--release", "--offline"]);
        command.args(["--target-dir", "target"]).env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"));
        run(&mut command).unwrap();
        std::fs::read(root.join("target/release/whole")).unwrap()
    }

    #[test]
    fn a_program_is_the_same_from_every_directory() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two, other] = ["one", "a/second-directory", "without-flags"]
            .map(|name| dir.path().canonicalize().unwrap().join(name));
        let same = |root: &Path| built(root, &remaps(root, "--remap-path-prefix").unwrap());
        assert!(same(&one) == same(&two), "paths of the build are in the program");
        let place = other.to_str().unwrap().as_bytes();
        let has_place = |program: &[u8]| program.windows(place.len()).any(|part| part == place);
        assert!(has_place(&built(&other, &[])), "this test would not notice a path");
    }
}
