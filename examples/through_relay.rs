//! Reaches a machine through a relay: the relay, the executor and the client all run in this process.

use exec_server::client::relay::{RelayConnectArgs, TokenSource};
use exec_server::remote::Credential;
use exec_server::{
    DEFAULT_LISTEN_URL, ExecServerClient, RemoteEnvironmentConfig, Server, ServerConfig,
    run_remote_environment,
};
use exec_server_examples::Error;
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::rendezvous::TestRendezvous;
use tokio::sync::watch;

const ENVIRONMENT: &str = "build-1";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    // `exec-server rendezvous`, and `exec-server token create` for either side.
    let relay = TestRendezvous::start().await;
    let executor_token = relay.token(TokenRole::Executor, ENVIRONMENT).await;
    let client_token = relay.token(TokenRole::Harness, ENVIRONMENT).await;

    // `exec-server --remote URL --environment-id build-1` on the machine.
    let server = Server::new(ServerConfig::new(DEFAULT_LISTEN_URL.parse()?))?;
    let remote = RemoteEnvironmentConfig {
        registry: relay.url().parse()?,
        environment_id: ENVIRONMENT.to_owned(),
        name: None,
        credential: Credential::bearer(&executor_token)?,
        identity_file: None,
        ca_file: None,
    };
    let (leave, leaving) = watch::channel(false);
    let serving = server.clone();
    let executor =
        tokio::spawn(async move { run_remote_environment(serving, &remote, leaving).await });

    // `exec-server run env:build-1 -- hostname`.
    let token = TokenSource::fixed(client_token);
    let client =
        ExecServerClient::connect_relay(RelayConnectArgs::new(relay.url(), ENVIRONMENT, token))
            .await?;
    let output = client.command("echo").arg("through the relay").output().await?;
    print!("{}", output.stdout_text());
    assert_eq!(output.stdout_text(), "through the relay\n");

    client.close().await;
    leave.send(true)?;
    executor.await??;
    server.shut_down().await;
    relay.stop().await;
    Ok(())
}
