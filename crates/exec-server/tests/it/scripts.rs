//! `run.sh`, `test.sh` and `deploy/cluster/up`: the checks before the build.
//!
//! The tools that they call are stubs: nothing is built or installed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use exec_server_testkit::Terminal;
use exec_server_testkit::executor::binary;

/// A directory with the only programs that a script finds.
struct Tools {
    folder: tempfile::TempDir,
}

impl Tools {
    /// All that the scripts need, for root on Debian, without a compiler.
    fn new() -> Self {
        let tools = Self { folder: tempfile::tempdir().unwrap() };
        for name in ["bash", "env", "dirname"] {
            let found = ["/bin", "/usr/bin"].map(|folder| Path::new(folder).join(name));
            let found = found.into_iter().find(|path| path.exists()).expect("every system has it");
            symlink(found, tools.path().join(name)).unwrap();
        }
        tools.add("cargo", "exit 0");
        tools.add("id", "echo 0");
        tools.add("apt-get", &format!("echo \"$@\" >> {}", tools.installed_file().display()));
        tools
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn installed_file(&self) -> PathBuf {
        self.path().join("installed")
    }

    fn add(&self, name: &str, script: &str) {
        let path = self.path().join(name);
        fs::write(&path, format!("#!{}/bash\n{script}\n", self.path().display())).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// Arguments of the apt-get stub.
    fn installed(&self) -> String {
        fs::read_to_string(self.installed_file()).unwrap_or_default()
    }

    /// The script on a terminal, with our debug build in place of what it would have built.
    async fn run_on_a_terminal(&self) -> Terminal {
        let target = self.path().join("target");
        fs::create_dir_all(target.join("release")).unwrap();
        let _ = symlink(binary(), target.join("release/exec-server"));
        let (path, home) = (self.path().to_str().unwrap(), self.path().to_str().unwrap());
        let script = repository().join("run.sh");
        let env = [("PATH", path), ("HOME", home), ("CARGO_TARGET_DIR", target.to_str().unwrap())];
        Terminal::start(&[script.to_str().unwrap()], &env).await
    }
}

fn repository() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    folder.canonicalize().expect("the tests belong to a repository")
}

#[tokio::test]
async fn on_a_terminal_the_server_prints_the_next_commands() {
    let tools = Tools::new();
    tools.add("cc", "exit 0");
    let mut terminal = tools.run_on_a_terminal().await;
    terminal.expect(&format!("Documentation: {}/README.md and ", repository().display())).await;
    terminal.expect("ws://").await;
    let rest = terminal.expect("\n").await;
    let url = format!("ws://{}", rest.trim_end());
    let line = terminal.expect(" -- uname -a").await;
    let command = line.lines().last().unwrap().trim().to_owned();
    // It can be pasted as it is.
    let words: Vec<&str> = command.split(' ').collect();
    assert_eq!(words[1..], ["run", &url, "--", "uname", "-a"], "{command}");
    terminal.expect("exec-server demo` shows").await;
    terminal.expect("Documentation: ").await;
    terminal.expect("exec-server --help").await;
    let ran = Command::new(words[0])
        .args(["run", &url, "--", "/bin/echo", "pasted"])
        .env_clear()
        .env("HOME", tools.path())
        .stdin(Stdio::null())
        .output();
    assert_eq!(String::from_utf8_lossy(&ran.unwrap().stdout), "pasted\n");
    terminal.type_keys("\u{3}").await;
    assert_eq!(terminal.finish().await.0, 0);
}

#[tokio::test]
async fn on_a_terminal_nothing_is_installed_without_a_yes() {
    let tools = Tools::new();
    let mut terminal = tools.run_on_a_terminal().await;
    terminal.expect("Install build-essential with apt-get now? [y/N] ").await;
    terminal.type_keys("\n").await;
    let (code, shown) = terminal.finish().await;
    assert_eq!(code, 1, "{shown}");
    assert!(shown.contains("nothing was installed"), "{shown}");
    assert_eq!(tools.installed(), "");
    let mut terminal = tools.run_on_a_terminal().await;
    terminal.expect("[y/N] ").await;
    terminal.type_keys("y\n").await;
    terminal.expect("ws://").await;
    assert_eq!(tools.installed(), "update -qq\ninstall -y -qq build-essential\n");
}

#[test]
fn without_a_terminal_the_installation_is_announced() {
    let tools = Tools::new();
    let script = repository().join("tools/need-compiler.sh");
    let run = || {
        let mut command = Command::new(tools.path().join("bash"));
        command.arg("-euc").arg(format!(". {}", script.display()));
        command.env_clear().env("PATH", tools.path()).env("HOME", tools.path());
        let output = command.stdin(Stdio::null()).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = run();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("installing build-essential with apt-get"), "{said}");
    assert_eq!(tools.installed(), "update -qq\ninstall -y -qq build-essential\n");
    // A user without permission to install is told what to do.
    tools.add("id", "echo 1000");
    let (code, said) = run();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("sudo apt-get install build-essential"), "{said}");
    assert_eq!(tools.installed().lines().count(), 2);
}

#[test]
fn the_servers_of_a_cluster_are_installed_unless_that_is_declined() {
    let tools = Tools::new();
    let script = repository().join("tools/need-engines.sh");
    let run = |before: &str| {
        let mut command = Command::new(tools.path().join("bash"));
        let text = format!("{before}\n. {}\necho \"missing:$missing_engines\"", script.display());
        command.arg("-euc").arg(text).env_clear().env("PATH", tools.path());
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        // Without `ls`, no installed version is found.
        let missing = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(missing.starts_with("missing: postgresql"), "{missing}");
        said
    };
    assert_eq!(run("install_engines=no"), "");
    assert_eq!(tools.installed(), "");
    let said = run("");
    assert!(
        said.contains("needs postgresql") && said.contains("installing with apt-get"),
        "{said}"
    );
    assert!(
        tools
            .installed()
            .starts_with("update -qq\ninstall -y -qq --no-install-recommends postgresql")
    );
    // A user without permission to install.
    tools.add("id", "echo 1000");
    assert_eq!(run(""), "");
    assert_eq!(tools.installed().lines().count(), 2);
}
