//! A server inside of a program of one's own, which is this test.

use exec_server::sandbox_command::NamedPolicy;
use exec_server::{
    DEFAULT_LISTEN_URL, ExecServerClient, ExecServerRuntimePaths, Listener, Server, ServerConfig,
};
use exec_server_testkit::DEADLINE;
use exec_server_testkit::executor::binary;
use tokio::time::timeout;

#[tokio::test]
async fn a_program_that_embeds_a_server_names_the_one_that_starts_sandboxes() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = ServerConfig::new(DEFAULT_LISTEN_URL.parse().unwrap());
    config.runtime_paths = ExecServerRuntimePaths::new(binary()).unwrap();
    config.state_dir = Some(directory.path().join("state"));
    let server = Server::new(config).unwrap();
    let listener = Listener::bind(&server).await.unwrap();
    let url = listener.url().unwrap();
    let serving = tokio::spawn({
        let server = server.clone();
        async move { listener.serve(&server).await }
    });
    let client = ExecServerClient::connect(url).await.unwrap();
    let work = directory.path().join("work");
    std::fs::create_dir(&work).unwrap();
    let policy = NamedPolicy {
        writes_workspace: false,
        has_network: false,
        writable: Vec::new(),
        cwd: work.clone(),
    };
    let sandbox = serde_json::from_value(policy.to_sandbox()).unwrap();
    let mut command = client.command("sh");
    command.args(["-c", "echo inside; (: > file) 2>/dev/null || echo refused"]);
    command.current_dir(&work).sandbox(&sandbox);
    let output = timeout(DEADLINE, command.output()).await.expect("it ends").unwrap();
    assert_eq!(output.stdout_text(), "inside\nrefused\n", "{}", output.stderr_text());
    client.close().await;
    server.shut_down().await;
    serving.abort();
}
