//! Cuts the connection in the middle of a command: the client resumes its session, and no line is lost or doubled.

use exec_server::ExecServerClient;
use exec_server_examples::{Error, start_server};
use exec_server_testkit::FaultProxy;
use tokio::io::{AsyncBufReadExt, BufReader};

const LINES: u32 = 60;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let (server, url) = start_server().await?;
    let proxy = FaultProxy::to(&url).await;
    let client = ExecServerClient::connect(proxy.url()).await?;

    let script = format!("for i in $(seq {LINES}); do echo $i; sleep 0.02; done");
    let mut child = client.shell(script).await?.spawn().await?;
    let mut lines = BufReader::new(child.stdout.take().expect("stdout is read once")).lines();
    let mut expected = 1;
    while let Some(line) = lines.next_line().await? {
        assert_eq!(line, expected.to_string());
        if expected % 20 == 0 {
            println!("line {expected}: cutting the connection");
            proxy.cut();
        }
        expected += 1;
    }
    assert_eq!(expected, LINES + 1);
    assert!(child.wait().await?.success());
    println!("{LINES} lines arrived in order over {} connections", proxy.connections());

    client.close().await;
    server.shut_down().await;
    Ok(())
}
