//! Requests as sent, and responses as returned.

use exec_server_testkit::Web;
use exec_server_testkit::web::answer;
use serde_json::json;

use super::{body, get, refusal, request, server, without_proxies};

async fn plain() -> Web {
    Web::answering(|_| answer(200, &[], "ok")).await
}

#[tokio::test]
async fn a_get_sends_nothing_but_host_and_accept() {
    let (server, web) = (server().await, plain().await);
    let mut client = server.client().await;
    let answer = request(&mut client, &web.url("/a/./b?x=1#part"), json!({})).await.unwrap();
    let headers = json!([{"name": "content-length", "value": "2"}]);
    assert_eq!(answer, json!({"status": 200, "headers": headers, "bodyBase64": "b2s="}));
    let got = web.request();
    assert_eq!((got.method.as_str(), got.target.as_str()), ("GET", "/a/b?x=1"));
    assert_eq!(got.names(), ["host", "accept"]);
    assert_eq!(got.header("host"), Some(web.address().to_string().as_str()));
    assert_eq!(got.header("accept"), Some("*/*"));
}

#[tokio::test]
async fn headers_keep_their_order_and_repeats() {
    let (server, web) = (server().await, plain().await);
    let mut client = server.client().await;
    let headers = [
        ("X-B", "1"),
        ("Accept", "text/plain"),
        ("Host", "other.example:1"),
        ("x-a", "grüße"),
        ("x-b", "2"),
        ("User-Agent", "me"),
        ("Accept-Encoding", "gzip"),
    ]
    .map(|(name, value)| json!({"name": name, "value": value}));
    request(&mut client, &web.url("/"), json!({"headers": headers})).await.unwrap();
    let got = web.request();
    let expected = [
        ("x-b", "1"),
        ("x-b", "2"),
        ("accept", "text/plain"),
        ("host", "other.example:1"),
        ("x-a", "grüße"),
        ("user-agent", "me"),
        ("accept-encoding", "gzip"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(got.headers, expected);
}

#[tokio::test]
async fn any_token_is_a_method_and_is_sent_as_it_is() {
    let (server, web) = (server().await, plain().await);
    let mut client = server.client().await;
    for method in ["get", "PROPFIND", "Brew!"] {
        request(&mut client, &web.url("/"), json!({"method": method})).await.unwrap();
    }
    let methods: Vec<_> = web.requests().into_iter().map(|request| request.method).collect();
    assert_eq!(methods, ["get", "PROPFIND", "Brew!"]);
}

#[tokio::test]
async fn user_info_becomes_basic_auth_unless_there_is_a_header() {
    let (server, web) = (server().await, plain().await);
    let mut client = server.client().await;
    let url = web.url("/").replace("://", "://us%40er:pass@");
    request(&mut client, &url, json!({})).await.unwrap();
    let own = json!({"headers": [{"name": "authorization", "value": "mine"}]});
    request(&mut client, &url, own).await.unwrap();
    let sent: Vec<_> = web.requests();
    assert_eq!(sent[0].header("authorization"), Some("Basic dXNAZXI6cGFzcw=="));
    assert_eq!(sent[0].header("host"), Some(web.address().to_string().as_str()));
    assert_eq!(sent[1].header("authorization"), Some("mine"));
}

#[tokio::test]
async fn answers_keep_order_repeats_and_bytes_of_their_headers() {
    let server = server().await;
    let web = Web::answering(|_| {
        let head = b"HTTP/1.1 299 Odd\r\nX-B: 1\r\nSet-Cookie: a\r\nX-Utf: gr\xc3\xbc\xc3\x9fe\r\n\
            X-Latin: gr\xfc\xdfe\r\nset-cookie: b\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n";
        [&head[..], b"\x1f\x8b\x08"].concat()
    })
    .await;
    let mut client = server.client().await;
    let answer = request(&mut client, &web.url("/"), json!({})).await.unwrap();
    let headers = json!([
        {"name": "x-b", "value": "1"},
        {"name": "set-cookie", "value": "a"},
        {"name": "set-cookie", "value": "b"},
        {"name": "x-utf", "value": "grüße"},
        {"name": "x-latin", "value": "grüße", "valueBase64": "Z3L832U="},
        {"name": "content-encoding", "value": "gzip"},
        {"name": "content-length", "value": "3"},
    ]);
    assert_eq!(answer, json!({"status": 299, "headers": headers, "bodyBase64": "H4sI"}));
}

#[tokio::test]
async fn invalid_requests_are_rejected_before_anything_is_sent() {
    let (server, web) = (server().await, plain().await);
    let mut client = server.client().await;
    let header = |name: &str, value: &str| json!({"headers": [{"name": name, "value": value}]});
    for (more, text) in [
        (json!({"method": ""}), "http/request method is invalid: invalid HTTP method"),
        (json!({"method": "a b"}), "http/request method is invalid: invalid HTTP method"),
        (json!({"url": "nope"}), "http/request url is invalid: relative URL without a base"),
        (json!({"url": "http://"}), "http/request url is invalid: empty host"),
        (json!({"url": "ftp://a/"}), "http/request only supports http and https URLs, got ftp"),
        (header("", "x"), "http/request header name is invalid: invalid HTTP header name"),
        (header("a b", "x"), "http/request header name is invalid: invalid HTTP header name"),
        (
            header("a", "x\r\ny: z"),
            "http/request header value is invalid for a: failed to parse header value",
        ),
        (
            header("a", "\0"),
            "http/request header value is invalid for a: failed to parse header value",
        ),
        (
            header("content-length", "1"),
            "http/request content-length 1 contradicts the body of 0 bytes",
        ),
        (header("content-length", "+0"), "http/request content-length must be one number"),
        (header("transfer-encoding", "gzip"), "http/request transfer-encoding can only be chunked"),
        (
            json!({"headers": vec![json!({"name": "Transfer-Encoding", "value": "chunked"}); 2]}),
            "http/request transfer-encoding can only be chunked",
        ),
        (
            json!({"headers": vec![json!({"name": "a", "value": "b"}); 40_000]}),
            "http/request takes at most 1000 headers",
        ),
        (json!({"bodyBase64": "!"}), "Invalid symbol 33, offset 0."),
        (
            json!({"bodyBase64": "", "streamBody": true}),
            "http/request takes bodyBase64 or streamBody, not both",
        ),
    ] {
        let (code, kind, message) = refusal(&mut client, &web.url("/"), more.clone()).await;
        assert_eq!((code, kind.as_str()), (-32602, "invalid_params"), "{more}");
        assert_eq!(message, text, "{more}");
    }
    for more in [
        json!({"requestId": null}),
        json!({"redirectPolicy": null}),
        json!({"redirectPolicy": "x"}),
        json!({"timeoutMs": -1}),
        json!({"timeoutMs": 0.5}),
        json!({"timeoutMs": "1"}),
    ] {
        assert_eq!(refusal(&mut client, &web.url("/"), more.clone()).await.0, -32602, "{more}");
    }
    assert_eq!(web.connections(), 0);
}

#[tokio::test]
async fn the_family_is_named_before_there_is_a_session() {
    let server = server().await;
    let mut client = exec_server_testkit::TestClient::connect(server.url()).await;
    let error = client.call("http/request", get("http://a/", json!({}))).await.unwrap_err();
    assert_eq!(error["code"], -32600);
    assert_eq!(error["message"], "client must call initialize before using http methods");
    client.try_initialize(None).await.unwrap();
    let error = client.call("http/request", get("http://a/", json!({}))).await.unwrap_err();
    assert_eq!(error["message"], "client must send initialized before using http methods");
}

/// Whether they are set or not.
const DENIED: [&str; 15] = [
    "CODEX_GUARDIAN_DECISIONS_API_KEY",
    "CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
    "OPENAI_FEDERATION_RULE_ID",
    "OPENAI_IDENTITY_TOKEN_FILE",
    "OPENAI_WORKLOAD_IDENTITY_CONTEXT",
    "OPENAI_API_KEY",
    "CODEX_API_KEY",
    "CODEX_ACCESS_TOKEN",
    "CODEX_CONNECTORS_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_CLIENT_SECRET",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
];

#[tokio::test]
async fn headers_take_variables_of_the_server_but_not_its_secrets() {
    let server = without_proxies()
        .env("HTTP_TEST_TOKEN", "s3cret")
        .env("HTTP_TEST_EMPTY", "")
        .env("HTTP_TEST_LINES", "a\nb")
        .env("OPENAI_API_KEY", "never")
        .env("EXEC_SERVER_ADMIN_TOKEN", "never")
        .env("EXEC_SERVER_REMOTE_TOKEN", "never")
        .env("EXEC_SERVER_TOKEN", "never")
        .env("CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN", "never")
        .env("aws_secret_access_key", "never")
        .start()
        .await;
    let web = plain().await;
    let mut client = server.client().await;
    let with = |variable: &str| json!({"headers": [{"name": "Authorization", "value": "Bearer ", "valueEnvVar": variable}]});
    request(&mut client, &web.url("/"), with("HTTP_TEST_TOKEN")).await.unwrap();
    assert_eq!(web.request().header("authorization"), Some("Bearer s3cret"));
    for (variable, text) in [
        ("NO_SUCH_VARIABLE", "requires executor environment variable NO_SUCH_VARIABLE"),
        ("", "requires executor environment variable "),
        ("a=b", "requires executor environment variable a=b"),
        ("HTTP_TEST_EMPTY", "requires a non-empty executor environment variable HTTP_TEST_EMPTY"),
        ("OPENAI_API_KEY", "cannot use executor environment variable OPENAI_API_KEY"),
        ("openai_api_key", "cannot use executor environment variable openai_api_key"),
        ("aws_secret_access_key", "cannot use executor environment variable aws_secret_access_key"),
        (
            "EXEC_SERVER_ADMIN_TOKEN",
            "cannot use executor environment variable EXEC_SERVER_ADMIN_TOKEN",
        ),
        ("EXEC_SERVER_TOKEN", "cannot use executor environment variable EXEC_SERVER_TOKEN"),
        (
            "EXEC_SERVER_REMOTE_TOKEN",
            "cannot use executor environment variable EXEC_SERVER_REMOTE_TOKEN",
        ),
        (
            "CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN",
            "cannot use executor environment variable CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN",
        ),
    ] {
        let (code, _, message) = refusal(&mut client, &web.url("/"), with(variable)).await;
        assert_eq!(code, -32602);
        assert_eq!(message, format!("http/request header authorization {text}"));
    }
    for denied in DENIED.iter().flat_map(|name| [name.to_string(), name.to_lowercase()]) {
        let (code, _, message) = refusal(&mut client, &web.url("/"), with(&denied)).await;
        assert_eq!(code, -32602);
        assert!(message.ends_with(&format!("cannot use executor environment variable {denied}")));
    }
    let (_, _, message) = refusal(&mut client, &web.url("/"), with("HTTP_TEST_LINES")).await;
    assert_eq!(
        message,
        "http/request header value is invalid for authorization: failed to parse header value"
    );
    assert_eq!(web.requests().len(), 1);
}

#[tokio::test]
async fn connections_are_used_again_and_a_closed_one_is_replaced() {
    let server = server().await;
    let web = Web::start(|mut visit| async move {
        for close in [false, true] {
            let Some(_) = visit.request().await else { return };
            visit.send(answer(200, &[], if close { "last" } else { "first" })).await;
        }
    })
    .await;
    let mut client = server.client().await;
    for round in 1..=3 {
        for text in ["first", "last"] {
            let answer = request(&mut client, &web.url("/"), json!({})).await.unwrap();
            assert_eq!(body(&answer), text);
        }
        assert_eq!(web.connections(), round);
    }
}

#[tokio::test]
async fn the_capabilities_are_announced() {
    let server = server().await;
    let mut client = server.client().await;
    let info = client.call("environment/info", json!({})).await.unwrap();
    for name in
        ["httpHeaderEnvVars", "httpCancel", "httpRequestBody", "httpBodyLimit", "httpErrorKinds"]
    {
        assert_eq!(info["capabilities"][name], true, "{name}");
    }
}

#[tokio::test]
async fn answers_are_given_before_the_end_of_a_pipe_ends_the_server() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let web = Web::answering(|_| answer(200, &[], "in time")).await;
    let mut child = without_proxies().start_stdio();
    let messages = [
        json!({"id": 1, "method": "initialize", "params": {"clientName": "test"}}),
        json!({"method": "initialized"}),
        json!({"id": 2, "method": "http/request", "params": get(&web.url("/"), json!({"streamResponse": true}))}),
    ];
    let text: String = messages.iter().map(|message| format!("{message}\n")).collect();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).await.unwrap();
    drop(stdin);
    let mut said = String::new();
    let mut stdout = child.stdout.take().unwrap();
    let reading = stdout.read_to_string(&mut said);
    tokio::time::timeout(exec_server_testkit::DEADLINE, reading).await.unwrap().unwrap();
    let last: serde_json::Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(last["params"]["done"], true, "{said}");
    assert!(child.wait().await.unwrap().success());
}
