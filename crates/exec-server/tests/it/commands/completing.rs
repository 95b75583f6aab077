//! Shell completion: `__complete`, and what the scripts of the shells insert.

use exec_server_testkit::executor::binary;
use exec_server_testkit::{Terminal, TestExecutor};

use super::attaching::detached;
use super::{cli, command, finish, ran};

/// A list of servers with one that listens.
fn list(directory: &std::path::Path, url: &str) -> String {
    let file = directory.join("environments.toml");
    let text = format!(
        "[[environments]]\nid = \"box\"\nurl = \"{url}\"\n\
         [[environments]]\nid = \"build\"\nprogram = \"/bin/false\"\n"
    );
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// The candidates for the last word of a line.
async fn complete(list: &str, line: &[&str]) -> Vec<String> {
    let index = line.len().to_string();
    let arguments = [&["__complete", &index, "--", "exec-server"], line].concat();
    let child = command(&arguments).env("EXEC_SERVER_ENVIRONMENTS", list).spawn().unwrap();
    let ran = finish(child).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{line:?}");
    ran.out.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn commands_targets_ids_and_paths_are_offered() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let list = list(directory.path(), server.url());
    assert_eq!(complete(&list, &["lo"]).await, ["logs"]);
    assert_eq!(complete(&list, &["run", "--memo"]).await, ["--memory"]);
    assert_eq!(complete(&list, &["ps", "b"]).await, ["box", "build"]);
    assert_eq!(complete(&list, &["run", "bo"]).await, ["box"]);
    assert!(complete(&list, &[""]).await.iter().all(|word| word != "__complete"));

    detached(&server, &["--name", "nightly"], "exec sleep 1000").await;
    detached(&server, &["--name", "done"], "exit 0").await;
    assert_eq!(cli(&["wait", "-q", server.url(), "done"]).await, ran(0, "", ""));
    assert_eq!(complete(&list, &["kill", "box", ""]).await, ["nightly"]);
    assert_eq!(complete(&list, &["kill", "-9", "box", "n"]).await, ["nightly"]);
    assert_eq!(complete(&list, &["logs", "box", ""]).await.len(), 2);
    assert_eq!(complete(&list, &["attach", server.url(), "ni"]).await, ["nightly"]);

    std::fs::create_dir(directory.path().join("sub")).unwrap();
    std::fs::write(directory.path().join("sub/file"), "").unwrap();
    std::fs::write(directory.path().join("sub/.hidden"), "").unwrap();
    std::fs::write(directory.path().join("sub/fi\nrm x"), "").unwrap();
    std::fs::write(directory.path().join("sub/fi\x1b[A"), "").unwrap();
    let remote = |path: &str| format!("box:{}/{path}", directory.path().display());
    assert_eq!(complete(&list, &["ls", &remote("su")]).await, [remote("sub/")]);
    assert_eq!(complete(&list, &["cat", &remote("sub/")]).await, [remote("sub/file")]);
    assert_eq!(complete(&list, &["cat", &remote("sub/.")]).await, [remote("sub/.hidden")]);
    assert_eq!(complete(&list, &["cp", "x", &remote("sub/f")]).await, [remote("sub/file")]);
    assert_eq!(complete(&list, &["ls", "bo"]).await, ["box:"]);
}

#[tokio::test]
async fn without_a_server_completion_is_empty_and_silent() {
    let directory = tempfile::tempdir().unwrap();
    let list = list(directory.path(), "ws://127.0.0.1:1");
    for line in [
        &["kill", "box", ""][..],
        &["ls", "box:/"],
        &["ls", "build:/"],
        &["logs", "build", ""],
        &["cat", "nobody:/x"],
        &["kill", "--bogus", "box", ""],
    ] {
        assert_eq!(complete(&list, line).await, Vec::<String>::new(), "{line:?}");
    }
    let broken = directory.path().join("broken.toml");
    std::fs::write(&broken, "][").unwrap();
    assert_eq!(complete(broken.to_str().unwrap(), &["ps", ""]).await, Vec::<String>::new());
    assert_eq!(cli(&["__complete", "9", "--", "exec-server"]).await, ran(0, "", ""));
}

/// Names that are syntax, or two words, where a shell takes them unquoted.
const NAMES: [&str; 8] = [
    "x;touch${IFS}pwned;",
    "file name",
    "it's",
    "quo\"te`touch pwned`",
    "ring!!",
    "back\\slash&",
    "end'",
    "zed\"",
];

/// What a person has typed before the Tab key, and the name that is meant by it.
fn beginnings(name: &str, remote: &str) -> Vec<String> {
    let start = &name[..1];
    vec![format!("{remote}{start}"), format!("'{remote}{start}"), format!("\"{remote}{start}")]
}

/// Types the beginnings of hostile names at a prompt of this shell, completes each, and runs what came of it.
async fn complete_hostile_names(shell: &[&str], script: &str, settings: &str) {
    let found = std::process::Command::new(shell[0]).arg("--version").output();
    if !found.is_ok_and(|found| found.status.success()) {
        eprintln!("skipped: {} is not installed", shell[0]);
        return;
    }
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path().to_str().unwrap();
    let list = list(directory.path(), server.url());
    std::fs::create_dir(directory.path().join("there dir")).unwrap();
    for name in NAMES {
        std::fs::write(directory.path().join("there dir").join(name), format!("<{name}>\n"))
            .unwrap();
    }
    detached(&server, &["--name", "p;touch${IFS}pwned;"], "echo '<job>'").await;
    let text = cli(&["completions", script]).await.out;
    let settings = settings.replace("HERE", here);
    std::fs::write(directory.path().join("completions"), text).unwrap();
    let rc = directory.path().join("rc");
    std::fs::write(&rc, settings).unwrap();
    std::fs::copy(&rc, directory.path().join(".zshrc")).unwrap();
    let program = binary();
    let path = program.parent().unwrap().display();
    let path = format!("{path}:{}", std::env::var("PATH").unwrap());
    let env = [
        ("PATH", path.as_str()),
        ("HOME", here),
        ("ZDOTDIR", here),
        ("XDG_CONFIG_HOME", here),
        ("LC_ALL", "C.UTF-8"),
        ("EXEC_SERVER_ENVIRONMENTS", list.as_str()),
    ];
    let rc = rc.to_str().unwrap();
    let argv: Vec<&str> = shell.iter().map(|word| if *word == "RC" { rc } else { word }).collect();
    let mut terminal = Terminal::start(&argv, &env).await;
    terminal.expect("READY> ").await;
    for name in NAMES {
        for typed in beginnings(name, &format!("box:{here}/there dir/")) {
            // Outside quotes, the blank needs a backslash of its own.
            let is_quoted = typed.starts_with(['\'', '"']);
            let typed = if is_quoted { typed } else { typed.replace("there dir", "there\\ dir") };
            terminal.type_keys(&format!("exec-server cat {typed}\t")).await;
            terminal.type_keys("\r").await;
            terminal.expect(&format!("<{name}>\r\n")).await;
        }
    }
    terminal.type_keys("exec-server cat box:").await;
    terminal.type_keys(&format!("{here}/the\tfil\t\r")).await;
    terminal.expect("<file name>\r\n").await;
    terminal.type_keys("exec-server logs box p\t").await;
    terminal.type_keys("\r").await;
    terminal.expect("<job>\r\n").await;
    terminal.type_keys("exit 7\r").await;
    assert_eq!(terminal.finish().await.0, 7);
    for place in [directory.path().to_owned(), std::env::current_dir().unwrap()] {
        assert!(!place.join("pwned").exists(), "a name became a command in {place:?}");
    }
}

#[tokio::test]
async fn bash_quotes_the_names_of_a_server() {
    let settings = "cd 'HERE'; source HERE/completions; PS1='READY> '\n";
    complete_hostile_names(&["bash", "--noprofile", "--rcfile", "RC", "-i"], "bash", settings)
        .await;
}

#[tokio::test]
async fn bash_quotes_them_also_where_a_colon_breaks_no_word() {
    let settings = "cd 'HERE'; COMP_WORDBREAKS=${COMP_WORDBREAKS//:}; source HERE/completions\n\
                    PS1='READY> '\n";
    complete_hostile_names(&["bash", "--noprofile", "--rcfile", "RC", "-i"], "bash", settings)
        .await;
}

#[tokio::test]
async fn zsh_quotes_the_names_of_a_server() {
    let settings = "cd 'HERE'; unsetopt zle_bracketed_paste; autoload -U compinit; compinit -u -D\n\
                    source HERE/completions; PROMPT='READY> '\n";
    complete_hostile_names(&["zsh", "-i"], "zsh", settings).await;
}

#[tokio::test]
async fn fish_quotes_the_names_of_a_server() {
    let settings = "cd 'HERE'; source HERE/completions\n\
                    function fish_prompt; echo -n 'READY> '; end\n";
    complete_hostile_names(
        &["fish", "-i", "--init-command", "source \"$HOME/rc\""],
        "fish",
        settings,
    )
    .await;
}
