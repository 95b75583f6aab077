//! Authentication: capability tokens and signed bearer tokens.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use exec_server::protocol::base64::encode_url;
use exec_server::protocol::hex;
use exec_server_testkit::http::{request, upgrade};
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::command_line::refused;

const TOKEN: &str = "open-sesame-open-sesame";
pub const SECRET: &str = "0123456789abcdef0123456789abcdef";

#[tokio::test]
async fn a_capability_token_opens_the_door_in_every_form_of_the_header() {
    let files = Files::new();
    let upper = hex_digest(TOKEN).to_uppercase();
    for expected in [
        ["--ws-token-file", &files.write("token", &format!("  {TOKEN}\r\n\n"))],
        ["--ws-token-sha256", &hex_digest(TOKEN)],
        ["--ws-token-sha256", &upper],
    ] {
        let server = with_token(expected).await;
        for header in [
            format!("Bearer {TOKEN}"),
            format!("bearer {TOKEN}"),
            format!("BEARER {TOKEN}"),
            format!("Bearer   {TOKEN}  "),
        ] {
            assert_eq!(attempt(&server, Some(&header)).await, (101, String::new()), "{header:?}");
        }
        let headers = [("Authorization", "Bearer open-sesame-open-sesame")];
        let mut client = TestClient::try_connect(server.url(), &headers).await.unwrap();
        client.initialize().await;
        assert_eq!(client.sh("p", "echo in").await.text(), "in\n");
    }
}

#[tokio::test]
async fn a_rejected_authorization_header_is_explained() {
    let server = with_token(["--ws-token-sha256", &hex_digest(TOKEN)]).await;
    is_refused(&server, None, "missing websocket bearer token").await;
    for header in [
        "",
        "Bearer",
        "Bearer ",
        "Bearer \t ",
        "Bearer\topen-sesame-open-sesame",
        "open-sesame-open-sesame",
        "Basic open-sesame",
        "BearerX open-sesame",
    ] {
        is_refused(&server, Some(header), "invalid authorization header").await;
    }
    for header in [
        "Bearer open-sesame-open-sesame!",
        "Bearer Open-Sesame-Open-Sesame",
        "Bearer open",
        "Bearer open-sesame-open-sesame x",
    ] {
        is_refused(&server, Some(header), "invalid websocket bearer token").await;
    }
    // The digest is not a token, and tokens in the query or in a subprotocol are ignored.
    let header = format!("Bearer {}", hex_digest(TOKEN));
    is_refused(&server, Some(&header), "invalid websocket bearer token").await;
    let in_protocol = upgrade(server.url(), &[("Sec-WebSocket-Protocol", TOKEN)]).await;
    assert_eq!(in_protocol.status, 401);
    let mut upgrade_headers = exec_server_testkit::http::UPGRADE.to_vec();
    upgrade_headers.push(("Accept", "*/*"));
    let in_query =
        request(server.url(), "GET", "/?token=open-sesame-open-sesame", &upgrade_headers).await;
    assert_eq!(in_query.status, 401);
}

#[tokio::test]
async fn health_needs_no_token_and_bad_upgrades_are_seen_first() {
    let server = with_token(["--ws-token-sha256", &hex_digest(TOKEN)]).await;
    for path in ["/readyz", "/healthz", "/livez", "/version"] {
        assert_eq!(request(server.url(), "GET", path, &[]).await.status, 200, "{path}");
    }
    assert_eq!(request(server.url(), "GET", "/nowhere", &[]).await.status, 404);
    assert_eq!(request(server.url(), "GET", "/", &[]).await.status, 400);
}

#[tokio::test]
async fn a_new_token_in_the_file_replaces_the_old_one_at_once() {
    let files = Files::new();
    let path = files.write("token", "first-long-enough");
    let server = with_token(["--ws-token-file", &path]).await;
    assert_eq!(attempt(&server, Some("Bearer first-long-enough")).await.0, 101);

    files.write("token", "second-long-enough\n");
    is_refused(&server, Some("Bearer first-long-enough"), "invalid websocket bearer token").await;
    assert_eq!(attempt(&server, Some("Bearer second-long-enough")).await.0, 101);

    // Replaced as a whole, by a token of the same length with the same time stamp, as `cp -p` and archives do.
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    let other = files.write("other", "thirds-long-enough\n");
    std::fs::File::options().append(true).open(&other).unwrap().set_modified(modified).unwrap();
    std::fs::rename(&other, &path).unwrap();
    is_refused(&server, Some("Bearer second-long-enough"), "invalid websocket bearer token").await;
    assert_eq!(attempt(&server, Some("Bearer thirds-long-enough")).await.0, 101);
}

#[tokio::test]
async fn a_token_file_without_a_token_rejects_all_clients() {
    let files = Files::new();
    let path = files.write("token", "first-long-enough");
    let mut server = TestExecutor::builder()
        .args(&["--ws-auth", "capability-token", "--ws-token-file", &path])
        .piped_stderr()
        .start()
        .await;
    files.write("token", " \n");
    for header in ["Bearer first-long-enough", "Bearer x"] {
        is_refused(&server, Some(header), "invalid websocket bearer token").await;
    }
    is_refused(&server, Some("Bearer "), "invalid authorization header").await;
    let line = server.next_stderr_line().await.expect("the operator hears of it");
    assert!(line.contains(&path) && line.contains("is empty"), "{line}");
    std::fs::remove_file(&path).unwrap();
    is_refused(&server, Some("Bearer first-long-enough"), "invalid websocket bearer token").await;
    files.write("token", "second-long-enough");
    assert_eq!(attempt(&server, Some("Bearer second-long-enough")).await.0, 101);
}

#[tokio::test]
async fn a_session_belongs_to_the_token_that_opened_it() {
    let server = signed(&[]).await;
    let bearer = |subject: &str, exp: i64| {
        format!("Bearer {}", sign(&json!({"exp": now() + exp, "sub": subject})))
    };
    let connect = async |header: String| {
        TestClient::try_connect(server.url(), &[("Authorization", &header)]).await.unwrap()
    };
    let mut client = connect(bearer("ada", 60)).await;
    client.initialize().await;
    let session = client.session_id.clone();
    let mut other = connect(bearer("eve", 60)).await;
    let error = other.resume(&session).await.unwrap_err();
    assert_eq!(error["message"], format!("unknown session id {session}"));
    // Nor is it visible from another session.
    other.initialize().await;
    let list = other.call("session/list", Value::Null).await.unwrap();
    let seen: Vec<&Value> = list["sessions"].as_array().unwrap().iter().collect();
    assert_eq!(seen.len(), 1, "{list}");
    assert_eq!(seen[0]["sessionId"], other.session_id);
    let params = json!({"processId": "p", "sessionId": session});
    let error = other.call("process/terminate", params).await.unwrap_err();
    assert_eq!(error["message"], format!("unknown session id {session}"));
    drop(client);
    // Another token of the same subject is the same client; its old connection may not be gone yet.
    let mut again = connect(bearer("ada", 90)).await;
    while let Err(error) = again.resume(&session).await {
        assert_eq!(error["code"], -32010, "{error}");
    }
}

#[tokio::test]
async fn a_signed_token_is_valid_in_its_time_give_or_take_the_skew() {
    let default = signed(&[]).await;
    let strict = signed(&["--ws-max-clock-skew-seconds", "0"]).await;
    let boundless = signed(&["--ws-max-clock-skew-seconds", "18446744073709551615"]).await;
    let (expired, early) = ("expired websocket jwt", "websocket jwt is not valid yet");
    let at = |name: &str, seconds: i64| {
        let mut claims = json!({"exp": now() + 600, "iat": "ignored", "extra": [1, 2]});
        claims[name] = json!(now() + seconds);
        claims
    };
    // The margins are wide, because a minute may pass on a busy machine.
    for (server, claims, verdict) in [
        (&default, at("exp", 600), ""),
        (&default, at("exp", -5), ""),
        (&default, at("exp", -31), expired),
        (&default, json!({"exp": 0}), expired),
        (&default, at("nbf", -600), ""),
        (&default, at("nbf", 25), ""),
        (&default, at("nbf", 600), early),
        (&strict, at("exp", 600), ""),
        (&strict, at("exp", -2), expired),
        (&strict, at("nbf", 300), early),
        (&strict, at("nbf", 0), ""),
        (&boundless, at("exp", -1_000_000), ""),
        (&boundless, at("nbf", 1_000_000), ""),
    ] {
        let header = format!("Bearer {}", sign(&claims));
        let expected = if verdict.is_empty() { 101 } else { 401 };
        assert_eq!(
            attempt(server, Some(&header)).await,
            (expected, verdict.to_owned()),
            "{claims}"
        );
    }
}

#[tokio::test]
async fn a_malformed_token_is_invalid() {
    let server = signed(&[]).await;
    let hs256 = json!({"alg": "HS256", "typ": "JWT"});
    let good = json!({"exp": now() + 600});
    let with_exp = |exp: Value| sign(&json!({"exp": exp}));
    let signed_by = |secret: &str, algorithm, header: &Value| {
        sign_with(secret, algorithm, &header.to_string(), &good.to_string())
    };
    let (sha256, sha512) = (hmac::HMAC_SHA256, hmac::HMAC_SHA512);
    let unsigned = sign_with(SECRET, sha256, r#"{"alg":"none"}"#, &good.to_string());
    let body = unsigned.rsplit_once('.').unwrap().0;
    for token in [
        "garbage".to_owned(),
        "a.b.c".to_owned(),
        "..".to_owned(),
        sign(&good).replacen('.', "", 1),
        format!("{}.x", sign(&good)),
        format!("{body}."),
        body.to_owned(),
        unsigned,
        signed_by("another-secret-of-thirty-two-bytes!", sha256, &hs256),
        signed_by(SECRET, sha512, &json!({"alg": "HS512"})),
        signed_by(SECRET, sha256, &json!({"alg": "HS512"})),
        signed_by(SECRET, sha512, &hs256),
        signed_by(SECRET, sha256, &json!({"alg": "RS256"})),
        signed_by(SECRET, sha256, &json!({"alg": "hs256"})),
        signed_by(SECRET, sha256, &json!({"typ": "JWT"})),
        sign_with(SECRET, sha256, &hs256.to_string(), "[]"),
        sign_with(SECRET, sha256, &hs256.to_string(), "not json"),
        sign(&json!({})),
        with_exp(json!(null)),
        with_exp(json!("9999999999")),
        with_exp(json!(9_999_999_999.5)),
        with_exp(json!(true)),
        sign(&json!({"exp": now() + 600, "nbf": "yesterday"})),
        sign(&json!({"exp": now() + 600, "iss": ["us"]})),
        sign(&json!({"exp": now() + 600, "sub": ["ada", "eve"]})),
        signed_by(SECRET, sha256, &json!({"alg": "HS256", "crit": ["exp"]})),
        signed_by(SECRET, sha256, &json!({"alg": "HS256", "crit": ["b64"], "b64": true})),
        signed_by(SECRET, sha256, &json!({"alg": "HS256", "crit": []})),
        signed_by(SECRET, sha256, &json!({"alg": "HS256", "crit": null})),
    ] {
        is_refused(&server, Some(&format!("Bearer {token}")), "invalid websocket jwt").await;
    }
    is_refused(&server, None, "missing websocket bearer token").await;
    is_refused(&server, Some("Basic x"), "invalid authorization header").await;
    // The `typ` of the token is not checked.
    for header in [json!({"alg": "HS256"}), json!({"alg": "HS256", "typ": "anything"})] {
        let token = signed_by(SECRET, sha256, &header);
        assert_eq!(attempt(&server, Some(&format!("Bearer {token}"))).await.0, 101, "{header}");
    }
}

#[tokio::test]
async fn issuer_and_audience_must_be_the_ones_that_were_asked_for() {
    let server = signed(&["--ws-issuer", "us", "--ws-audience", "here"]).await;
    let (issuer, audience) = ("websocket jwt issuer mismatch", "websocket jwt audience mismatch");
    for (iss, aud, verdict) in [
        (json!("us"), json!("here"), ""),
        (json!("us"), json!(["there", "here"]), ""),
        (json!("them"), json!("here"), issuer),
        (json!(["us"]), json!("here"), issuer),
        (json!(["us", "them"]), json!("here"), issuer),
        (json!(null), json!("here"), issuer),
        (json!("us"), json!("there"), audience),
        (json!("us"), json!(["there"]), audience),
        (json!("us"), json!([]), audience),
        (json!("us"), json!(null), audience),
    ] {
        let mut claims = json!({"exp": now() + 600, "iss": iss, "aud": aud});
        claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let header = format!("Bearer {}", sign(&claims));
        let expected = if verdict.is_empty() { 101 } else { 401 };
        assert_eq!(
            attempt(&server, Some(&header)).await,
            (expected, verdict.to_owned()),
            "{claims}"
        );
    }
    // Without a required issuer or audience, every value is accepted.
    let server = signed(&[]).await;
    let claims = json!({"exp": now() + 600, "iss": "anyone", "aud": ["anything"]});
    assert_eq!(attempt(&server, Some(&format!("Bearer {}", sign(&claims)))).await.0, 101);
}

#[tokio::test]
async fn a_connection_ends_with_the_token_that_opened_it() {
    let server = signed(&["--ws-max-clock-skew-seconds", "0"]).await;
    let connect = async |server: &TestExecutor, token: &str| {
        let header = format!("Bearer {token}");
        TestClient::try_connect(server.url(), &[("Authorization", &header)]).await.unwrap()
    };
    let mut lasting = connect(&server, &sign(&json!({"exp": now() + 600, "sub": "ada"}))).await;
    lasting.initialize().await;
    let mut brief = connect(&server, &sign(&json!({"exp": now() + 5, "sub": "ada"}))).await;
    brief.initialize().await;
    let (code, reason) = brief.close_frame().await.expect("it is told why");
    assert!(code == 1008 && reason.contains("expired"), "{code} {reason}");
    lasting.call("environment/status", json!({})).await.unwrap();
    // The session waits for the same subject with a new token.
    let mut again = connect(&server, &sign(&json!({"exp": now() + 600, "sub": "ada"}))).await;
    while let Err(error) = again.resume(&brief.session_id).await {
        assert_eq!(error["code"], -32010, "{error}");
    }

    let files = Files::new();
    let path = files.write("token", "first-long-enough");
    let server = with_token(["--ws-token-file", &path]).await;
    let mut client = connect(&server, "first-long-enough").await;
    client.initialize().await;
    files.write("token", "second-long-enough");
    let (code, reason) = client.close_frame().await.expect("it is told why");
    assert!(code == 1008 && reason.contains("replaced"), "{code} {reason}");
    let mut client = connect(&server, "second-long-enough").await;
    client.initialize().await;
    std::fs::remove_file(&path).unwrap();
    let (code, reason) = client.close_frame().await.expect("it is told why");
    assert!(code == 1008 && reason.contains("withdrawn"), "{code} {reason}");
}

#[tokio::test]
async fn a_token_that_can_be_guessed_opens_nothing() {
    let files = Files::new();
    let short = files.write("short", "fifteen-bytes-x\n");
    let start = format!("exec-server: the token in {short} has 15 bytes");
    let arguments = ["--ws-auth", "capability-token", "--ws-token-file", &short];
    refused(&arguments, &start, "\n").await;
    // With a digest, the length is checked only when a token is sent.
    let server = with_token(["--ws-token-sha256", &hex_digest("fifteen-bytes-x")]).await;
    let verdict = "websocket bearer token is shorter than 16 bytes and cannot be used";
    is_refused(&server, Some("Bearer fifteen-bytes-x"), verdict).await;
    is_refused(&server, Some("Bearer other"), "invalid websocket bearer token").await;
    let path = files.write("token", "long-enough-at-first");
    let server = with_token(["--ws-token-file", &path]).await;
    files.write("token", "short");
    is_refused(&server, Some("Bearer short"), "invalid websocket bearer token").await;
}

#[tokio::test]
async fn auth_flags_that_do_not_go_together_are_refused_at_the_start() {
    let files = Files::new();
    let token = &files.write("token", TOKEN);
    let secret = &files.write("secret", SECRET);
    let digest = hex_digest(TOKEN);
    let missing = files.path("missing");
    let capability = ["--ws-auth", "capability-token"];
    let bearer = ["--ws-auth", "signed-bearer-token"];
    let check = async |kind: &[&str], more: &[&str], parts: &[&str]| {
        let arguments = [kind, more].concat();
        let (code, stdout, stderr) = TestExecutor::builder().args(&arguments).run().await;
        assert_eq!((code, stdout.as_str()), (1, ""), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        for part in parts {
            assert!(stderr.contains(part), "{arguments:?}: {stderr}");
        }
    };
    for flag in [
        ["--ws-token-file", token],
        ["--ws-token-sha256", &digest],
        ["--ws-shared-secret-file", secret],
        ["--ws-issuer", "us"],
        ["--ws-audience", "here"],
        ["--ws-max-clock-skew-seconds", "5"],
    ] {
        check(&[], &flag, &["require --ws-auth"]).await;
        let is_token = flag[0].starts_with("--ws-token");
        let (wrong, right) = if is_token { (bearer, capability) } else { (capability, bearer) };
        check(&wrong, &flag, &[flag[0], right[1]]).await;
    }
    check(&capability, &[], &["--ws-token-file", "--ws-token-sha256"]).await;
    let both = ["--ws-token-file", token, "--ws-token-sha256", &digest];
    check(&capability, &both, &["exactly one of"]).await;
    check(&bearer, &[], &["--ws-shared-secret-file"]).await;
    check(&bearer, &["--ws-issuer", "us"], &["--ws-shared-secret-file"]).await;
    check(&capability, &["--ws-token-file", &missing], &[&missing, "No such file"]).await;
    check(&bearer, &["--ws-shared-secret-file", &missing], &[&missing, "No such file"]).await;
    let empty = &files.write("empty", " \n\t");
    check(&capability, &["--ws-token-file", empty], &[empty, "is empty"]).await;
    check(&bearer, &["--ws-shared-secret-file", empty], &[empty, "is empty"]).await;
    let short = &files.write("short", &format!("{}  \n", &SECRET[1..]));
    check(&bearer, &["--ws-shared-secret-file", short], &[short, "must be at least 32 bytes"])
        .await;
    let signs = "+a".repeat(32);
    for digest in ["", "abc", &digest[1..], &format!("{digest}0"), &"xy".repeat(32), &signs] {
        check(&capability, &["--ws-token-sha256", digest], &["64 hex digits"]).await;
    }
    for listen in ["stdio", "stdio://"] {
        let text = "exec-server: WebSocket auth requires a WebSocket listener, not stdio\n";
        let arguments = ["--listen", listen, "--ws-auth", "capability-token", "--ws-token-sha256"];
        refused(&[&arguments[..], &[digest.as_str()]].concat(), text, text).await;
    }
}

/// A temporary directory for secrets.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Writes a file and returns its path.
    fn write(&self, name: &str, content: &str) -> String {
        std::fs::write(self.path(name), content).unwrap();
        std::fs::set_permissions(self.path(name), PermissionsExt::from_mode(0o600)).unwrap();
        self.path(name)
    }
}

async fn with_token(expected: [&str; 2]) -> TestExecutor {
    let kind = ["--ws-auth", "capability-token"];
    TestExecutor::builder().args(&kind).args(&expected).start().await
}

async fn signed(more: &[&str]) -> TestExecutor {
    let files = Files::new();
    let secret = &files.write("secret", &format!("{SECRET}\n"));
    let kind = ["--ws-auth", "signed-bearer-token", "--ws-shared-secret-file", secret];
    TestExecutor::builder().args(&kind).args(more).start().await
}

/// Status and body of an upgrade with this `Authorization`.
async fn attempt(server: &TestExecutor, header: Option<&str>) -> (u16, String) {
    let headers: Vec<_> = header.iter().map(|value| ("Authorization", *value)).collect();
    let reply = upgrade(server.url(), &headers).await;
    if reply.status == 401 {
        let kind = reply.header("content-type").expect("a refusal is a text");
        assert!(kind.starts_with("text/plain"), "{kind}");
    }
    (reply.status, reply.body)
}

async fn is_refused(server: &TestExecutor, header: Option<&str>, body: &str) {
    assert_eq!(attempt(server, header).await, (401, body.to_owned()), "{header:?}");
}

fn hex_digest(text: &str) -> String {
    hex::encode(digest(&SHA256, text.as_bytes()).as_ref())
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    since.as_secs().try_into().unwrap()
}

/// A valid JWT with these claims.
pub fn sign(claims: &Value) -> String {
    let header = json!({"alg": "HS256", "typ": "JWT"});
    sign_with(SECRET, hmac::HMAC_SHA256, &header.to_string(), &claims.to_string())
}

fn sign_with(secret: &str, algorithm: hmac::Algorithm, header: &str, claims: &str) -> String {
    let body = format!("{}.{}", encode_url(header.as_bytes()), encode_url(claims.as_bytes()));
    let key = hmac::Key::new(algorithm, secret.as_bytes());
    let signature = hmac::sign(&key, body.as_bytes());
    format!("{body}.{}", encode_url(signature.as_ref()))
}
