//! `exec-server service`: the files that it writes, the commands that it runs, and what it refuses.
//!
//! Services are installed below a directory or for a user with a home of its own, with programs in place of those of
//! systemd that note how they were called; the units are read by the real systemd.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use exec_server_testkit::TestExecutor;

const TOKEN: &str = "xs_a-token-of-this-test";

/// Answers `is-active`, and refuses to start a socket unit as systemd does: while its service is active.
const STATES: &str = r#"
case "$*" in
    *is-active*)
        for unit; do :; done
        state=$(cat "DIR/$unit" 2>/dev/null || echo inactive)
        echo "$state"
        [ "$state" = active ] || exit 3 ;;
    *start*exec-server*.socket* | *--now*exec-server*.socket*)
        for socket; do case "$socket" in *.socket) break ;; esac; done
        state=$(cat "DIR/${socket%.socket}.service" 2>/dev/null || echo inactive)
        [ "$state" = inactive ] || { echo "Job failed." >&2; exit 1; } ;;
    *stop*)
        for unit; do :; done
        rm -f "DIR/$unit" ;;
esac
"#;

struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let machine = Self { dir: tempfile::tempdir().unwrap() };
        for name in ["bin", "root", "runtime/systemd", "config", "states"] {
            fs::create_dir_all(machine.path(name)).unwrap();
        }
        for program in ["systemctl", "systemd-sysusers", "journalctl"] {
            let path = machine.path("bin").join(program);
            let log = machine.path("calls");
            let text = format!("#!/bin/sh\necho \"{program} $*\" >>'{}'\n", log.display());
            let states = machine.path("states");
            let text = text + &STATES.replace("DIR", states.to_str().unwrap());
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The commands that were run since the last call.
    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.path("calls"));
        let root = format!("--root={} ", self.path("root").display());
        text.lines()
            .filter(|line| !line.contains("is-active"))
            .map(|line| line.replace(&root, ""))
            .collect()
    }

    /// Sets what `is-active` answers from now on.
    fn set_states(&self, states: &[(&str, &str)]) {
        for (unit, state) in states {
            fs::write(self.path("states").join(unit), state).unwrap();
        }
    }

    /// `service install` for this user, which starts; returns the output and the commands.
    async fn started(&self, words: &[&str]) -> (String, Vec<String>) {
        self.calls();
        let (code, out, errors) = self.service(&[&["install", "--user"], words].concat()).await;
        let calls = self.calls();
        assert_eq!((code, errors.as_str()), (0, ""), "{words:?}: {out}{calls:?}");
        (out, calls.iter().map(|line| line.replace("systemctl --user ", "")).collect())
    }

    async fn service(&self, words: &[&str]) -> (i32, String, String) {
        let path = std::env::var("PATH").unwrap_or_default();
        TestExecutor::builder()
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("XDG_CONFIG_HOME", self.path("config"))
            .env("XDG_RUNTIME_DIR", self.path("runtime"))
            .args(&["service"])
            .args(words)
            .run()
            .await
    }

    /// `service install` into the system below the directory.
    async fn install(&self, words: &[&str]) -> (i32, String, String) {
        let root = self.path("root");
        let common =
            ["install", "--program", "/usr/bin/exec-server", "--root", root.to_str().unwrap()];
        self.service(&[&common, words].concat()).await
    }

    async fn installed(&self, words: &[&str]) -> String {
        let (code, out, errors) = self.install(words).await;
        assert_eq!((code, errors.as_str()), (0, ""), "{words:?}: {out}");
        out
    }

    async fn refused(&self, words: &[&str], reason: &str) {
        let (code, out, errors) = self.install(words).await;
        assert_eq!((code, out.as_str()), (1, ""), "{words:?}: {errors}");
        assert!(
            errors.starts_with("exec-server: ") && errors.contains(reason),
            "{words:?}: {errors}"
        );
    }

    fn root(&self, path: &str) -> PathBuf {
        self.path("root").join(path)
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.root(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    /// All files below the directory of the system.
    fn files(&self) -> Vec<String> {
        fn walk(dir: &Path, all: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() { walk(&path, all) } else { all.push(path) }
            }
        }
        let mut all = Vec::new();
        walk(&self.path("root"), &mut all);
        let root = self.path("root");
        let mut names: Vec<String> =
            all.iter().map(|it| it.strip_prefix(&root).unwrap().display().to_string()).collect();
        names.sort();
        names
    }
}

const UNITS: &str = "etc/systemd/system";

#[tokio::test]
async fn a_server_has_its_token_as_a_credential_and_systemd_listens() {
    let machine = Machine::new();
    let token = machine.path("token");
    fs::write(&token, format!("{TOKEN}\n")).unwrap();
    let words = [
        "--listen",
        "ws://0.0.0.0:7000",
        "--socket",
        "--token-file",
        token.to_str().unwrap(),
        "server",
    ];
    let options = ["--", "--max-sessions", "5", "--cgroup", "/a b"];
    let out = machine.installed(&[&words[..], &options].concat()).await;
    assert!(out.contains("exec-server.socket is enabled, and starts with the system"), "{out}");
    assert_eq!(
        machine.calls(),
        [
            "systemd-sysusers --inline u exec-server - \"exec-server\" /var/lib/exec-server /usr/sbin/nologin",
            "systemctl enable exec-server.socket"
        ]
    );
    assert_eq!(
        machine.files(),
        [
            "etc/exec-server/server.env",
            "etc/exec-server/server.token",
            "etc/systemd/system/exec-server.service",
            "etc/systemd/system/exec-server.service.d/exec-server-token.conf",
            "etc/systemd/system/exec-server.socket",
        ]
    );
    assert_eq!(machine.text("etc/exec-server/server.token"), TOKEN);
    let mode = |path: &str| fs::metadata(machine.root(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("etc/exec-server/server.token"), mode("etc/exec-server")), (0o600, 0o700));
    // The token is in no other file, and in no output.
    let others = machine.files().into_iter().filter(|path| !path.ends_with(".token"));
    assert!(others.map(|path| machine.text(&path)).all(|text| !text.contains(TOKEN)));
    assert!(!out.contains(TOKEN));
    let variables = machine.text("etc/exec-server/server.env");
    assert!(variables.contains("\nEXEC_SERVER_LISTEN=\"ws://0.0.0.0:7000\"\n"), "{variables}");
    assert!(
        variables.contains("\nEXEC_SERVER_OPTIONS=\"--max-sessions 5 --cgroup '/a b'\"\n"),
        "{variables}"
    );
    assert!(
        machine
            .text(&format!("{UNITS}/exec-server.socket"))
            .contains("\nListenStream=0.0.0.0:7000\n")
    );
    let drop_in = machine.text(&format!("{UNITS}/exec-server.service.d/exec-server-token.conf"));
    assert!(drop_in.contains("\nLoadCredential=token:%E/exec-server/server.token\n"), "{drop_in}");

    // Without --socket, and with the token that is there.
    let out = machine.installed(&["--listen", "ws://0.0.0.0:7000", "server"]).await;
    assert!(
        out.contains("the service keeps the token that it has")
            && out.contains("removed /etc/systemd/system/exec-server.socket"),
        "{out}"
    );
    let calls = machine.calls();
    assert_eq!(calls[0], "systemctl disable exec-server.socket");
    assert_eq!(calls[2], "systemctl enable exec-server.service");
    assert!(machine.root("etc/exec-server/server.token").exists());
}

#[tokio::test]
async fn an_installation_can_be_repeated_and_leaves_nothing() {
    let machine = Machine::new();
    machine.installed(&["rendezvous", "--", "--public-url", "https://relay.example.org"]).await;
    let before: Vec<(String, String)> =
        machine.files().into_iter().map(|path| (path.clone(), machine.text(&path))).collect();
    assert_eq!(before.len(), 2, "{before:?}");
    let out =
        machine.installed(&["rendezvous", "--", "--public-url", "https://relay.example.org"]).await;
    assert_eq!(out.matches("unchanged /etc/").count(), 2, "{out}");
    let out =
        machine.installed(&["rendezvous", "--", "--public-url", "https://other.example.org"]).await;
    assert!(
        out.contains("replaced /etc/exec-server/rendezvous.env")
            && out.contains("unchanged /etc/systemd"),
        "{out}"
    );
    machine.calls();

    let root = machine.path("root");
    let uninstall = ["uninstall", "--root", root.to_str().unwrap(), "rendezvous"];
    let (code, out, errors) = machine.service(&[&uninstall[..], &["--dry-run"]].concat()).await;
    assert!(
        code == 0 && out.contains("would remove /etc/exec-server/rendezvous.env"),
        "{out}{errors}"
    );
    assert_eq!(machine.files().len(), 2);
    let (code, out, errors) = machine.service(&uninstall).await;
    assert_eq!((code, errors.as_str()), (0, ""), "{out}");
    assert!(out.contains("kept: the state in /var/lib/exec-server-rendezvous"), "{out}");
    assert_eq!(machine.calls(), ["systemctl disable exec-server-rendezvous.service"]);
    assert_eq!(machine.files(), Vec::<String>::new());
    assert!(!machine.root("etc/exec-server").exists());
    let (code, _, errors) = machine.service(&uninstall).await;
    assert!(code == 1 && errors.contains("nothing was changed"), "{errors}");
}

#[tokio::test]
async fn files_of_others_and_changes_by_hand_are_not_replaced() {
    let machine = Machine::new();
    machine.installed(&["server"]).await;
    let unit = machine.root(&format!("{UNITS}/exec-server.service"));
    let text = fs::read_to_string(&unit).unwrap();
    fs::write(&unit, text.replace("RestartSec=1", "RestartSec=9")).unwrap();
    machine
        .refused(
            &["server"],
            "exec-server.service was changed by hand: move the changes to a drop-in",
        )
        .await;
    let root = machine.path("root");
    let uninstall = ["uninstall", "--root", root.to_str().unwrap(), "server"];
    let (code, _, errors) = machine.service(&uninstall).await;
    assert!(code == 1 && errors.contains("was changed by hand: --force removes it"), "{errors}");
    let out = machine.installed(&["--force", "server"]).await;
    assert!(out.contains("replaced /etc/systemd/system/exec-server.service"), "{out}");
    assert_eq!(fs::read_to_string(&unit).unwrap(), text);
    fs::write(&unit, "[Service]\nExecStart=/bin/other\n").unwrap();
    for force in [&["server"][..], &["--force", "server"]] {
        machine.refused(force, "exists and was not written by `exec-server service install`").await;
    }
    // A unit of a package is configured, not covered.
    fs::remove_file(&unit).unwrap();
    fs::create_dir_all(machine.root("usr/lib/systemd/system")).unwrap();
    fs::write(machine.root("usr/lib/systemd/system/exec-server.service"), "[Service]\n").unwrap();
    machine
        .refused(
            &["server"],
            "a package has the unit /usr/lib/systemd/system/exec-server.service already",
        )
        .await;
}

#[tokio::test]
async fn executors_share_a_unit_that_goes_with_the_last() {
    let machine = Machine::new();
    let token = machine.path("token");
    fs::write(&token, TOKEN).unwrap();
    let common = ["--remote", "https://relay.example.org", "--token-file", token.to_str().unwrap()];
    for name in ["one", "two"] {
        machine.installed(&[&common[..], &["executor", name]].concat()).await;
        let calls = machine.calls();
        assert_eq!(calls[1], format!("systemctl enable exec-server-executor@{name}.service"));
    }
    assert_eq!(machine.files().len(), 5, "{:?}", machine.files());
    let variables = machine.text("etc/exec-server/executor-one.env");
    assert!(variables.contains("EXEC_SERVER_REMOTE=\"https://relay.example.org/\""), "{variables}");
    let root = machine.path("root");
    for (name, left) in [("one", 3), ("two", 0)] {
        let words = ["uninstall", "--root", root.to_str().unwrap(), "executor", name];
        let (code, out, errors) = machine.service(&words).await;
        assert_eq!((code, errors.as_str()), (0, ""), "{out}");
        assert_eq!(machine.files().len(), left, "{:?}", machine.files());
    }
}

#[tokio::test]
async fn a_user_has_services_without_root() {
    let machine = Machine::new();
    let words = ["install", "--user", "server"];
    let (code, out, errors) = machine.service(&words).await;
    assert_eq!((code, errors.as_str()), (0, ""), "{out}");
    assert_eq!(
        machine.calls(),
        ["systemctl --user daemon-reload", "systemctl --user enable --now exec-server.service"]
    );
    assert!(
        out.contains("started at ws://127.0.0.1:7777") && out.contains("loginctl enable-linger"),
        "{out}"
    );
    let unit = fs::read_to_string(machine.path("config/systemd/user/exec-server.service")).unwrap();
    let program = exec_server_testkit::executor::binary();
    assert!(unit.contains(&format!("\nExecStart={} --listen", program.display())), "{unit}");
    for words in [
        &["status", "--user", "server"][..],
        &["status", "--user"],
        &["logs", "--user", "-n", "5", "-f", "server"],
    ] {
        let (code, _, errors) = machine.service(words).await;
        assert_eq!((code, errors.as_str()), (0, ""), "{words:?}");
    }
    assert_eq!(
        machine.calls(),
        [
            "systemctl --user status --no-pager --lines=5 exec-server.service",
            "systemctl --user status --no-pager --lines=5 exec-server.* exec-server-rendezvous.* exec-server-executor@*",
            "journalctl --user --unit=exec-server.service --follow --lines=5",
        ]
    );
    let (code, out, _) = machine.service(&["uninstall", "--user", "server"]).await;
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("kept: the state in ~/.local/state/exec-server"), "{out}");
    assert_eq!(
        machine.calls(),
        [
            "systemctl --user disable --now exec-server.service",
            "systemctl --user daemon-reload",
            "systemctl --user reset-failed exec-server.service"
        ]
    );
    assert!(!machine.path("config/systemd/user/exec-server.service").exists());
}

#[tokio::test]
async fn a_socket_unit_starts_only_while_its_service_does_not_run() {
    let machine = Machine::new();
    let (out, calls) = machine.started(&["--socket", "server"]).await;
    assert_eq!(calls, ["daemon-reload", "enable exec-server.socket", "restart exec-server.socket"]);
    assert!(
        out.contains("exec-server.socket is enabled and listens at ws://127.0.0.1:7777"),
        "{out}"
    );

    // Another address, before the first client: systemd closes the old one at the reload and binds the new one at a start.
    machine.set_states(&[("exec-server.socket", "active")]);
    let at = |port| format!("ws://127.0.0.1:{port}");
    let (_, calls) = machine.started(&["--socket", "--listen", &at(7001), "server"]).await;
    assert_eq!(
        calls,
        [
            "daemon-reload",
            "enable exec-server.socket",
            "disable exec-server.service",
            "restart exec-server.socket"
        ]
    );

    // A repeated installation disturbs no client.
    let (_, calls) = machine.started(&["--socket", "--listen", &at(7001), "server"]).await;
    assert_eq!(calls[2..], ["start exec-server.socket"]);

    // A server that runs is left alone, and the commands to type are those that work.
    machine.set_states(&[("exec-server.service", "active")]);
    let both = "`systemctl --user stop exec-server.socket exec-server.service && systemctl --user start exec-server.socket` applies";
    let alone = "`systemctl --user restart exec-server.service` applies";
    let enables = ["daemon-reload", "enable exec-server.socket", "disable exec-server.service"];
    let (out, calls) = machine.started(&["--socket", "--listen", &at(7002), "server"]).await;
    assert_eq!(calls, enables);
    assert!(out.contains(both) && !out.contains("listens at"), "{out}");
    let (out, calls) = machine
        .started(&["--socket", "--listen", &at(7002), "server", "--", "--max-sessions", "5"])
        .await;
    assert_eq!(calls, enables);
    assert!(out.contains(alone), "{out}");
    // Without its socket unit, also if the files are as they should be.
    machine.set_states(&[("exec-server.socket", "inactive")]);
    let (out, calls) = machine
        .started(&["--socket", "--listen", &at(7002), "server", "--", "--max-sessions", "5"])
        .await;
    assert_eq!(calls, enables[1..]);
    assert!(out.contains(both), "{out}");

    // A server that never became ready has no commands, and would keep the socket from starting.
    machine.set_states(&[("exec-server.service", "activating")]);
    let (_, calls) = machine.started(&["--socket", "--listen", &at(7003), "server"]).await;
    assert_eq!(calls[3..], ["stop exec-server.service", "restart exec-server.socket"]);
}

#[tokio::test]
async fn a_rendezvous_starts_behind_its_socket_unit() {
    let machine = Machine::new();
    let (service, socket) = ("exec-server-rendezvous.service", "exec-server-rendezvous.socket");
    let (out, calls) = machine.started(&["--socket", "rendezvous"]).await;
    assert_eq!(
        calls[1..],
        [
            format!("enable {socket} {service}"),
            format!("restart {socket}"),
            format!("start {service}")
        ]
    );
    assert!(out.contains(&format!("{service} is enabled and started at")), "{out}");
    machine.set_states(&[(socket, "active"), (service, "active")]);
    let words = ["--socket", "--listen", "http://127.0.0.1:7001", "rendezvous"];
    let (out, calls) = machine.started(&words).await;
    assert_eq!(calls[1..], [format!("enable {socket} {service}")]);
    let hint =
        format!("stop {socket} {service} && systemctl --user start {socket} {service}` applies");
    assert!(out.contains(&hint), "{out}");
}

#[tokio::test]
async fn a_dry_run_prints_the_units_without_the_token() {
    let machine = Machine::new();
    let token = machine.path("token");
    fs::write(&token, TOKEN).unwrap();
    let words = ["--dry-run", "--socket", "--token-file", token.to_str().unwrap(), "server"];
    let out = machine.installed(&words).await;
    for part in [
        "# /etc/exec-server/server.token (mode 600)\n# the token is not shown\n",
        "# /etc/systemd/system/exec-server.socket\n",
        "\nListenStream=127.0.0.1:7777\n",
        "\nExecStart=/usr/bin/exec-server --listen ${EXEC_SERVER_LISTEN}",
        "# systemctl enable exec-server.socket\n",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(!out.contains(TOKEN) && machine.files().is_empty() && machine.calls().is_empty());
}

#[tokio::test]
async fn mistakes_are_found_before_anything_is_written() {
    let machine = Machine::new();
    let remote = ["--remote", "https://relay.example.org"];
    for (words, reason) in [
        (&["executor"][..], "an executor needs the name of its environment"),
        (&["server", "box"], "a server has no name"),
        (&["executor", "a/b"], "cannot be the name of a unit"),
        (&["executor", "box"], "an executor needs --remote URL"),
        (
            &[remote[0], remote[1], "executor", "box"],
            "an executor needs the token of its rendezvous",
        ),
        (&[remote[0], remote[1], "server"], "--remote does not fit this server"),
        (
            &["--socket", remote[0], remote[1], "executor", "box"],
            "--socket does not fit this executor",
        ),
        (&["--listen", "ws://127.0.0.1:0", "server"], "a service needs a fixed port"),
        (
            &["--listen", "ws://0.0.0.0:7777", "server"],
            "is open to the network without authentication",
        ),
        (&["--listen", "stdio", "server"], "cannot serve over stdio"),
        (&["--listen", "http://127.0.0.1:1", "server"], "unsupported --listen URL"),
        (&["--token-file", "/nonexistent", "server"], "could not read the token in /nonexistent"),
        (&["--encrypt", "server"], "the key of this machine is not that of the image"),
        (
            &["server", "--", "--max-sesions", "5"],
            "the service would not start: unexpected argument '--max-sesions'",
        ),
        (
            &["rendezvous", "--", "--buffer-budget", "1"],
            "the service would not start: invalid value '1'",
        ),
        (&["server", "--", "--cgroup", "/it's"], "quotes, backslashes and line breaks"),
        (&["server", "--", "run"], "the service would not start"),
        (
            &["--program", "/home/me/exec-server", "server"],
            "services of the system do not see /home",
        ),
        (&["--program", "exec-server", "server"], "a unit cannot start exec-server"),
    ] {
        let overriding: Vec<&str> = words.to_vec();
        let root = machine.path("root");
        let mut line = vec!["install", "--root", root.to_str().unwrap()];
        if !words.contains(&"--program") {
            line.extend(["--program", "/usr/bin/exec-server"]);
        }
        line.extend(overriding);
        let (code, out, errors) = machine.service(&line).await;
        assert_eq!((code, out.as_str()), (1, ""), "{words:?}: {errors}");
        assert!(errors.contains(reason), "{words:?}: {errors}");
    }
    assert!(machine.files().is_empty() && machine.calls().is_empty());
    // Where systemd does not run for the user.
    fs::remove_dir_all(machine.path("runtime/systemd")).unwrap();
    for words in
        [&["install", "--user", "server"][..], &["status", "--user"], &["logs", "--user", "server"]]
    {
        let (code, _, errors) = machine.service(words).await;
        assert!(
            code == 1 && errors.contains("systemd does not run for this user"),
            "{words:?}: {errors}"
        );
    }
    if !Path::new("/run/systemd/system").exists() {
        let (code, _, errors) = machine.service(&["status"]).await;
        assert!(code == 1 && errors.contains("systemd does not run this machine"), "{errors}");
    }
}

#[tokio::test]
async fn systemd_accepts_every_unit() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("skipped: systemd-analyze is not installed");
        return;
    }
    let machine = Machine::new();
    let token = machine.path("token");
    fs::write(&token, TOKEN).unwrap();
    let token = token.to_str().unwrap();
    // The program must exist for the check.
    let program = ["--program", "/bin/true"];
    let root = machine.path("root");
    for scope in [&["--root", root.to_str().unwrap()][..], &["--user"]] {
        for kind in [
            &["--socket", "--token-file", token, "server"][..],
            &["--socket", "rendezvous"],
            &["--remote", "https://relay.example.org", "--token-file", token, "executor", "box"],
        ] {
            let (code, out, errors) =
                machine.service(&[&["install"], scope, &program, kind].concat()).await;
            assert_eq!((code, errors.as_str()), (0, ""), "{out}");
        }
    }
    for (dir, mode) in
        [(machine.root(UNITS), "--system"), (machine.path("config/systemd/user"), "--user")]
    {
        let names = [
            "exec-server.service",
            "exec-server.socket",
            "exec-server-rendezvous.service",
            "exec-server-rendezvous.socket",
            "exec-server-executor@.service",
        ];
        let files = names.map(|name| dir.join(name));
        let mut command = Command::new("systemd-analyze");
        command
            .args([mode, "--man=no", "verify"])
            .args(&files)
            .env("XDG_RUNTIME_DIR", machine.path("runtime"));
        let output =
            command.env("SYSTEMD_UNIT_PATH", format!("{}:", dir.display())).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        let about_ours: Vec<&str> =
            errors.lines().filter(|line| line.contains("exec-server")).collect();
        assert!(output.status.success() && about_ours.is_empty(), "{mode}: {errors}");
    }
}
