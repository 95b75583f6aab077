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
