//! Spans and metrics at a real OTLP collector: who is whose parent, what is in them, and what a bad collector costs.

use std::process::{Output, Stdio};

use exec_server::client::{TraceContext, Tracing, with_trace_context};
use exec_server::{ExecServerClient, RemoteExecServerConnectArgs};
use exec_server_testkit::collector::{CollectedSpan, Collector, Reaction, total};
use exec_server_testkit::executor::{Signal, binary};
use exec_server_testkit::isolation::isolate;
use exec_server_testkit::remote::{join, wait_for_presence};
use exec_server_testkit::{DEADLINE, TestExecutor, eventually};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::time::timeout;

use crate::metrics::metrics_url;
use crate::rendezvous::commands::Program;

const SERVER: &str = "exec-server";
const CLIENT: &str = "exec-server-client";
const RENDEZVOUS: &str = "exec-server-rendezvous";
const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    isolate(command.as_std_mut());
    command.args(arguments).kill_on_drop(true);
    command
}

async fn run(command: &mut Command) -> Output {
    timeout(DEADLINE, command.output()).await.expect("it ends in time").expect("it starts")
}

async fn server_with(collector: &Collector, more: &[&str]) -> TestExecutor {
    let arguments = ["--accept-native-paths", "--otlp", &collector.url()];
    TestExecutor::builder().args(&arguments).args(more).start().await
}

fn hex(bytes: &[u8]) -> String {
    exec_server::protocol::hex::encode(bytes)
}

/// The spans from a client command to its process.
async fn spans_of_run(collector: &Collector) -> [CollectedSpan; 4] {
    let process = collector.span_named(SERVER, "process").await;
    let root = collector.span_named(CLIENT, "exec-server").await;
    let call = collector.span_named(CLIENT, "process/start").await;
    let request = collector
        .span("the request", |span| span.service == SERVER && span.span.name == "process/start")
        .await;
    [root, call, request, process]
}

#[tokio::test]
async fn spans_lead_from_the_client_command_to_the_end_of_the_process() {
    let collector = Collector::start().await;
    let server = server_with(&collector, &[]).await;
    let secret = "a-secret-argument";
    let script = format!("echo hi; : {secret}; exit 3");
    let arguments = [
        "run",
        "--otlp",
        &collector.url(),
        "--env",
        "HUSH=secret-value",
        server.url(),
        "--",
        "sh",
        "-c",
        &script,
    ];
    let output = run(program(&arguments).env("TRACEPARENT", PARENT)).await;
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert_eq!(output.stdout, b"hi\n");
    let [root, call, request, process] = spans_of_run(&collector).await;
    assert_eq!(hex(&root.span.trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(hex(&root.span.parent_span_id), "00f067aa0ba902b7");
    assert!(call.is_child_of(&root), "{call:?} of {root:?}");
    assert!(request.is_child_of(&call), "{request:?} of {call:?}");
    assert!(process.is_child_of(&request), "{process:?} of {request:?}");
    assert_eq!(root.text("exec_server.command").as_deref(), Some("run"));
    assert_eq!(root.number("process.exit.code"), Some(3));
    assert_eq!(request.text("rpc.method").as_deref(), Some("process/start"));
    assert_eq!((request.status(), process.status()), (0, 2));
    assert_eq!(process.number("process.exit.code"), Some(3));
    assert_eq!(process.text("exec_server.exit.reason").as_deref(), Some("exited"));
    assert_eq!(process.text("exec_server.sandbox").as_deref(), Some("none"));
    assert!(process.span.end_time_unix_nano >= process.span.start_time_unix_nano);
    for collected in collector.spans() {
        let shown = format!("{collected:?}");
        assert!(!shown.contains(secret) && !shown.contains("secret-value"), "{shown}");
    }
}

#[tokio::test]
async fn a_trace_goes_through_the_rendezvous() {
    let collector = Collector::start().await;
    let (data, state, home) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let url = collector.url();
    let relay = Program::start_with(data.path(), "http://127.0.0.1:0", &["--otlp", &url]).await;
    let (executor_token, token) = (relay.token("executor").await, relay.token("harness").await);
    let _executor = join(&relay.url, state.path(), &executor_token).args(&["--otlp", &url]).spawn();
    wait_for_presence(&relay.url, relay.admin_token.as_deref().unwrap(), true).await;
    let arguments = ["run", "--otlp", &url, "--remote", &relay.url, "env:env", "--", "true"];
    let output = run(program(&arguments)
        .env("EXEC_SERVER_REMOTE_TOKEN", &token)
        .env("XDG_STATE_HOME", home.path()))
    .await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let [root, call, request, process] = spans_of_run(&collector).await;
    assert!(call.is_child_of(&root) && request.is_child_of(&call) && process.is_child_of(&request));
    let asked = collector.span_named(CLIENT, "registry/connect").await;
    let connect = collector.span_named(RENDEZVOUS, "connect").await;
    assert!(asked.is_child_of(&root) && connect.is_child_of(&asked), "{connect:?} of {asked:?}");
    assert_eq!(connect.text("exec_server.environment").as_deref(), Some("env"));
    let metrics = ["exec_server_relay_executors_active", "exec_server_requests"];
    relay.terminate();
    // The rendezvous sends its metrics when it ends.
    let found =
        collector.metrics(|found| metrics.iter().all(|name| total(found, name).is_some())).await;
    assert!(total(&found, "exec_server_requests") >= Some(2), "{found:?}");
}

#[tokio::test]
async fn a_request_carries_its_context_in_trace_or_in_meta() {
    let collector = Collector::start().await;
    let server = server_with(&collector, &[]).await;
    let mut client = server.client().await;
    let other = PARENT.replace("00f067aa0ba902b7", "1111111111111111");
    client
        .call("environment/info", json!({"_meta": {"traceparent": other, "tracestate": "a=1"}}))
        .await
        .unwrap();
    let info = collector.span_named(SERVER, "environment/info").await;
    assert_eq!(hex(&info.span.parent_span_id), "1111111111111111");
    assert_eq!(info.span.trace_state, "a=1");
    client.call("process/read", json!({"processId": "nope"})).await.unwrap_err();
    let read = collector.span_named(SERVER, "process/read").await;
    assert!(read.span.parent_span_id.is_empty(), "{read:?}");
    assert_eq!(read.text("error.type").as_deref(), Some("unknown_process"));
    assert_eq!((read.status(), read.number("rpc.jsonrpc.error_code")), (2, Some(-32600)));
}

#[tokio::test]
async fn an_embedder_passes_its_context_on() {
    let collector = Collector::start().await;
    let server = server_with(&collector, &[]).await;
    let context = |text: &str| TraceContext::parse(text, None).unwrap();
    let current = Tracing::current(move || Some(context(PARENT)));
    let args = RemoteExecServerConnectArgs::new(server.url()).tracing(current);
    let client = ExecServerClient::connect(args).await.unwrap();
    client.command("true").output().await.unwrap();
    let process = collector.span_named(SERVER, "process").await;
    assert_eq!(hex(&process.span.trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
    let other = PARENT.replace("4bf9", "aaaa");
    let metadata = client.fs();
    let path = std::path::Path::new("/");
    with_trace_context(context(&other), metadata.metadata(path)).await.unwrap();
    let stat = collector.span_named(SERVER, "fs/getMetadata").await;
    assert!(hex(&stat.span.trace_id).starts_with("aaaa"), "{stat:?}");
}

#[tokio::test]
async fn the_trace_of_an_mcp_client_is_passed_on() {
    let collector = Collector::start().await;
    let server = server_with(&collector, &[]).await;
    let mut mcp = program(&["mcp", server.url()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
        "traceparent": PARENT,
    });
    let params = json!({"name": "run_command", "arguments": {"command": "echo hi"}, "_meta": meta});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    mcp.stdin.as_mut().unwrap().write_all(format!("{call}\n").as_bytes()).await.unwrap();
    let process = collector.span_named(SERVER, "process").await;
    assert_eq!(hex(&process.span.trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
    let request = collector.span_named(SERVER, "process/start").await;
    assert_eq!(hex(&request.span.parent_span_id), "00f067aa0ba902b7");
    drop(mcp.stdin.take());
    timeout(DEADLINE, mcp.wait()).await.expect("it ends with its input").unwrap();
}

#[tokio::test]
async fn sandbox_and_signal_are_in_the_span_of_a_process() {
    let collector = Collector::start().await;
    let server = server_with(&collector, &[]).await;
    let mut client = server.client().await;
    client.start("p", &["/bin/sleep", "1000"], json!({})).await.unwrap();
    client.call("process/terminate", json!({"processId": "p"})).await.unwrap();
    let process = collector.span_named(SERVER, "process").await;
    assert_eq!(process.text("exec_server.exit.signal").as_deref(), Some("SIGKILL"), "{process:?}");
    assert_eq!(process.text("exec_server.process.id").as_deref(), Some("p"));
    let policy = json!({"sandbox": {"type": "read-only"}});
    let started = client.start("s", &["/bin/true"], policy).await.unwrap();
    let is_second =
        |span: &CollectedSpan| span.text("exec_server.process.id").as_deref() == Some("s");
    let process = collector.span("the sandboxed process", is_second).await;
    let level = process.text("exec_server.sandbox").expect("a level");
    assert_eq!(started["sandbox"]["level"], level);
}

#[tokio::test]
async fn metrics_are_those_of_prometheus() {
    let collector = Collector::start().await;
    let more = ["--otlp-interval", "100ms"];
    let server = server_with(&collector, &more).await;
    let mut client = server.client().await;
    assert_eq!(client.sh("short", "printf 12345").await.text(), "12345");
    let found =
        collector.metrics(|found| total(found, "exec_server_processes_finished") == Some(1)).await;
    assert_eq!(total(&found, "exec_server_output_bytes"), Some(5));
    assert_eq!(total(&found, "exec_server_connections_active"), Some(1));
    let names: Vec<&str> = found.iter().map(|metric| metric.name.as_str()).collect();
    assert!(names.contains(&"exec_server_request_duration_seconds"), "{names:?}");
}

#[tokio::test]
async fn credentials_are_sent_but_not_passed_on() {
    let collector = Collector::start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("headers");
    std::fs::write(&file, "# of the collector\nX-Of-File: from-a-file\n").unwrap();
    let server = TestExecutor::builder()
        .args(&["--otlp", "env", "--otlp-headers-file", file.to_str().unwrap()])
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url())
        .env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hush,x-tenant=a")
        .env("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        .env("OTEL_SERVICE_NAME", "renamed")
        .env("OTEL_RESOURCE_ATTRIBUTES", "team=a")
        .start()
        .await;
    let mut client = server.client().await;
    let policy = json!({"envPolicy": {
        "inherit": "all", "ignoreDefaultExcludes": true, "exclude": [], "set": {}, "includeOnly": [],
    }});
    let text = client.run("p", &["/usr/bin/env"], policy).await.text();
    assert!(text.contains("OTEL_SERVICE_NAME=renamed") && !text.contains("hush"), "{text}");
    collector.span_named("renamed", "process").await;
    let request = collector.requests().remove(0);
    assert_eq!(request.header("authorization"), Some("Bearer hush"));
    assert_eq!(request.header("x-tenant"), Some("a"));
    assert_eq!(request.header("x-of-file"), Some("from-a-file"));
    assert_eq!(request.header("content-encoding"), Some("gzip"));
    // A credential that is renewed takes no restart.
    std::fs::write(&file, "X-Of-File: renewed\n").unwrap();
    client.sh("again", ":").await;
    eventually("a request has the new header", || {
        collector.requests().iter().any(|it| it.header("x-of-file") == Some("renewed"))
    })
    .await;
}

#[tokio::test]
async fn a_collector_that_refuses_for_a_while_gets_every_span_later() {
    for status in [429, 503] {
        let script = [Reaction::Refuse(status, Some(0)), Reaction::Refuse(status, None)];
        let collector = Collector::scripted(script).await;
        let mut server = TestExecutor::builder()
            .args(&["--otlp", &collector.url(), "--metrics-listen", "127.0.0.1:0"])
            .env("RUST_LOG", "info")
            .piped_stderr()
            .start()
            .await;
        let metrics = metrics_url(&mut server).await;
        let mut client = server.client().await;
        assert_eq!(client.sh("p", "echo hi").await.text(), "hi\n");
        collector.span_named(SERVER, "process").await;
        let reasons = warnings(&mut server, "telemetry is sent again").await;
        let reason = format!("the collector answered {status}");
        assert_eq!(reasons, [reason], "the failure is logged once");
        let exported = r#"exec_server_spans_total{result="exported"}"#;
        crate::metrics::until(&metrics, |now| now[exported] >= 2.0).await;
        let dropped = r#"exec_server_spans_total{result="dropped"}"#;
        assert_eq!(crate::metrics::scrape(&metrics).await[dropped], 0.0);
    }
}

/// The reasons of failed exports up to a message.
async fn warnings(server: &mut TestExecutor, last: &str) -> Vec<String> {
    let mut reasons = Vec::new();
    loop {
        let line = server.next_stderr_line().await.expect("the message comes");
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        let message = line["message"].as_str().unwrap_or_default();
        if message == last {
            return reasons;
        }
        if message.starts_with("cannot send telemetry") {
            reasons.push(line["reason"].as_str().expect("a reason").to_owned());
        }
    }
}

#[tokio::test]
async fn spans_that_a_collector_rejects_are_counted_as_dropped() {
    let collector = Collector::scripted([Reaction::Refuse(400, None); 50]).await;
    let mut server = TestExecutor::builder()
        .args(&["--otlp", &collector.url(), "--metrics-listen", "127.0.0.1:0"])
        .env("RUST_LOG", "info")
        .piped_stderr()
        .start()
        .await;
    let metrics = metrics_url(&mut server).await;
    let mut client = server.client().await;
    assert_eq!(client.sh("p", "echo hi").await.text(), "hi\n");
    let dropped = r#"exec_server_spans_total{result="dropped"}"#;
    crate::metrics::until(&metrics, |now| now[dropped] >= 2.0).await;
}

#[tokio::test]
async fn a_collector_that_hangs_or_is_down_delays_neither_requests_nor_the_end() {
    let hanging = Collector::scripted([Reaction::Hang; 50]).await;
    let down = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    for url in [hanging.url(), down] {
        let mut server = TestExecutor::builder().args(&["--otlp", &url]).start().await;
        let mut client = server.client().await;
        // More spans than the queue takes.
        for _ in 0..3000 {
            client.call("environment/status", json!({})).await.unwrap();
        }
        assert_eq!(client.sh("p", "echo hi").await.text(), "hi\n");
        server.signal(Signal::TERM);
        assert_eq!(server.wait().await.code(), Some(0));
        let output = run(&mut program(&["ls", "--otlp", &url, "stdio:false", "/"])).await;
        assert_ne!(output.status.code(), Some(0));
        let server = TestExecutor::start().await;
        let arguments = ["run", "--otlp", &url, server.url(), "--", "sh", "-c", "exit 7"];
        let output = run(&mut program(&arguments)).await;
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("the trace of this command was not sent"), "{errors}");
    }
    eventually("the collector was asked", || !hanging.requests().is_empty()).await;
}

#[tokio::test]
async fn wrong_settings_are_refused_at_the_start() {
    for (arguments, says) in [
        (&["--otlp", "collector:4318"][..], "--otlp is not a URL of a collector"),
        (&["--otlp", "http://me:hush@h:1"], "--otlp is not a URL of a collector"),
        (&["--otlp-interval", "5s"], "--otlp-interval needs a collector: --otlp URL"),
        (
            &["--otlp", "http://h:1", "--otlp-headers-file", "/nonexistent"],
            "--otlp-headers-file /nonexistent",
        ),
        (&["rendezvous", "--otlp", "grpc://h:1"], "--otlp is not a URL of a collector"),
        (&["ps", "--otlp", "h", "ws://127.0.0.1:1"], "--otlp is not a URL of a collector"),
    ] {
        let output = run(&mut program(arguments)).await;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_ne!(output.status.code(), Some(0));
        assert!(errors.contains(says) && !errors.contains("hush"), "{arguments:?}: {errors}");
    }
    let mut command = program(&["--otlp", "env"]);
    let output = run(command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")).await;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("OTEL_EXPORTER_OTLP_PROTOCOL: `grpc` is not supported"), "{errors}");
}
