//! Tokens and environments that are deleted, by HTTP and on the data directory.

use exec_server_testkit::RelaySocket;
use exec_server_testkit::rendezvous::public_key;
use serde_json::Value;

use super::commands::{Program, run};

async fn tokens(place: &str) -> Vec<Value> {
    let (code, json, stderr) = run(&["token", "list", "--data", place, "-o", "json"], &[]).await;
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&json).unwrap()
}

async fn id_of(place: &str, role: &str) -> String {
    let tokens = tokens(place).await;
    let token = tokens.iter().find(|token| token["role"] == role).expect("it was made");
    token["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_deleted_token_loses_its_connections_and_its_place_in_the_list() {
    let data = tempfile::tempdir().unwrap();
    let place = data.path().display().to_string();
    let program = Program::start(data.path(), "http://127.0.0.1:0").await;
    let admin = program.admin_token.clone().expect("the first start shows it");
    let admin = [("EXEC_SERVER_ADMIN_TOKEN", admin.as_str())];
    let remote = ["--remote", program.url.as_str()];
    let local = ["--data", place.as_str()];
    for (by, environment) in [(&remote, &admin[..]), (&local, &[][..])] {
        let secret = program.token("executor").await;
        let id = id_of(&place, "executor").await;
        let registered = program.register(&secret, &public_key(1)).await;
        let mut socket = RelaySocket::open(super::url(&registered)).await;
        let delete = [&["token", "delete", id.as_str()], &by[..]].concat();
        let (code, _, stderr) = run(&delete, environment).await;
        assert_eq!((code, stderr.as_str()), (0, ""));
        socket.expect_closed(1008, "token_revoked").await;
        assert!(!tokens(&place).await.iter().any(|token| token["id"] == id));
        let (code, _, stderr) = run(&delete, environment).await;
        assert_eq!(code, 1, "it is gone");
        assert!(stderr.contains(&format!("there is no token `{id}`")), "{stderr}");
        let again = program.try_register(&secret, &public_key(1)).await;
        assert_eq!(again, 401);
    }
}

#[tokio::test]
async fn a_deleted_environment_takes_tokens_and_connections_along() {
    let data = tempfile::tempdir().unwrap();
    let place = data.path().display().to_string();
    let program = Program::start(data.path(), "http://127.0.0.1:0").await;
    let admin = program.admin_token.clone().expect("the first start shows it");
    let admin = [("EXEC_SERVER_ADMIN_TOKEN", admin.as_str())];
    let remote = ["--remote", program.url.as_str()];
    let local = ["--data", place.as_str()];
    for (by, environment) in [(&remote, &admin[..]), (&local, &[][..])] {
        let executor = program.token("executor").await;
        let harness = program.token("harness").await;
        let registered = program.register(&executor, &public_key(1)).await;
        let mut socket = RelaySocket::open(super::url(&registered)).await;
        let bundle = program.connect(&harness, &public_key(2)).await;
        let mut stream = RelaySocket::open(super::url(&bundle)).await;
        let delete = [&["environments", "delete", "env"], &by[..]].concat();
        let (code, _, stderr) = run(&delete, environment).await;
        assert_eq!((code, stderr.as_str()), (0, ""));
        socket.expect_closed(1008, "token_revoked").await;
        assert!(matches!(stream.next().await, exec_server_testkit::Relayed::Closed(..)));
        let (_, list, _) = run(&["environments", "--data", &place, "-o", "json"], &[]).await;
        assert_eq!(list.trim(), "[]");
        assert!(tokens(&place).await.iter().all(|token| token["role"] == "admin"));
        let (code, _, stderr) = run(&delete, environment).await;
        assert!(code == 1 && stderr.contains("there is no environment `env`"), "{stderr}");
    }
    // The name can be used again.
    let executor = program.token("executor").await;
    let registered = program.register(&executor, &public_key(1)).await;
    let mut socket = RelaySocket::open(super::url(&registered)).await;
    socket.ping().await;
}
