//! Serves from a program of your own, with limits, and shuts down in order.

use std::time::Duration;

use exec_server::{DEFAULT_LISTEN_URL, ExecServerClient, Listener, Server, ServerConfig};
use exec_server_examples::Error;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut config = ServerConfig::new(DEFAULT_LISTEN_URL.parse()?);
    config.limits.processes = 4;
    config.timings.session_linger = Duration::from_secs(5);
    let server = Server::new(config)?;
    let listener = Listener::bind(&server).await?;
    let url = listener.url()?;
    println!("serving at {url}");
    let serving = server.clone();
    let task = tokio::spawn(async move { listener.serve(&serving).await });

    let client = ExecServerClient::connect(url).await?;
    let mut sleeper = client.command("sleep").arg("3600").spawn().await?;
    // A shutdown ends every process tree that the server started.
    server.shut_down().await;
    let ended = sleeper.wait().await;
    println!("after the shutdown: {ended:?}");
    assert!(!ended.is_ok_and(|status| status.success()));
    task.abort();
    Ok(())
}
