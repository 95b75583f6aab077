//! Client commands with the reference as the server: missing features are emulated, rejected or reported.

use std::any::Any;
use std::fs::File;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::reference::{ReferenceClient, ReferenceServer, ReferenceVersion};
use exec_server_testkit::remote::{join_with, wait_for_presence};
use exec_server_testkit::{DEADLINE, Terminal, TestExecutor, TestRendezvous, eventually};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::{Ran, command, finish, ran};

/// How the client reaches a server of the reference.
#[derive(Clone, Copy)]
enum Transport {
    /// Directly.
    Direct,
    /// The reference is registered at our rendezvous.
    Rendezvous,
    /// Our forwarder is registered at our rendezvous, and connects to the server.
    Forward,
}

/// A server of the reference, and a folder that both sides use.
struct Foreign {
    target: String,
    variables: Vec<(&'static str, String)>,
    folder: tempfile::TempDir,
    _state: tempfile::TempDir,
    _running: Vec<Box<dyn Any>>,
}

impl Foreign {
    async fn start(version: ReferenceVersion, transport: Transport) -> Option<Self> {
        let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let client_state = state.path().join("client");
        std::fs::create_dir(&client_state).unwrap();
        let mut foreign = Self {
            target: "env:env".to_owned(),
            variables: vec![("EXEC_SERVER_STATE_DIR", client_state.display().to_string())],
            folder,
            _state: state,
            _running: Vec::new(),
        };
        if let Transport::Direct = transport {
            let server = ReferenceServer::start(version).await?;
            foreign.target = server.url().to_owned();
            foreign._running.push(Box::new(server));
            return Some(foreign);
        }
        let rendezvous = TestRendezvous::start().await;
        let executor_token = rendezvous.token(TokenRole::Executor, "env").await;
        let token = rendezvous.token(TokenRole::Harness, "env").await;
        if let Transport::Forward = transport {
            let server = ReferenceServer::start(version).await?;
            let state = foreign._state.path().join("forward");
            let forward = TestExecutor::builder().args(&["forward", "--connect", server.url()]);
            let forward = join_with(forward, rendezvous.url(), &state, &executor_token).spawn();
            foreign._running.extend([Box::new(server) as Box<dyn Any>, Box::new(forward)]);
        } else {
            let finding = move || ReferenceClient::find(version);
            let reference = tokio::task::spawn_blocking(finding).await.unwrap()?;
            let executor = reference.start_executor(rendezvous.url(), "env", &executor_token);
            foreign._running.push(Box::new(executor));
        }
        wait_for_presence(rendezvous.url(), rendezvous.admin_token(), true).await;
        foreign.variables.push(("EXEC_SERVER_REMOTE_URL", rendezvous.url().to_owned()));
        foreign.variables.push(("EXEC_SERVER_REMOTE_TOKEN", token));
        foreign._running.push(Box::new(rendezvous));
        // The first connection reports that the executor's key is new.
        let met = foreign.cli(&["info", &foreign.target]).await;
        assert!(met.code == 0 && met.err.contains("for the first time"), "{met:?}");
        Some(foreign)
    }

    fn command(&self, arguments: &[&str]) -> tokio::process::Command {
        let mut command = command(arguments);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    async fn cli(&self, arguments: &[&str]) -> Ran {
        finish(self.command(arguments).spawn().unwrap()).await
    }

    async fn run(&self, options: &[&str], argv: &[&str]) -> Ran {
        self.cli(&[&["run"], options, &[&self.target, "--"], argv].concat()).await
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn local(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn remote(&self, name: &str) -> String {
        format!("{}:{}", self.target, self.local(name))
    }
}

macro_rules! transports {
    ($($name:ident $version:ident $transport:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $name() {
                let started = Foreign::start(ReferenceVersion::$version, Transport::$transport).await;
                let Some(foreign) = started else { return };
                codes_of_commands(&foreign).await;
                secrets(&foreign, Transport::$transport).await;
                input(&foreign).await;
                time_and_signals(&foreign).await;
                trees(&foreign).await;
                streams(&foreign).await;
                listings(&foreign).await;
                facts(&foreign).await;
                what_is_refused(&foreign).await;
            }
        )*
    };
}

transports! {
    the_reference_0_166_directly             V0_166 Direct
    the_reference_0_166_at_a_rendezvous      V0_166 Rendezvous
    the_reference_0_166_behind_a_forwarder   V0_166 Forward
    the_reference_0_169_directly             V0_169 Direct
    the_reference_0_169_at_a_rendezvous      V0_169 Rendezvous
    the_reference_0_169_behind_a_forwarder   V0_169 Forward
}

async fn codes_of_commands(foreign: &Foreign) {
    assert_eq!(foreign.run(&[], &["sh", "-c", "echo out; exit 3"]).await, ran(3, "out\n", ""));
    assert_eq!(foreign.run(&[], &["sh", "-c", "kill -9 $$"]).await.code, 137);
    for program in ["no-such-program", "/no/such/program"] {
        let missing = foreign.run(&[], &[program]).await;
        assert_eq!(missing.code, 127, "{missing:?}");
        assert!(missing.err.contains(program) && missing.err.contains("PATH"), "{missing:?}");
    }
    std::fs::write(foreign.path("data"), "no program").unwrap();
    let unusable = foreign.run(&[], &[&foreign.local("data")]).await;
    assert_eq!(unusable.code, 126, "{unusable:?}");
    let nowhere = foreign.run(&["-w", "/no/such/directory"], &["true"]).await;
    assert_eq!(nowhere.code, 125, "{nowhere:?}");
    assert!(nowhere.err.contains("/no/such/directory"), "{nowhere:?}");
}

async fn secrets(foreign: &Foreign, transport: Transport) {
    let script = "echo ${DB_PASSWORD-none} ${CI_PAT-none} ${PATTERN_DIR-none} ${PWD+here}";
    let plain = if let Transport::Rendezvous = transport { "none" } else { "plain" };
    let expected = format!("none none {plain} here\n");
    assert_eq!(foreign.run(&[], &["sh", "-c", script]).await, ran(0, &expected, ""));
}

async fn input(foreign: &Foreign) {
    let marker = foreign.path("started");
    let script = format!(": > {}; cat", marker.display());
    let arguments = ["run", &foreign.target, "--", "sh", "-c", &script];
    std::fs::write(foreign.path("input"), "some input\n").unwrap();
    let file = || Stdio::from(File::open(foreign.path("input")).unwrap());
    for stdin in [file(), Stdio::piped()] {
        // An open pipe may never get data, and is rejected as well.
        let mut child = foreign.command(&arguments).stdin(stdin).spawn().unwrap();
        let pipe = child.stdin.take();
        let refused = finish(child).await;
        drop(pipe);
        assert_eq!((refused.code, refused.out.as_str()), (125, ""));
        assert!(refused.err.contains("cannot end the input"), "{}", refused.err);
        assert!(!marker.exists());
    }
    let child = foreign.command(&["shell", &foreign.target]).stdin(file()).spawn().unwrap();
    let refused = finish(child).await;
    assert_eq!((refused.code, refused.out.as_str()), (125, ""));
    assert!(refused.err.contains("copy the script first"), "{}", refused.err);
    assert!(!refused.err.contains("-n"), "{}", refused.err);
    std::fs::write(foreign.path("empty"), "").unwrap();
    let mut child = foreign.command(&arguments).stdin(Stdio::piped()).spawn().unwrap();
    drop(child.stdin.take());
    // A pipe that is closed before the client looks is empty; one that is closed later was refused.
    let closed = finish(child).await;
    assert!(closed.code == 0 || closed.err.contains("cannot end the input"), "{closed:?}");
    for stdin in [Stdio::null(), Stdio::from(File::open(foreign.path("empty")).unwrap())] {
        let child = foreign.command(&arguments).stdin(stdin).spawn().unwrap();
        assert_eq!(finish(child).await, ran(0, "", ""));
    }
    let without = [&["run", "-n"], &arguments[1..]].concat();
    let child = foreign.command(&without).stdin(file()).spawn().unwrap();
    assert_eq!(finish(child).await, ran(0, "", ""));
    // A terminal has a key for the end, also within a line.
    for typed in ["hello\n", "hello"] {
        let on_terminal =
            ["run", "-t", &foreign.target, "--", "sh", "-c", "stty -echo; echo ready; cat"];
        let mut child = foreign.command(&on_terminal).stdin(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(typed.as_bytes()).await.unwrap();
        drop(stdin);
        let shown = finish(child).await;
        assert_eq!(shown.code, 0, "{shown:?}");
        assert!(shown.out.contains("hello"), "{shown:?}");
    }
}

async fn time_and_signals(foreign: &Foreign) {
    let timed = foreign.run(&["--timeout", "500ms"], &["sleep", "600"]).await;
    assert_eq!((timed.code, timed.out.as_str()), (124, ""), "{timed:?}");
    assert!(timed.err.contains("timed out"), "{timed:?}");
    let flood = ["run", "--timeout", "500ms", &foreign.target, "--", "yes"];
    let flooding = foreign.command(&flood).stdout(Stdio::null()).spawn().unwrap();
    assert_eq!(finish(flooding).await.code, 124);
    assert_eq!(foreign.run(&["--timeout", "10m"], &["true"]).await, ran(0, "", ""));
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        // A single process: a shell that waits for a child may take the signal for the child's.
        let arguments = ["run", &foreign.target, "--", "sh", "-c", "echo $$; exec sleep 600"];
        let mut child = foreign.command(&arguments).spawn().unwrap();
        // Once output arrives, the client has installed its signal handlers.
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        timeout(DEADLINE, stdout.read_line(&mut line)).await.unwrap().unwrap();
        let command = Path::new("/proc").join(line.trim());
        let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        let ended = finish(child).await;
        assert_ne!(ended.code, 0, "{ended:?}");
        eventually("the command is gone", || !command.exists()).await;
    }
}

async fn trees(foreign: &Foreign) {
    let tree = foreign.path("tree");
    std::fs::create_dir_all(tree.join("sub/deep")).unwrap();
    std::fs::write(tree.join("small"), "small").unwrap();
    std::fs::write(tree.join("sub/deep/large"), vec![0xa5; 3_500_001]).unwrap();
    std::fs::write(tree.join("sub/empty"), "").unwrap();
    std::fs::set_permissions(tree.join("small"), PermissionsExt::from_mode(0o755)).unwrap();
    symlink("small", tree.join("link")).unwrap();
    symlink("sub", tree.join("directory link")).unwrap();
    let same = |copy: &str| {
        for name in ["small", "sub/deep/large", "sub/empty"] {
            let copied = std::fs::read(foreign.path(copy).join(name)).unwrap();
            assert!(copied == std::fs::read(tree.join(name)).unwrap(), "{copy}/{name}");
        }
    };
    // From the reference: links to files become files, a link to a directory is reported and skipped.
    for (options, copy) in [("-r", "down"), ("-rp", "down, kept")] {
        let down =
            foreign.cli(&["cp", options, &foreign.remote("tree"), &foreign.local(copy)]).await;
        assert_eq!(down.code, 1, "{down:?}");
        same(copy);
        assert_eq!(std::fs::read(foreign.path(copy).join("link")).unwrap(), b"small");
        assert!(!foreign.path(copy).join("directory link").exists());
        for told in ["directory link", "1 could not be copied", "does not report permission bits"] {
            assert_eq!(down.err.matches(told).count(), 1, "{told}: {}", down.err);
        }
    }
    let modified = |path: &Path| std::fs::metadata(path).unwrap().modified().unwrap();
    let (kept, original) = (foreign.path("down, kept/small"), tree.join("small"));
    let difference = modified(&kept).duration_since(modified(&original)).unwrap_or_default();
    assert!(difference.as_millis() < 2, "{difference:?}");
    // To the reference: unsupported attributes are reported once, and the rest is copied.
    std::fs::remove_file(tree.join("link")).unwrap();
    std::fs::remove_file(tree.join("directory link")).unwrap();
    for (options, copy) in [("-r", "up"), ("-rp", "up, kept")] {
        let up = foreign.cli(&["cp", options, &foreign.local("tree"), &foreign.remote(copy)]).await;
        assert_eq!(up.code, 0, "{up:?}");
        same(copy);
        let told = "cannot set permission bits and times";
        assert_eq!(up.err.matches(told).count(), 1, "{up:?}");
    }
    symlink("small", tree.join("link")).unwrap();
    let linked =
        foreign.cli(&["cp", "-r", &foreign.local("tree"), &foreign.remote("linked")]).await;
    assert_eq!(linked.code, 1, "{linked:?}");
    assert!(linked.err.contains("does not support creating links"), "{linked:?}");
    same("linked");
}

async fn streams(foreign: &Foreign) {
    let content = "line\n".repeat(500_000);
    std::fs::write(foreign.path("big"), &content).unwrap();
    let shown = foreign.cli(&["cat", &foreign.remote("big")]).await;
    assert!(shown == ran(0, &content, ""), "{} bytes, {}", shown.out.len(), shown.err);
    let printed = foreign.cli(&["cp", &foreign.remote("big"), "-"]).await;
    assert!(printed == ran(0, &content, ""), "{} bytes, {}", printed.out.len(), printed.err);
    let stored = foreign
        .command(&["cp", "-", &foreign.remote("stored")])
        .stdin(Stdio::from(File::open(foreign.path("big")).unwrap()))
        .spawn()
        .unwrap();
    assert_eq!(finish(stored).await, ran(0, "", ""));
    assert!(std::fs::read(foreign.path("stored")).unwrap() == content.as_bytes());
}

async fn listings(foreign: &Foreign) {
    let folder = foreign.path("listed");
    std::fs::create_dir_all(folder.join("directory")).unwrap();
    std::fs::write(folder.join("file"), "12345").unwrap();
    symlink("file", folder.join("link")).unwrap();
    let long = foreign.cli(&["ls", "-l", &foreign.remote("listed")]).await;
    assert_eq!(long.code, 0, "{long:?}");
    let lines: Vec<Vec<&str>> =
        long.out.lines().map(|line| line.split_ascii_whitespace().collect()).collect();
    let found: Vec<_> =
        lines.iter().map(|line| (line[0], line[1], *line.last().unwrap())).collect();
    let expected = [
        ("d?????????", "?", "directory"),
        ("-?????????", "?", "file"),
        ("l?????????", "?", "link"),
    ];
    assert_eq!(found, expected, "{}", long.out);
    assert_eq!(lines[1][2], "5", "{}", long.out);
    assert!(!long.out.contains("1970-01-01"), "{}", long.out);
    let json = foreign.cli(&["ls", "-o", "json", &foreign.remote("listed")]).await;
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json[1]["metadata"]["size"], 5);
    let short = foreign.cli(&["ls", &foreign.remote("listed")]).await;
    assert_eq!(short, ran(0, "directory\nfile\nlink\n", ""));
}

async fn facts(foreign: &Foreign) {
    let info = foreign.cli(&["info", &foreign.target]).await;
    let line =
        |name: &str| info.out.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    assert!(line("sandbox").contains("unknown"), "{}", info.out);
    let capabilities = line("capabilities");
    assert!(capabilities.contains("networkProxyLaunch"), "{}", info.out);
    assert!(!capabilities.contains("windowsMxc"), "{}", info.out);
    let json = foreign.cli(&["info", "-o", "json", &foreign.target]).await;
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["capabilities"]["credentialMasking"], true);
}

async fn what_is_refused(foreign: &Foreign) {
    let target = foreign.target.as_str();
    let marker = foreign.path("left");
    let touch = ["touch", marker.to_str().unwrap()];
    let left: &[&str] = &["run", "-d", target, "--"];
    let left = [left, &touch].concat();
    let commands: &[&[&str]] = &[
        &["ps", target],
        &["logs", target, "x"],
        &["kill", target, "x"],
        &["kill", "-s", "USR1", target, "x"],
        &["attach", target, "x"],
        &left,
    ];
    for arguments in commands {
        let refused = foreign.cli(arguments).await;
        assert!(matches!(refused.code, 1 | 125), "{arguments:?}: {refused:?}");
        assert!(refused.err.contains("the server does not support"), "{refused:?}");
    }
    assert!(!marker.exists());
    // The reference applies its own sandbox, or reports that it does not.
    let script = format!("touch {}", marker.display());
    let confined = foreign.run(&["--sandbox", "read-only"], &["sh", "-c", &script]).await;
    assert_ne!(confined.code, 0, "{confined:?}");
    assert!(!marker.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_reports_features_that_the_reference_lacks() {
    for version in ReferenceVersion::ALL {
        let Some(server) = ReferenceServer::start(version).await else { return };
        let program = exec_server_testkit::executor::binary();
        let env = [
            ("HOME", "/nonexistent"),
            ("PROGRAM", program.to_str().unwrap()),
            ("EXEC_SERVER_URL", server.url()),
        ];
        let script = "read go; exec \"$PROGRAM\" run -t -- sh";
        let mut terminal = Terminal::start(&["/bin/sh", "-c", script], &env).await;
        terminal.resize(33, 101).await;
        terminal.type_keys("\n").await;
        terminal.expect("it stays 80x24").await;
        terminal.expect("the detach keys are off").await;
        // Without them the keys go to the command.
        terminal.type_keys("\u{10}\u{11}\u{15}stty size; exit 42\n").await;
        terminal.expect("24 80").await;
        let (code, shown) = terminal.finish().await;
        assert_eq!(code, 42, "{shown}");
        let argv = [program.to_str().unwrap(), "run", "-t", "--", "sh", "-c", "echo ready; cat"];
        let mut terminal = Terminal::start(&argv, &env).await;
        terminal.expect("ready").await;
        // Input after a disabled escape still arrives.
        terminal.type_keys("\r~din''side\r").await;
        terminal.expect("does not keep detached commands").await;
        terminal.expect("in''side").await;
        terminal.type_keys("\r~.").await;
        terminal.expect("left; this server has no way back").await;
        assert_eq!(terminal.finish().await.0, 255);
    }
}
