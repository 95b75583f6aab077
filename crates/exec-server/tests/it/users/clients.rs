//! The user in `run`, `ps` and the Rust client.

use exec_server::ExecServerClient;

use super::fixture::{ANN, Accounts};
use crate::commands::cli;

#[tokio::test]
async fn run_and_ps_have_the_user() {
    let Some(accounts) = Accounts::new() else { return };
    let server = accounts.server().current_dir("/").start().await;
    let script = "id -u; echo $HOME $USER";
    for user in ["ann", "54321"] {
        let ran = cli(&["run", "--user", user, server.url(), "--", "sh", "-c", script]).await;
        let expected = format!("{ANN}\n{} ann\n", accounts.home().display());
        assert_eq!((ran.code, ran.out), (0, expected), "{}", ran.err);
    }
    let unknown = cli(&["run", "-u", "eve", server.url(), "--", "true"]).await;
    assert_eq!(unknown.code, 125);
    assert!(unknown.err.contains("unknown user `eve`"), "{}", unknown.err);
    let home = cli(&["run", "-u", "ann", "-w", "~", server.url(), "--", "true"]).await;
    assert!(home.err.contains("use an absolute path with --user"), "{}", home.err);
    let named = ["run", "-d", "--name", "long", "-u", "ann", server.url(), "--", "sleep", "1000"];
    assert_eq!(cli(&named).await.code, 0);
    let ps = cli(&["ps", server.url()]).await;
    let line = ps.out.lines().find(|line| line.contains("long")).unwrap_or_default();
    assert!(line.contains("ann"), "{}", ps.out);
}

#[tokio::test]
async fn a_command_of_the_client_runs_as_its_user() {
    let Some(accounts) = Accounts::new() else { return };
    let server = accounts.server().start().await;
    let client = ExecServerClient::connect(server.url()).await.unwrap();
    let output =
        client.command("id").arg("-un").current_dir("/").user("ann").output().await.unwrap();
    assert_eq!(output.stdout, b"ann\n");
    let output = client.command("id").arg("-G").current_dir("/").user(ANN).output().await.unwrap();
    assert_eq!(output.stdout, format!("{ANN} 54400 54500\n").as_bytes());
}

#[tokio::test]
async fn commands_for_files_have_the_rights_of_the_user() {
    let Some(accounts) = Accounts::new() else { return };
    let closed = accounts.make_dir("closed", 0o700);
    std::fs::write(closed.join("secret"), "text\n").unwrap();
    let server = accounts.server().start().await;
    let local = tempfile::tempdir().unwrap();
    std::fs::create_dir(local.path().join("tree")).unwrap();
    std::fs::write(local.path().join("tree/file"), "one two\n").unwrap();
    let on_server = |path: &std::path::Path| format!("{}:{}", server.url(), path.display());
    let (tree, home) =
        (local.path().join("tree").display().to_string(), on_server(&accounts.home()));
    let copied = cli(&["cp", "-r", "--user", "ann", &tree, &home]).await;
    assert_eq!(copied.code, 0, "{}", copied.err);
    let made = accounts.home().join("tree/file");
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&made.metadata().unwrap()), ANN);
    let file = on_server(&made);
    assert_eq!(cli(&["cat", "--user", "ann", &file]).await.out, "one two\n");
    assert_eq!(cli(&["replace", "--user", "ann", &file, "one", "1"]).await.code, 0);
    assert_eq!(std::fs::read_to_string(&made).unwrap(), "1 two\n");
    assert_eq!(cli(&["ls", "--user", "ann", &home]).await.out, "tree\n");
    assert_eq!(cli(&["grep", "--user", "ann", "two", &home]).await.code, 0);
    assert!(cli(&["find", "--user", "ann", &home]).await.out.contains("file"));
    let secret = on_server(&closed.join("secret"));
    for command in ["cat", "ls"] {
        let denied = cli(&[command, "--user", "ann", &secret]).await;
        assert_ne!(denied.code, 0, "{command} {}", denied.out);
        assert_eq!(denied.out, "");
    }
    let closed = on_server(&closed);
    let denied = cli(&["watch", "--once", "--user", "ann", &closed]).await;
    assert_ne!(denied.code, 0);
    assert!(denied.err.contains("closed"), "{}", denied.err);
    let out = local.path().join("out").display().to_string();
    assert_ne!(cli(&["cp", "--user", "ann", &secret, &out]).await.code, 0);
    assert!(!local.path().join("out").exists());
}
