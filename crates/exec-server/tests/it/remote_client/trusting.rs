//! Trust on first use: the stored executor key, and the harness that opened a session.

use exec_server::client::relay::{KeyFingerprint, RelayError};
use exec_server::client::{ExecutorTrust, TokenSource};
use exec_server::{ExecServerClient, ExecServerError, RelayConnectArgs, Stdin};
use exec_server_testkit::DEADLINE;
use tokio::time::timeout;

use super::{RelayFixture, connect};

#[tokio::test]
async fn a_session_is_resumed_by_the_key_that_opened_it_and_by_no_other() {
    let fixture = RelayFixture::start().await;
    let first = fixture.client().await;
    let child = first.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    let process_id = child.session().id().clone();
    let session_id = first.session_id().unwrap();
    first.close().await;

    let other_state = tempfile::tempdir().unwrap();
    let mut stranger = fixture.args_of(other_state.path());
    stranger.options.resume_session_id = Some(session_id.clone());
    stranger.options.take_over = true;
    let error = ExecServerClient::connect_relay(stranger).await.unwrap_err();
    assert!(matches!(error, ExecServerError::Server { .. }), "{error:?}");
    assert!(error.to_string().contains("unknown session"), "{error}");

    // Another process of the same user has only the files.
    let mut again = fixture.args();
    again.options.resume_session_id = Some(session_id.clone());
    let again = connect(again).await;
    assert_eq!(again.session_id(), Some(session_id));
    let cat = again.attach(process_id, 0).await.unwrap();
    cat.write(b"still here\n").await.unwrap();
    let mut events = cat.events();
    let event = timeout(DEADLINE, events.next()).await.expect("it answers in time");
    assert!(format!("{event:?}").contains("still here"), "{event:?}");
}

#[tokio::test]
async fn the_keys_are_private_and_stay() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = RelayFixture::start().await;
    let key = fixture.state.path().join("harness-identity.json");
    fixture.client().await.close().await;
    let (first, known) = (std::fs::read(&key).unwrap(), std::fs::read(fixture.known_hosts()));
    for path in [&key, &fixture.known_hosts()] {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    fixture.client().await.close().await;
    assert_eq!(std::fs::read(&key).unwrap(), first);
    assert_eq!(std::fs::read(fixture.known_hosts()).unwrap(), known.unwrap());
}

#[tokio::test]
async fn another_executor_is_refused_until_the_first_is_forgotten() {
    let mut fixture = RelayFixture::start().await;
    let (code, out, err) = fixture.run(&["run", "env:env", "--", "echo", "hi"]).await;
    assert_eq!((code, out.as_str()), (0, "hi\n"), "{err}");
    assert!(err.contains("for the first time; its key SHA256:"), "{err}");
    assert_eq!(
        fixture.run(&["run", "env:env", "--", "echo", "hi"]).await,
        (0, "hi\n".to_owned(), String::new()),
        "it is known"
    );

    let elsewhere = tempfile::tempdir().unwrap();
    fixture.replace_executor(elsewhere.path()).await;
    let (code, out, err) = fixture.run(&["run", "env:env", "--", "echo", "hi"]).await;
    assert_eq!((code, out.as_str()), (255, ""), "{err}");
    assert!(err.contains("WARNING") && err.contains("is expected"), "{err}");
    // The command in the hint works.
    let next = err.lines().last().unwrap().trim();
    let words: Vec<_> = next.split(' ').collect();
    assert_eq!(words[..3], ["exec-server", "known-hosts", "forget"], "{err}");
    let (code, out, err) = fixture.run(&words[1..]).await;
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("forgot env at http://127.0.0.1:"), "{out}");
    let (code, out, err) = fixture.run(&["run", "env:env", "--", "echo", "hi"]).await;
    assert_eq!((code, out.as_str()), (0, "hi\n"), "{err}");
    assert!(err.contains("for the first time"), "{err}");
    let (_, list, _) = fixture.run(&["known-hosts"]).await;
    assert_eq!(fixture.run(&["known-hosts", "list"]).await, (0, list.clone(), String::new()));
    assert_eq!(list.lines().count(), 2, "{list}");
    let (code, _, err) = fixture.run(&["known-hosts", "forget", "nobody"]).await;
    assert_eq!((code, err.as_str()), (1, "exec-server: no executor of `nobody` is known\n"));
}

#[tokio::test]
async fn the_right_key_can_be_given_beforehand() {
    let fixture = RelayFixture::start().await;
    let client = fixture.client().await;
    client.close().await;
    let known = std::fs::read_to_string(fixture.known_hosts()).unwrap();
    let key = known.trim().rsplit(' ').next().unwrap().to_owned();
    std::fs::remove_file(fixture.known_hosts()).unwrap();

    let run = ["run", "--executor-key", &key, "env:env", "--", "echo", "hi"];
    assert_eq!(fixture.run(&run).await, (0, "hi\n".to_owned(), String::new()));
    assert!(!fixture.known_hosts().exists(), "nothing had to be remembered");
    let lower = key.replace("SHA256:", "sha256:");
    let run = ["run", "--executor-key", &lower, "env:env", "--", "echo", "hi"];
    assert_eq!(fixture.run(&run).await.0, 0);
    let wrong = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU";
    let run = ["run", "--executor-key", wrong, "env:env", "--", "echo", "hi"];
    let (code, out, err) = fixture.run(&run).await;
    assert_eq!((code, out.as_str()), (255, ""), "{err}");
    assert!(err.contains(wrong) && err.contains("WARNING"), "{err}");
    let run = ["run", "--executor-key", "nonsense", "env:env", "--", "echo", "hi"];
    let (code, _, err) = fixture.run(&run).await;
    assert!(code == 125 && err.contains("is not a key fingerprint"), "{err}");
    let mut args = fixture.args();
    args.trust = ExecutorTrust::Exactly(wrong.parse::<KeyFingerprint>().unwrap());
    let error = ExecServerClient::connect_relay(args).await.unwrap_err();
    let ExecServerError::Relay { source, .. } = error else { panic!("{error:?}") };
    assert!(matches!(*source, RelayError::AnotherKey { .. }), "{source:?}");
}

#[tokio::test]
async fn a_client_that_believes_the_registry_never_gives_its_session_to_another_executor() {
    let mut fixture = RelayFixture::start().await;
    let token = TokenSource::fixed(fixture.harness_token.clone());
    let client = connect(RelayConnectArgs::new(fixture.rendezvous.url(), "env", token)).await;
    let session_id = client.session_id();
    let child = client.command("cat").stdin(Stdin::Piped).spawn().await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    fixture.replace_executor(elsewhere.path()).await;
    let mut events = child.session().events();
    while let Some(event) = timeout(DEADLINE, events.next()).await.expect("it is noticed") {
        if let exec_server::ProcessEvent::Failed(reason) = event {
            assert!(reason.contains("its executor has the key SHA256:"), "{reason}");
        }
    }
    assert!(child.session().failure().is_some());
    // The next use is a new session with the executor that is attached now.
    let output = client.command("echo").arg("hi").output().await.unwrap();
    assert_eq!(output.stdout_text(), "hi\n");
    assert_ne!(client.session_id(), session_id);
}
