//! Runs the installed shells, each with its own home directory.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use exec_server_protocol::process::{Env, SnapshotShell};

use super::*;

const PATH: &str = "/usr/local/bin:/usr/bin:/bin";

#[test]
fn invalid_requests_are_rejected() {
    let request = |scope: &str, name: &str| ShellSnapshot {
        scope_id: scope.to_owned(),
        shell: SnapshotShell { name: name.to_owned(), path: "/bin/sh".to_owned() },
    };
    assert_eq!(validate(&request("s", "bash")), Ok(ShellKind::Bash));
    assert_eq!(validate(&request(&"s".repeat(256), "zsh")), Ok(ShellKind::Zsh));
    assert_eq!(validate(&request("s", "sh")), Ok(ShellKind::Sh));
    let message = |scope, name| validate(&request(scope, name)).unwrap_err().to_string();
    assert_eq!(message("s", "fish"), "shell snapshots are unsupported for shell `fish`");
    for scope in ["", &"s".repeat(257)] {
        assert_eq!(
            message(scope, "fish"),
            "shell snapshot scope must be non-empty and at most 256 bytes"
        );
    }
}

#[test]
fn only_login_commands_of_the_same_shell_are_replaced() {
    let snapshot = ShellSnapshot {
        scope_id: "s".to_owned(),
        shell: SnapshotShell { name: "sh".to_owned(), path: "/bin/sh".to_owned() },
    };
    let applies = |argv: &[&str]| {
        applies(&argv.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>(), &snapshot)
    };
    assert!(applies(&["/bin/sh", "-lc", "x"]));
    assert!(applies(&["/bin/sh", "-lc", "x", "-y"]));
    assert!(!applies(&["/bin/sh", "-lc"]));
    assert!(!applies(&["/bin/sh", "-c", "x"]));
    assert!(!applies(&["sh", "-lc", "x"]));
    assert!(!applies(&["/bin/sh", "-lc", "-x", "y"]));
}

#[test]
fn the_effect_of_a_profile_is_restored() {
    for shell in shells() {
        let home = Home::new(
            &shell,
            r#"
            echo noise; echo more noise >&2; printf 'unfinished line'
            echo run >> "$HOME/runs"
            export EXPORTED="it's \"two\"
lines \$(and) \`more\` \\" PATH="/from/profile:$PATH"
            plain=not_exported
            alias greet='echo "hello from"' multi='echo one
echo two'
            unset TAKEN_AWAY
            set -u
            cd /usr
            "#,
        );
        if shell.kind == ShellKind::Bash {
            home.append("shopt -s expand_aliases\n");
        }
        let snapshot = home.capture().expect("the profile is fine");
        let command = "echo $0 \"$1\" $#; printf '%s|' \"$EXPORTED\" \"${PATH%%:*}\" ${plain-none} ${TAKEN_AWAY-none}; \
            pwd; case $- in *u*) echo nounset;; esac; greet me; multi; readlink /proc/self/fd/3; exit 7";
        for _ in 0..2 {
            let output = home.restore(&snapshot, &[command, "zero", "a  b"]);
            let expected = "zero a  b 1\nit's \"two\"\nlines $(and) `more` \\|/from/profile|none|none|/\nnounset\n\
                 hello from me\none\ntwo\n";
            assert_eq!(text(&output.stdout), expected, "{shell:?} {}", text(&output.stderr));
            assert_eq!(text(&output.stderr), "", "{shell:?}");
            assert_eq!(output.status.code(), Some(7), "{shell:?}");
        }
        assert_eq!(home.file("runs"), "run\n", "{shell:?}");
    }
}

#[test]
fn functions_are_restored_where_the_shell_can_list_them() {
    for shell in shells().into_iter().filter(|shell| shell.kind != ShellKind::Sh) {
        let home = Home::new(
            &shell,
            "heredoc() {\ncat <<END\nto $1 'and' \"so\"\nEND\n}\nquoted() { echo \"it's\" $'a\\tb'; }\n",
        );
        if shell.kind == ShellKind::Bash {
            home.append("shopt -s extglob\nexport -f quoted\n");
            home.append("globbed() { case $1 in @(a|b)) echo yes;; esac; }\n");
        } else {
            home.append("globbed() { echo yes; }\n");
        }
        let snapshot = home.capture().expect("the profile is fine");
        let output = home.restore(&snapshot, &["heredoc me; quoted; globbed b"]);
        assert_eq!(text(&output.stdout), "to me 'and' \"so\"\nit's a\tb\nyes\n", "{shell:?}");
        if shell.kind == ShellKind::Bash {
            let output = home.restore(&snapshot, &["bash -c quoted"]);
            assert_eq!(text(&output.stdout), "it's a\tb\n");
        }
    }
}

#[test]
fn the_request_and_its_policy_come_before_the_profile() {
    for shell in shells() {
        let home = Home::new(
            &shell,
            "export REQUESTED=profile FILTERED=profile FREE=profile HTTP_PROXY=profile https_proxy=profile\n",
        );
        let snapshot = home.capture().expect("the profile is fine");
        let argv =
            shell.login(&["echo $REQUESTED ${FILTERED-none} $FREE $HTTP_PROXY $https_proxy"]);
        let request = Env::from([("REQUESTED".to_owned(), "request".to_owned())]);
        let (argv, script) =
            restore_argv(shell.kind, &argv, &snapshot, |name| name != "FILTERED", &request);
        let environment = [("REQUESTED", "request"), ("HTTP_PROXY", "live")];
        let output = home.run(&argv, &script, &environment, b"");
        assert_eq!(text(&output.stdout), "request none profile live profile\n", "{shell:?}");
    }
}

#[test]
fn variables_of_the_capture_request_are_not_restored() {
    for shell in shells() {
        let home = Home::new(&shell, "export CHANGED=$CHANGED+\n");
        let environment = home.environment(&[("UNCHANGED", "first"), ("CHANGED", "first")]);
        let snapshot = home.capture_with(&environment).expect("the profile is fine");
        let snapshot = snapshot.relative_to(&environment);
        let output = home.restore(&snapshot, &["echo ${UNCHANGED-none} $CHANGED"]);
        assert_eq!(text(&output.stdout), "none first+\n", "{shell:?}");
    }
}

#[test]
fn stdin_and_the_command_are_left_as_they_are() {
    for shell in shells() {
        let home = Home::new(&shell, "export A=1\n");
        let snapshot = home.capture().expect("the profile is fine");
        let argv = shell.login(&["cat; exec false"]);
        let (argv, script) = restore_argv(shell.kind, &argv, &snapshot, |_| true, &Env::new());
        let output = home.run(&argv, &script, &[], b"typed");
        assert_eq!((text(&output.stdout), output.status.code()), ("typed".to_owned(), Some(1)));

        for command in ["", "# nothing", "\n\n:", "cat <<'E'\nit's\nE", "echo 'a\nb'; echo \\\nc"] {
            let plain = home.plain(&[command]);
            let restored = home.restore(&snapshot, &[command]);
            assert_eq!(text(&restored.stdout), text(&plain.stdout), "{shell:?} {command}");
            assert_eq!(restored.status, plain.status, "{shell:?} {command}");
        }
        let broken = home.restore(&snapshot, &["if"]);
        assert!(!broken.status.success(), "{shell:?}");
    }
}

#[test]
fn errexit_applies_only_to_the_command() {
    for shell in shells() {
        let home = Home::new(&shell, "set -eu\nalias odd='x'\n");
        let snapshot = home.capture().expect("errexit is no obstacle");
        let output = home.restore(&snapshot, &["echo in; false; echo out"]);
        assert_eq!(text(&output.stdout), "in\n", "{shell:?}");
        assert_eq!(output.status.code(), Some(1), "{shell:?}");
        let output = home.restore(&snapshot, &["echo $nowhere; echo out"]);
        assert_eq!(text(&output.stdout), "", "{shell:?}");
    }
}

#[test]
fn a_script_that_cannot_be_read_breaks_nothing() {
    for shell in shells() {
        let home = Home::new(&shell, "export A=1\n");
        let snapshot = home.capture().expect("the profile is fine");
        let argv = shell.login(&["echo ${A-none}; exit 4"]);
        let (argv, _) = restore_argv(shell.kind, &argv, &snapshot, |_| true, &Env::new());
        let output = Command::new(&argv[0]).args(&argv[1..]).env_clear().output();
        let output = output.expect("the shell runs");
        assert_eq!((text(&output.stdout), output.status.code()), ("none\n".to_owned(), Some(4)));
        assert_eq!(text(&output.stderr), "", "{shell:?}");
        let output = home.run(&argv, b"syntax ) error ((\n", &[], b"");
        assert_eq!(text(&output.stderr), "", "{shell:?}");
    }
}

#[test]
fn traps_of_the_profile_neither_disturb_the_capture_nor_the_command() {
    for shell in shells() {
        let home = Home::new(
            &shell,
            "trap 'echo leaving; rm -f \"$HOME/kept\"' EXIT\ntouch \"$HOME/kept\"\n",
        );
        if shell.kind != ShellKind::Sh {
            home.append("trap 'echo debugging' DEBUG\n");
        }
        let snapshot = home.capture().expect("traps are dropped");
        let output = home.restore(&snapshot, &["cat \"$HOME/kept\"; echo done"]);
        assert_eq!(text(&output.stdout), "done\n", "{shell:?} {}", text(&output.stderr));
    }
}

#[test]
fn a_profile_that_exits_early_gives_no_snapshot() {
    for shell in shells() {
        assert_eq!(Home::new(&shell, "exit 3\n").capture(), None, "{shell:?}");
        // zsh does not apply `errexit` to its startup files.
        let is_ended = Home::new(&shell, "set -e\nfalse\n").capture().is_none();
        assert_eq!(is_ended, shell.kind != ShellKind::Zsh, "{shell:?}");
        assert_eq!(Home::new(&shell, "exec true\n").capture(), None, "{shell:?}");
        assert_eq!(Home::new(&shell, "exec >/dev/null\n").capture(), None, "{shell:?}");
        let failing = Home::new(&shell, "no_such_program\nexport A=1\n").capture();
        assert!(failing.is_some_and(|snapshot| snapshot.exports.contains_key("A")), "{shell:?}");
    }
}

#[test]
fn a_shell_of_another_kind_gives_no_snapshot() {
    let dash = Shell { kind: ShellKind::Bash, path: "/bin/dash".into() };
    assert_eq!(Home::new(&dash, "").capture(), None);
    let bash = Shell { kind: ShellKind::Zsh, path: "/bin/bash".into() };
    assert_eq!(Home::new(&bash, "").capture(), None);
}

#[test]
fn captures_are_bounded_and_need_both_marks() {
    let shell = Shell { kind: ShellKind::Bash, path: "/bin/bash".into() };
    let home = Home::new(&shell, "echo \"$BASH_EXECUTION_STRING\"\n");
    let stdout = home.captured(&home.environment(&[]));
    assert!(parse_capture(&stdout).is_some());
    assert_eq!(parse_capture(&stdout[..stdout.len() - 5]), None);
    assert_eq!(parse_capture(b""), None);
    let functions = text(&stdout).find(" functions\n").expect("it is a section") + 11;
    let mut big = stdout.clone();
    big.splice(functions..functions, vec![b'#'; MAX_SNAPSHOT_BYTES]);
    assert_eq!(parse_capture(&big), None);
    let mut noisy = vec![b'x'; 2 * MAX_SNAPSHOT_BYTES];
    noisy.extend_from_slice(&stdout);
    assert!(parse_capture(&noisy).is_some());
}

#[test]
fn a_bash_that_looks_remote_reads_no_other_startup_file() {
    let shell = Shell { kind: ShellKind::Bash, path: "/bin/bash".into() };
    let home = Home::new(&shell, "export A=1\n");
    fs::write(home.folder.path().join(".bashrc"), "echo noise\n").expect("the folder is ours");
    let snapshot = home.capture().expect("the profile is fine");
    let argv = shell.login(&["echo $A"]);
    let (argv, script) = restore_argv(shell.kind, &argv, &snapshot, |_| true, &Env::new());
    let output = home.run(&argv, &script, &[("SSH_CLIENT", "192.0.2.1 1 22")], b"");
    assert_eq!(text(&output.stdout), "1\n");
}

#[test]
fn bash_as_sh_keeps_its_functions() {
    let home =
        Home::new(&Shell { kind: ShellKind::Sh, path: "/bin/bash".into() }, "f() { echo kept; }\n");
    let snapshot = home.capture().expect("the profile is fine");
    assert_eq!(text(&home.restore(&snapshot, &["f"]).stdout), "kept\n");
}

#[derive(Debug, Clone)]
struct Shell {
    kind: ShellKind,
    path: PathBuf,
}

impl Shell {
    fn login(&self, rest: &[&str]) -> Vec<String> {
        let mut argv =
            vec![self.path.to_str().expect("test paths are text").to_owned(), "-lc".to_owned()];
        argv.extend(rest.iter().map(|word| (*word).to_owned()));
        argv
    }
}

/// The installed shells.
fn shells() -> Vec<Shell> {
    let known = [(ShellKind::Bash, "bash"), (ShellKind::Sh, "dash"), (ShellKind::Zsh, "zsh")];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut shells = Vec::new();
    for (kind, name) in known {
        match std::env::split_paths(&path)
            .map(|folder| folder.join(name))
            .find(|file| file.exists())
        {
            Some(path) => shells.push(Shell { kind, path }),
            None => eprintln!("skipped, not installed: {name}"),
        }
    }
    shells
}

/// A home directory with one shell profile.
struct Home {
    shell: Shell,
    folder: tempfile::TempDir,
}

impl Home {
    fn new(shell: &Shell, profile: &str) -> Self {
        let home = Self {
            shell: shell.clone(),
            folder: tempfile::tempdir().expect("a folder can be made"),
        };
        fs::write(home.profile(), profile).expect("the folder is ours");
        home
    }

    fn profile(&self) -> PathBuf {
        let name = match self.shell.kind {
            ShellKind::Bash | ShellKind::Sh => ".profile",
            ShellKind::Zsh => ".zprofile",
        };
        self.folder.path().join(name)
    }

    fn append(&self, more: &str) {
        let profile =
            self.file(self.profile().file_name().and_then(|name| name.to_str()).unwrap_or(""));
        fs::write(self.profile(), profile + more).expect("the folder is ours");
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).expect("the shell has written it")
    }

    fn environment(&self, more: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        let home = self.folder.path().as_os_str().to_owned();
        let mut environment = vec![("HOME".into(), home), ("TAKEN_AWAY".into(), "x".into())];
        environment.push(("PATH".into(), PATH.into()));
        environment.extend(more.iter().map(|(name, value)| (name.into(), value.into())));
        environment
    }

    fn captured(&self, environment: &[(OsString, OsString)]) -> Vec<u8> {
        let argv = capture_argv(self.shell.kind, self.shell.path.to_str().expect("text"));
        self.command(&argv, environment).output().expect("the shell runs").stdout
    }

    fn capture_with(&self, environment: &[(OsString, OsString)]) -> Option<Snapshot> {
        parse_capture(&self.captured(environment))
    }

    fn capture(&self) -> Option<Snapshot> {
        let environment = self.environment(&[]);
        Some(self.capture_with(&environment)?.relative_to(&environment))
    }

    fn restore(&self, snapshot: &Snapshot, rest: &[&str]) -> Output {
        let argv = self.shell.login(rest);
        let (argv, script) = restore_argv(self.shell.kind, &argv, snapshot, |_| true, &Env::new());
        self.run(&argv, &script, &[], b"")
    }

    fn plain(&self, rest: &[&str]) -> Output {
        let argv = self.shell.login(rest);
        self.command(&argv, &self.environment(&[])).output().expect("the shell runs")
    }

    /// Runs a command with the script on descriptor 3.
    fn run(&self, argv: &[String], script: &[u8], more: &[(&str, &str)], stdin: &[u8]) -> Output {
        let file = self.folder.path().join("script");
        fs::write(&file, script).expect("the folder is ours");
        let mut wrapped: Vec<String> =
            ["/bin/sh", "-c", "exec 3<\"$0\"; exec \"$@\""].map(str::to_owned).to_vec();
        wrapped.push(file.to_str().expect("test paths are text").to_owned());
        wrapped.extend_from_slice(argv);
        let mut child = self
            .command(&wrapped, &self.environment(more))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the shell runs");
        let mut pipe = child.stdin.take().expect("stdin is a pipe");
        // A command that reads nothing may have exited already.
        let _ = pipe.write_all(stdin);
        drop(pipe);
        child.wait_with_output().expect("the shell ends")
    }

    fn command(&self, argv: &[String], environment: &[(OsString, OsString)]) -> Command {
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).current_dir(Path::new("/")).env_clear().stdin(Stdio::null());
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
