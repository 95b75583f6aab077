use std::collections::BTreeMap;

use super::*;

#[tokio::test]
async fn the_most_specific_source_wins() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("token");
    std::fs::write(&file, "from-file\n").unwrap();
    std::fs::write(home.path().join("auth.json"), r#"{"OPENAI_API_KEY":"signed-in"}"#).unwrap();
    let mut set = BTreeMap::from([
        ("EXEC_SERVER_REMOTE_TOKEN", "ours".to_owned()),
        ("EXEC_SERVER_REMOTE_TOKEN_FILE", file.display().to_string()),
        ("CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN", "theirs".to_owned()),
        ("CODEX_API_KEY", " key ".to_owned()),
        ("CODEX_HOME", home.path().display().to_string()),
    ]);
    for (name, expected) in [
        ("EXEC_SERVER_REMOTE_TOKEN", "ours"),
        ("EXEC_SERVER_REMOTE_TOKEN_FILE", "from-file"),
        ("CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN", "theirs"),
        ("CODEX_API_KEY", "key"),
        ("CODEX_HOME", "signed-in"),
    ] {
        let credential = Credential::from_environment(|name| set.get(name).cloned()).unwrap();
        let headers = credential.headers().await.unwrap();
        assert_eq!(headers[0].1.to_str().unwrap(), format!("Bearer {expected}"));
        set.remove(name);
    }
    let none = Credential::from_environment(|_| None).unwrap_err();
    assert!(none.to_string().contains("EXEC_SERVER_REMOTE_TOKEN"), "{none}");
}

#[tokio::test]
async fn a_token_in_a_file_can_be_replaced() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("token");
    let sign_in = home.path().join("auth.json");
    let found = |set: &'static str, path: &Path| {
        let path = path.display().to_string();
        Credential::from_environment(move |name| (name == set).then(|| path.clone()))
    };
    std::fs::write(&file, "one").unwrap();
    std::fs::write(&sign_in, r#"{"OPENAI_API_KEY":"one"}"#).unwrap();
    let credentials = [
        found("EXEC_SERVER_REMOTE_TOKEN_FILE", &file).unwrap(),
        found("CODEX_HOME", home.path()).unwrap(),
    ];
    for credential in &credentials {
        assert_eq!(credential.headers().await.unwrap()[0].1, "Bearer one");
    }
    std::fs::write(&file, "two\n").unwrap();
    std::fs::write(&sign_in, r#"{"OPENAI_API_KEY":"two"}"#).unwrap();
    for credential in &credentials {
        assert_eq!(credential.headers().await.unwrap()[0].1, "Bearer two");
    }
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(credentials[0].headers().await, Err(CredentialError::File { .. })));
    assert!(
        found("EXEC_SERVER_REMOTE_TOKEN_FILE", &file).is_err(),
        "a missing file is an error at startup"
    );
}

#[tokio::test]
async fn a_later_line_replaces_the_token() {
    let credential = Credential::from_stdin();
    let Credential::Stdin(sender) = &credential else { unreachable!() };
    let lines = [line("one", 60), line("two", 30)].concat();
    read_tokens(lines.as_bytes(), "env", sender).await.unwrap();
    assert_eq!(credential.headers().await.unwrap()[0].1, "Bearer two");
}

#[tokio::test]
async fn an_invalid_line_is_an_error() {
    let long = format!("{}\n", "x".repeat(20_000));
    let other = line("t", 60).replace("\"env\"", "\"other\"");
    let version = line("t", 60).replace("\"version\":1", "\"version\":2");
    let more = line("t", 60).replace("\"version\"", "\"more\":1,\"version\"");
    for (line, why) in [
        (long, "too long"),
        (other, "another environment"),
        (version, "version"),
        (more, "another form"),
        (line("t", -1), "expired"),
        (line("", 60), "token"),
        (line("t", 60).trim_end().to_owned(), "does not end"),
    ] {
        let sender = watch::Sender::new(None);
        let error = read_tokens(line.as_bytes(), "env", &sender).await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test]
async fn an_expired_token_is_not_sent() {
    let expired = Piped { token: "t".into(), expires_at: now() - 1 };
    let credential = Credential::Stdin(Arc::new(watch::Sender::new(Some(expired))));
    let error = credential.headers().await.unwrap_err();
    assert!(matches!(error, CredentialError::Expired));
}

fn line(token: &str, seconds: i64) -> String {
    let expires = now() + seconds;
    format!(
        "{{\"version\":1,\"environment_id\":\"env\",\"token\":\"{token}\",\"expires_at\":{expires}}}\n"
    )
}
