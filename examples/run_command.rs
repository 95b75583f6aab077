//! Runs commands on a server: one to its end, and one that is written to and read from.

use exec_server::{ExecServerClient, Stdin};
use exec_server_examples::{Error, start_server};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let (server, url) = start_server().await?;
    let client = ExecServerClient::connect(url).await?;

    let output = client.command("uname").arg("-s").output().await?;
    println!("uname printed {:?} and exited with {}", output.stdout_text(), output.status.code());
    assert!(output.status.success());

    let mut child = client.command("cat").stdin(Stdin::Piped).spawn().await?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is read once")).lines();
    stdin.write_all(b"hello\n").await?;
    let answer = lines.next_line().await?;
    println!("cat answered {answer:?}");
    assert_eq!(answer.as_deref(), Some("hello"));
    drop(stdin);
    assert!(child.wait().await?.success());

    client.close().await;
    server.shut_down().await;
    Ok(())
}
