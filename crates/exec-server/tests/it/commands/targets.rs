//! Target resolution: URLs, names, variables, tokens.

use exec_server_testkit::TestExecutor;
use exec_server_testkit::executor::binary;

use super::{cli, command, finish, ran};

#[tokio::test]
async fn a_name_is_looked_up_in_the_list() {
    let server = TestExecutor::start().await;
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("environments.toml");
    let program = binary();
    let text = format!(
        "default = \"box\"\n[[environments]]\nid = \"box\"\nurl = \"{}\"\n\
         [[environments]]\nid = \"child\"\nprogram = \"{}\"\nargs = [\"--listen\", \"stdio\"]\n",
        server.url(),
        program.display()
    );
    std::fs::write(&file, text).unwrap();
    let list = ["--environments", file.to_str().unwrap()];
    for target in [&["box"][..], &["child"], &[]] {
        let run = [&["run"], &list[..], target, &["--", "echo", "hi"]].concat();
        assert_eq!(cli(&run).await, ran(0, "hi\n", ""), "{target:?}");
    }
    let home =
        command(&["run", "--", "echo", "hi"]).env("CODEX_HOME", directory.path()).spawn().unwrap();
    assert_eq!(finish(home).await, ran(0, "hi\n", ""));
    let unknown = cli(&[&["run"], &list[..], &["nobody", "--", "true"]].concat()).await;
    assert_eq!(unknown.code, 125);
    assert!(
        unknown.err.contains("`nobody`") && unknown.err.contains("environments.toml"),
        "{}",
        unknown.err
    );
}

#[tokio::test]
async fn the_list_of_the_codex_cli_is_used_whatever_else_is_in_it() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "a-token-of-some-length-for-tests").unwrap();
    let token = token.display().to_string();
    let wants = ["--ws-auth", "capability-token", "--ws-token-file", &token];
    let server = TestExecutor::start_with(&wants).await;
    let list = |token: &str| {
        let text = format!(
            "default = \"box\"\nschema = 3\n[[environments]]\nid = \"box\"\nurl = \"{}\"\n\
             auth_bearer_token = \"{token}\"\ncolor = \"red\"\nskills = {{ required = [\"review\"] }}\n\
             [[environments]]\nid = \"later\"\ncarrier = {{ name = \"Ada\" }}\n",
            server.url(),
        );
        std::fs::write(directory.path().join("environments.toml"), text).unwrap();
    };
    let run = async |arguments: &[&str]| {
        let child = command(arguments).env("CODEX_HOME", directory.path()).spawn().unwrap();
        finish(child).await
    };
    list("a-token-of-some-length-for-tests");
    let word = "exec-server: keys of environments.toml that are not known here are ignored: schema, \
                environments.box.color, environments.later.carrier\n";
    assert_eq!(run(&["run", "--", "echo", "hi"]).await, ran(0, "hi\n", word));
    // The variable may be for another server; an argument is for this one.
    let other = directory.path().join("other-token");
    std::fs::write(&other, "the-token-of-another-server").unwrap();
    let other = other.to_str().unwrap();
    let child = command(&["run", "--", "echo", "hi"])
        .env("CODEX_HOME", directory.path())
        .env("EXEC_SERVER_TOKEN_FILE", other)
        .spawn()
        .unwrap();
    assert_eq!(finish(child).await, ran(0, "hi\n", word));
    let refused = run(&["run", "--token-file", other, "--", "true"]).await;
    assert!(refused.code == 255 && refused.err.contains("401"), "{}", refused.err);
    let later = run(&["run", "later", "--", "true"]).await;
    assert_eq!(later.code, 125);
    assert!(later.err.contains("`later` has none of `url`"), "{}", later.err);
    list("another-token-of-some-length");
    let refused = run(&["run", "--", "true"]).await;
    assert_eq!(refused.code, 255, "{}", refused.err);
    assert!(
        refused.err.contains("401") && !refused.err.contains("another-token"),
        "{}",
        refused.err
    );
}

#[tokio::test]
async fn variables_name_the_default_server() {
    let server = TestExecutor::start().await;
    for variable in ["EXEC_SERVER_URL", "CODEX_EXEC_SERVER_URL"] {
        let run =
            command(&["run", "--", "echo", "hi"]).env(variable, server.url()).spawn().unwrap();
        assert_eq!(finish(run).await, ran(0, "hi\n", ""), "{variable}");
    }
    let nowhere = cli(&["run", "--", "true"]).await;
    assert_eq!(nowhere.code, 125);
    assert!(nowhere.err.contains("EXEC_SERVER_URL"), "{}", nowhere.err);
}

#[tokio::test]
async fn a_program_on_stdio_and_a_unix_socket_are_targets() {
    let state = tempfile::tempdir().unwrap();
    let program = format!(
        "stdio:{} --listen stdio --state-dir {}",
        binary().display(),
        state.path().display()
    );
    assert_eq!(cli(&["run", &program, "--", "echo", "hi"]).await, ran(0, "hi\n", ""));
    let left = cli(&["run", "-d", &program, "--", "echo", "hi"]).await;
    assert_eq!((left.code, left.out.as_str()), (125, ""));
    assert!(left.err.contains("ends with us"), "{}", left.err);
    let file = state.path().join("file");
    std::fs::write(&file, "there\n").unwrap();
    let remote = format!("{program}:{}", file.display());
    assert_eq!(cli(&["cat", &remote]).await, ran(0, "there\n", ""));
    assert_eq!(cli(&["ls", &remote]).await, ran(0, &format!("{}\n", file.display()), ""));
    let copied = state.path().join("copy");
    assert_eq!(cli(&["cp", &remote, copied.to_str().unwrap()]).await, ran(0, "", ""));
    assert_eq!(std::fs::read_to_string(&copied).unwrap(), "there\n");
    assert_eq!(cli(&["ps", "-q", &program]).await, ran(0, "", ""));
    assert!(cli(&["info", &program]).await.out.contains("architecture"));
    let quoted = format!("stdio:'{}' --listen \"stdio\"", binary().display());
    assert_eq!(cli(&["run", &quoted, "--", "echo", "hi"]).await, ran(0, "hi\n", ""));
    let directory = tempfile::tempdir().unwrap();
    let url = format!("unix://{}", directory.path().join("server.sock").display());
    let _server = TestExecutor::start_with(&["--listen", &url]).await;
    assert_eq!(cli(&["run", &url, "--", "echo", "hi"]).await, ran(0, "hi\n", ""));
    let file = directory.path().join("file");
    std::fs::write(&file, "x\n").unwrap();
    assert_eq!(cli(&["cat", &format!("{url}:{}", file.display())]).await, ran(0, "x\n", ""));
}

#[tokio::test]
async fn a_token_comes_from_a_file_or_a_variable() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("token");
    std::fs::write(&path, "open-sesame-and-more\n").unwrap();
    let path = path.to_str().unwrap();
    let server =
        TestExecutor::start_with(&["--ws-auth", "capability-token", "--ws-token-file", path]).await;
    let run = ["run", server.url(), "--", "echo", "hi"];
    let without = cli(&run).await;
    assert_eq!(without.code, 255);
    assert!(without.err.contains("401") && without.err.contains("--token-file"), "{}", without.err);
    assert_eq!(
        cli(&["run", "--token-file", path, server.url(), "--", "echo", "hi"]).await,
        ran(0, "hi\n", "")
    );
    for (variable, value) in
        [("EXEC_SERVER_TOKEN", "open-sesame-and-more"), ("EXEC_SERVER_TOKEN_FILE", path)]
    {
        let child = command(&run).env(variable, value).spawn().unwrap();
        assert_eq!(finish(child).await, ran(0, "hi\n", ""), "{variable}");
    }
}

#[tokio::test]
async fn common_mistakes_get_a_hint() {
    let server = TestExecutor::start().await;
    for command in ["logs", "kill", "attach"] {
        let alone = cli(&[command, server.url()]).await;
        assert!(alone.err.contains("its id comes after"), "{}", alone.err);
        let swapped = cli(&[command, "some-id", server.url()]).await;
        let told = format!("the server comes before the process: {} some-id", server.url());
        assert!(swapped.err.contains(&told), "{}", swapped.err);
    }
    let bare = cli(&["run", "uname", "-a"]).await;
    let told = "exec-server: put -- before the command: `exec-server run -- uname -a`\n";
    assert_eq!(bare, ran(125, "", told));
    let bare = cli(&["run", server.url(), "uname"]).await;
    let told = format!("put -- before the command: `exec-server run {} -- uname`", server.url());
    assert!(bare.err.contains(&told), "{}", bare.err);
    let nowhere = cli(&["run", "-w", "/no/such", server.url(), "--", "true"]).await;
    assert!(nowhere.err.contains("working directory `/no/such`"), "{}", nowhere.err);
    for (option, value, reason) in [
        ("--memory", "1k", "must be between"),
        ("--memory", "5x", "unknown unit"),
        ("--cpus", "0", "must be between"),
        ("--pids", "0", "is not in"),
    ] {
        let refused = cli(&["run", option, value, server.url(), "--", "true"]).await;
        assert!(refused.code == 125 && refused.err.contains(reason), "{}", refused.err);
    }
    let user = cli(&["run", "--user", "no-such", server.url(), "--", "true"]).await;
    assert_eq!(user.code, 125);
    let told = match rustix::process::geteuid().is_root() {
        true => "unknown user `no-such`",
        false => "this server cannot change users",
    };
    assert!(user.err.contains(told), "{}", user.err);
    let copy = cli(&["cp", "/etc/hostname"]).await;
    assert!(copy.err.contains("<SRC> <DST>"), "{}", copy.err);
    let secure = server.url().replace("ws://", "wss://");
    let handshake = cli(&["run", &secure, "--", "true"]).await;
    assert_eq!(handshake.code, 255);
    assert!(handshake.err.contains("a server without TLS is ws://"), "{}", handshake.err);
}
