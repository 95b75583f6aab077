//! Help, versions, and start-up errors.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use exec_server_testkit::TestExecutor;

const FLAGS: &[&str] = &[
    "--accept-native-paths",
    "--allow-other-users",
    "--audit",
    "--audit-keep",
    "--audit-max-bytes",
    "--audit-on-full",
    "--audit-payloads",
    "--ca-file",
    "--cgroup",
    "--concurrent-requests",
    "--config",
    "--environment-id",
    "--executor-credential-stdin",
    "--exit-on-stdin-close",
    "--help",
    "--http-allow",
    "--http-allow-metadata",
    "--identity",
    "--insecure-no-auth",
    "--listen",
    "--log-format",
    "--max-connections",
    "--max-memory",
    "--max-message-bytes",
    "--max-output-spool",
    "--max-output-spools",
    "--max-pids",
    "--max-processes",
    "--max-reply-memory",
    "--max-retained-output",
    "--max-session-linger",
    "--max-sessions",
    "--metrics-listen",
    "--name",
    "--otlp",
    "--otlp-ca-file",
    "--otlp-headers-file",
    "--otlp-interval",
    "--ping-interval",
    "--pong-timeout",
    "--registration-bearer-stdin",
    "--remote",
    "--remote-token-file",
    "--sandbox-allow",
    "--sandbox-fallback",
    "--session-linger",
    "--state-dir",
    "--tls-cert",
    "--tls-key",
    "--use-agent-identity-auth",
    "--version",
    "--ws-audience",
    "--ws-auth",
    "--ws-issuer",
    "--ws-max-clock-skew-seconds",
    "--ws-shared-secret-file",
    "--ws-token-file",
    "--ws-token-sha256",
];

#[tokio::test]
async fn the_help_names_every_flag_and_explains_it() {
    let (code, help, errors) = run(&["--help"]).await;
    assert_eq!((code, errors.as_str()), (0, ""));
    let lines: Vec<&str> = help.lines().map(str::trim).collect();
    let mut named = BTreeSet::new();
    for (index, line) in lines.iter().enumerate() {
        let flag = line.split(", ").last().filter(|_| line.starts_with('-'));
        let Some(flag) = flag.and_then(|flag| flag.split([' ', '=']).next()) else { continue };
        if flag.starts_with("--") {
            assert!(lines[index + 1].len() > 10, "{flag} is not explained");
            named.insert(flag);
        }
    }
    assert_eq!(named, FLAGS.iter().copied().collect::<BTreeSet<_>>());
    assert!(help.contains("CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE") && help.contains("RUST_LOG"));
}

/// `flags.txt` has every flag of a release; a flag that is added stands there from the next release on.
#[tokio::test]
async fn no_flag_of_a_command_is_lost() {
    let mut found = BTreeSet::new();
    let mut commands = vec![Vec::new()];
    while let Some(command) = commands.pop() {
        let arguments: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
        let (code, help, errors) = run(&arguments).await;
        assert_eq!((code, errors.as_str()), (0, ""), "{arguments:?}");
        let prefix: String = command.iter().map(|word| format!("{word} ")).collect();
        found.extend(flags_of(&help).map(|flag| format!("{prefix}{flag}")));
        for name in commands_of(&help).filter(|name| *name != "help") {
            commands.push([&command[..], &[name.to_owned()]].concat());
        }
    }
    let lost: Vec<&str> = include_str!("command_line/flags.txt")
        .lines()
        .filter(|flag| !found.contains(*flag))
        .collect();
    assert_eq!(lost, [""; 0]);
}

/// The long flags that a help text describes.
fn flags_of(help: &str) -> impl Iterator<Item = &str> {
    help.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = if line.starts_with("--") { line } else { line.strip_prefix('-')?.get(3..)? };
        line.starts_with("--").then(|| line.split([' ', '=', '[']).next())?
    })
}

/// The names of commands that a help text lists.
fn commands_of(help: &str) -> impl Iterator<Item = &str> {
    let is_head = |line: &&str| matches!(*line, "Commands:" | "Instead of serving:");
    let listed = help.lines().skip_while(move |line| !is_head(line)).skip(1);
    let listed = listed.take_while(|line| line.starts_with("  "));
    listed.filter_map(|line| line[2..].split(' ').next()).filter(|name| !name.is_empty())
}

#[tokio::test]
async fn the_version_is_one_line_on_stdout() {
    let (code, version, errors) = run(&["--version"]).await;
    let expected = format!("exec-server {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!((code, version, errors.as_str()), (0, expected, ""));
}

#[tokio::test]
async fn a_listen_url_that_cannot_be_used_is_refused_with_what_was_expected() {
    let websocket = "; expected `ws://IP:PORT`\n";
    for (url, start, end) in [
        ("foo", "unsupported --listen URL `foo`; expected `ws://IP:PORT`", "or `stdio`\n"),
        ("http://127.0.0.1:0", "unsupported --listen URL `http://127.0.0.1:0`; ", "`stdio`\n"),
        ("", "unsupported --listen URL ``; expected `ws://IP:PORT`", "or `stdio`\n"),
        ("ws://localhost:0", "invalid websocket --listen URL `ws://localhost:0`", websocket),
        ("ws://127.0.0.1", "invalid websocket --listen URL `ws://127.0.0.1`", websocket),
        ("ws://127.0.0.1:65536", "invalid websocket --listen URL ", websocket),
        ("ws://::1:0", "invalid websocket --listen URL `ws://::1:0`", websocket),
        ("unix://relative", "invalid unix --listen URL `unix://relative`", "ABSOLUTE/PATH`\n"),
        ("wss://127.0.0.1:0", "wss:// needs a certificate", "--tls-cert and --tls-key\n"),
    ] {
        refused(&["--listen", url], &format!("exec-server: {start}"), end).await;
    }
}

#[tokio::test]
async fn a_state_directory_that_cannot_be_used_is_refused() {
    let start = "exec-server: cannot keep state in /dev/null/state: ";
    refused(&["--state-dir", "/dev/null/state"], start, "Not a directory (os error 20)\n").await;
    let dir = tempfile::tempdir().unwrap();
    let open = dir.path().join("placeholders");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    let start = format!("exec-server: cannot keep state in {}", dir.path().display());
    refused(&["--state-dir", dir.path().to_str().unwrap()], &start, "(mode 0700)\n").await;
}

#[tokio::test]
async fn options_of_the_reference_are_refused_with_the_reason() {
    let forward = [
        "forward",
        "--connect",
        "ws://127.0.0.1:1",
        "--remote",
        "http://127.0.0.1:1",
        "--environment-id",
        "e",
    ];
    for (option, answers) in [
        (&["--linux-sandbox-pid-namespace", "inherit"][..], "process ids of its own"),
        (&["--remote-transport", "direct"], "use `noise`"),
        (&["--chatgpt-token-stdin"], "use --registration-bearer-stdin"),
        (&["--chatgpt-account-id", "x"], "use --registration-bearer-stdin"),
        (&["--aws-sigv4"], "--remote-transport direct"),
        (&["--aws-profile", "x"], "--remote-transport direct"),
        (&["--aws-region", "x"], "--remote-transport direct"),
        (&["--aws-service", "x"], "--remote-transport direct"),
    ] {
        for before in [&[][..], &forward] {
            let (code, stdout, stderr) = run(&[before, option].concat()).await;
            assert_eq!((code, stdout.as_str()), (1, ""), "{option:?}: {stderr}");
            let start = format!("exec-server: {}", option[0]);
            assert!(stderr.starts_with(&start) && stderr.contains(answers), "{option:?}: {stderr}");
            assert_eq!(stderr.lines().count(), 1, "{stderr}");
        }
    }
}

#[tokio::test]
async fn options_of_the_reference_that_change_nothing_are_taken_with_a_word() {
    let arguments = [
        "-c",
        "model=\"o3\"",
        "--config",
        "a.b=1",
        "--enable",
        "x",
        "--disable",
        "y",
        "--strict-config",
        "--proxy-private-ips-via-upstream",
        "--linux-sandbox-pid-namespace",
        "isolate",
        "--remote-transport",
        "noise",
    ];
    let mut server = TestExecutor::builder()
        .args(&arguments)
        .env("RUST_LOG", "off")
        .piped_stderr()
        .start()
        .await;
    for option in ["--config", "--enable", "--disable", "--strict-config", "--proxy-private-ips"] {
        let line = server.next_stderr_line().await.expect("a word about each");
        assert!(line.starts_with(&format!("exec-server: {option}")), "{line}");
        assert!(line.contains("has no effect: this server"), "{line}");
    }
    assert_eq!(server.client().await.sh("p", "echo serves").await.text(), "serves\n");
}

#[tokio::test]
async fn values_that_make_no_sense_are_usage_errors() {
    for arguments in [
        ["--concurrent-requests", "0"],
        ["--concurrent-requests", "many"],
        ["--max-connections", "0"],
        ["--max-sessions", "1.5"],
        ["--session-linger", "5 parsecs"],
        ["--ping-interval", "0s"],
        ["--metrics-listen", "9090"],
        ["--log-format", "xml"],
        ["--ws-auth", "password"],
        ["--tls-cert", "only-half"],
        ["--exit-on-stdin-close", "maybe"],
        ["--listen-on", "ws://127.0.0.1:0"],
    ] {
        let (code, stdout, stderr) = run(&arguments).await;
        assert_eq!((code, stdout.as_str()), (2, ""), "{arguments:?}");
        assert!(stderr.contains(arguments[0]) && stderr.contains("--help"), "{stderr}");
    }
}

#[tokio::test]
async fn the_reference_accepts_any_positive_concurrency_and_so_do_we() {
    for count in ["1", "18446744073709551615"] {
        let server = TestExecutor::start_with(&["--concurrent-requests", count]).await;
        assert_eq!(server.client().await.sh("p", "echo hello").await.text(), "hello\n");
    }
}

async fn run(arguments: &[&str]) -> (i32, String, String) {
    TestExecutor::builder().args(arguments).run().await
}

/// The server exits with 1, prints nothing on stdout and one line on stderr.
pub async fn refused(arguments: &[&str], start: &str, end: &str) {
    let (code, stdout, stderr) = run(arguments).await;
    assert_eq!((code, stdout.as_str()), (1, ""), "{arguments:?}: {stderr}");
    assert!(stderr.starts_with(start) && stderr.ends_with(end), "{arguments:?}: {stderr}");
    assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
    assert!(!repeats_a_cause(&stderr), "{arguments:?}: {stderr}");
}

/// Whether a cause, which may have a cause of its own, stands twice in a row.
fn repeats_a_cause(message: &str) -> bool {
    let parts: Vec<&str> = message.trim_end().split(": ").collect();
    (1..=parts.len() / 2).any(|length| {
        let mut pairs = parts.windows(2 * length);
        pairs.any(|pair| pair[..length] == pair[length..])
    })
}

#[test]
fn a_repeated_cause_is_found_also_with_a_cause_of_its_own() {
    assert!(repeats_a_cause("exec-server: no route: no route\n"));
    assert!(repeats_a_cause("exec-server: cannot start: link: down: link: down\n"));
    assert!(!repeats_a_cause("exec-server: link: down: host: down\n"));
}
