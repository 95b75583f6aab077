//! Our client with the unmodified reference executor, through our rendezvous.

use exec_server::client::TokenSource;
use exec_server::{HttpRequestParams, Parents, RelayConnectArgs, Stdin};
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::reference::ReferenceClient;
use exec_server_testkit::remote::wait_for_presence;
use exec_server_testkit::web::answer;
use exec_server_testkit::{DEADLINE, TestRendezvous, Web};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::time::timeout;

use super::{command, connect, finish};
use crate::reference_client::blocking;

#[tokio::test(flavor = "multi_thread")]
async fn commands_files_and_http_work_with_the_reference_as_executor() {
    for reference in blocking(ReferenceClient::find_all).await {
        eprintln!("with the reference {}:", reference.version());
        commands_files_and_http_work(reference).await;
    }
}

async fn commands_files_and_http_work(reference: ReferenceClient) {
    let rendezvous = TestRendezvous::start().await;
    let executor_token = rendezvous.token(TokenRole::Executor, "env").await;
    let token = rendezvous.token(TokenRole::Harness, "env").await;
    let mut executor = reference.start_executor(rendezvous.url(), "env", &executor_token);
    wait_for_presence(rendezvous.url(), rendezvous.admin_token(), true).await;
    let source = TokenSource::fixed(token.clone());
    let client = connect(RelayConnectArgs::new(rendezvous.url(), "env", source)).await;

    let mut shell = client.command("/bin/sh");
    shell.args(["-c", "printf out; printf err >&2; pwd; exit 3"]).current_dir("/usr");
    let output = shell.output().await.unwrap();
    assert_eq!((output.stdout_text().as_ref(), output.status.code()), ("out/usr\n", 3));
    let output = client.command("seq").arg("200000").output().await.unwrap();
    assert_eq!(output.stdout_text().lines().count(), 200_000);
    let mut child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    child.session().write(b"hello\n").await.unwrap();
    let mut line = String::new();
    timeout(DEADLINE, stdout.read_line(&mut line)).await.unwrap().unwrap();
    assert_eq!(line, "hello\n");
    child.kill().await.unwrap();

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let fs = client.fs();
    fs.create_directory(at("a/b"), Parents::Create).await.unwrap();
    fs.write_file(at("a/b/c"), "hello").await.unwrap();
    assert_eq!(fs.read_file(at("a/b/c")).await.unwrap(), b"hello");
    std::fs::write(at("large"), vec![9; 3_500_000]).unwrap();
    let mut back = Vec::new();
    fs.read_file_stream(at("large")).await.unwrap().read_to_end(&mut back).await.unwrap();
    assert!(back == vec![9; 3_500_000]);

    let web = Web::answering(|_| answer(200, &[], "hello")).await;
    let answer = client.http().http_request(HttpRequestParams::get("x", web.url("/"))).await;
    assert_eq!(answer.unwrap().body_base64.0.as_slice(), b"hello");

    let state = tempfile::tempdir().unwrap();
    let run = ["run", "--remote", rendezvous.url(), "env:env", "--", "sh", "-c", "echo hi; exit 4"];
    let child =
        command(&run, state.path()).env("EXEC_SERVER_REMOTE_TOKEN", &token).spawn().unwrap();
    let (code, out, err) = finish(child).await;
    assert_eq!((code, out.as_str()), (4, "hi\n"), "{err}");
    assert!(executor.is_running());
}
