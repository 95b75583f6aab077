//! A sandboxed process with network access cannot connect to a server.

use exec_server_testkit::{TestExecutor, eventually};

use super::attempt::outcomes;
use super::fixture::{SandboxFixture, as_each_user, users};
use super::*;
use crate::files::host::{as_nobody, for_the_nobody_user_alone, set_mode};

#[tokio::test]
async fn the_server_does_not_answer_those_whom_it_confines() {
    if !Path::new("/bin/bash").exists() {
        return eprintln!("skipped: there is no bash to dial with");
    }
    let fixture = &mut FsFixture::new().await;
    let work = fixture.root().to_owned();
    let port = fixture.server.url().rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n' >&3; head -n 1 <&3"
    );
    let argv = ["/bin/bash", "-c", script.as_str()];
    let free = fixture.client.run("free", &argv, json!({"env": {"PATH": "/usr/bin:/bin"}})).await;
    assert!(free.text().starts_with("HTTP/1.1 200"), "{}", free.error_text());
    let more = json!({
        "sandbox": workspace_write(&[&work], "enabled"), "cwd": uri(&work),
        "env": {"PATH": "/usr/bin:/bin"},
    });
    let confined = fixture.client.run("confined", &argv, more).await;
    assert_eq!(confined.text(), "", "{}", confined.error_text());
    // Other clients are still served, also while a sandbox shares the network.
    let sleeper = json!({"sandbox": workspace_write(&[&work], "enabled"), "cwd": uri(&work)});
    fixture.client.start("sleeper", &["/bin/sleep", "1000"], sleeper).await.unwrap();
    let mut other = fixture.server.client().await;
    other.call("environment/status", json!({})).await.unwrap();
    fixture.client.terminate("sleeper", None).await;
    fixture.client.finish("sleeper").await;
}

#[tokio::test]
async fn a_token_does_not_help_those_whom_it_confines() {
    if !Path::new("/bin/bash").exists() {
        return eprintln!("skipped: there is no bash to dial with");
    }
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "open-sesame-and-more").unwrap();
    let auth = ["--ws-auth", "capability-token", "--ws-token-file", token.to_str().unwrap()];
    let server = TestExecutor::builder().args(&auth).start().await;
    let header = [("Authorization", "Bearer open-sesame-and-more")];
    let mut client = TestClient::try_connect(server.url(), &header).await.unwrap();
    client.initialize().await;
    let port = server.url().rsplit(':').next().unwrap().trim_end_matches('/');
    let upgrade = "GET / HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n\
                   Sec-WebSocket-Version: 13\\r\\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\
                   Authorization: Bearer open-sesame-and-more\\r\\n\\r\\n";
    let dial = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{upgrade}' >&3; head -n 1 <&3");
    let argv = ["/bin/bash", "-c", &dial];
    let env = json!({"PATH": "/usr/bin:/bin"});
    let free = client.run("free", &argv, json!({"env": env})).await;
    assert!(free.text().starts_with("HTTP/1.1 101"), "{free:?}");
    let sandbox = workspace_write(&[dir.path()], "enabled");
    let more = json!({"sandbox": sandbox, "cwd": uri(dir.path()), "env": env});
    let inside = client.run("inside", &argv, more).await;
    assert_eq!(inside.text(), "", "{inside:?}");
}

#[tokio::test]
async fn a_pipelined_request_that_closes_at_once_is_not_served() {
    if !Path::new("/bin/bash").exists() {
        return eprintln!("skipped: there is no bash to dial with");
    }
    as_each_user(async |fixture| {
        let url = fixture.server.url().trim_end_matches('/').to_owned();
        let port = url.rsplit(':').next().unwrap();
        let (free, inside) = (fixture.outside().join("free"), fixture.outside().join("inside"));
        let dial = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; cat request >&3");
        let script =
            format!("for i in 1 2 3 4 5 6 7 8; do bash -c '{dial}; exec 3>&-'; done; echo dialled");
        let request = fixture.work().join("request");
        std::fs::write(&request, start_by_hand(&["/bin/mkdir", "-p"], &free)).unwrap();
        // The control waits for the answer: a peer that is gone before the server has identified it is not served either.
        let control = fixture.run_free(&format!("bash -c '{dial}; head -n 1 <&3'")).await;
        assert!(control.text().starts_with("HTTP/1.1 101"), "{control:?}");
        eventually("the request is carried out", || free.exists()).await;
        std::fs::write(&request, start_by_hand(&["/bin/mkdir", "-p"], &inside)).unwrap();
        let policy = fixture.workspace("enabled");
        assert_eq!(fixture.run(&policy, &script).await.text(), "dialled\n");
        // Pending connections were dialled before.
        fixture.server.client().await.call("environment/status", json!({})).await.unwrap();
        assert!(!inside.exists());
    })
    .await;
}

/// An upgrade request and a process start, pipelined without waiting for replies.
fn start_by_hand(argv: &[&str], path: &Path) -> Vec<u8> {
    let argv: Vec<&str> = argv.iter().copied().chain(path.to_str()).collect();
    let start = json!({
        "processId": "by-hand", "argv": argv, "cwd": "file:///", "env": {}, "tty": false, "arg0": null,
    });
    let messages = [
        json!({"id": 1, "method": "initialize", "params": {"clientName": "by hand"}}),
        json!({"method": "initialized", "params": {}}),
        json!({"id": 2, "method": "process/start", "params": start}),
    ];
    let head = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let frames = messages.iter().flat_map(|message| frame(&message.to_string()));
    head.bytes().chain(frames).collect()
}

/// A text frame, masked with zeros.
fn frame(text: &str) -> Vec<u8> {
    let length = match u8::try_from(text.len()) {
        Ok(length) if length < 126 => vec![0x80 | length],
        _ => [&[0x80 | 126], &u16::try_from(text.len()).unwrap().to_be_bytes()[..]].concat(),
    };
    [&[0x81], &length[..], &[0; 4], text.as_bytes()].concat()
}

#[tokio::test]
async fn the_socket_of_the_server_is_out_of_reach() {
    for user in users() {
        let dir = tempfile::tempdir().unwrap();
        set_mode(dir.path(), 0o777);
        let socket = dir.path().join("server.sock");
        let listen = format!("unix://{}", socket.display());
        let builder = TestExecutor::builder().args(&["--listen", &listen]);
        let Some(builder) = (if user.is_some() { as_nobody(builder) } else { Some(builder) })
        else {
            return;
        };
        let mut fixture = SandboxFixture::new(builder.start().await, user).await;
        fixture.env.insert("SOCKET".to_owned(), socket.to_str().unwrap().to_owned());
        let free = outcomes(&mut fixture, &Value::Null, &["unix_named"]).await;
        assert_eq!(free["unix_named"], "ok");
        let roots = [&*fixture.work(), dir.path()];
        for policy in [
            fixture.workspace("enabled"),
            workspace_write(&roots, "enabled"),
            unrestricted("enabled"),
        ] {
            let inside = outcomes(&mut fixture, &policy, &["unix_named"]).await;
            assert!(["EACCES", "Some(111)"].contains(&&*inside["unix_named"]), "{inside:?}");
            let gone = fixture.run(&policy, "rm -f $SOCKET; mv $SOCKET $WORK/elsewhere").await;
            assert_ne!(gone.exit_code, 0, "{gone:?}");
        }
        fixture.server.client().await.call("environment/status", json!({})).await.unwrap();
    }
}

/// Address of a server in the form of `DIAL`.
fn dialled(server: &TestExecutor) -> String {
    server.url().trim_start_matches("ws://").trim_end_matches('/').to_owned()
}

const ATTACKS: [&str; 4] = ["dial", "dial_unseen", "dial_unmarked", "dial_in_flight"];

#[tokio::test]
async fn another_server_does_not_serve_a_sandbox_either() {
    as_each_user(async |fixture| {
        let socket = fixture.outside().join("another.sock");
        let path = format!("unix://{}", socket.display());
        let by_tcp = fixture.another_server(&[]).await;
        let by_path = fixture.another_server(&["--listen", &path]).await;
        let files = workspace_write(&[&fixture.work(), &fixture.outside()], "enabled");
        for (address, attacks) in [(dialled(&by_tcp), &ATTACKS[..]), (path, &ATTACKS[..3])] {
            fixture.env.insert("DIAL".to_owned(), address.clone());
            let free = outcomes(fixture, &Value::Null, &["dial"]).await;
            assert_eq!(free["dial"], "ok", "{address}");
            for policy in [fixture.workspace("enabled"), files.clone(), unrestricted("enabled")] {
                for (attack, outcome) in outcomes(fixture, &policy, attacks).await {
                    assert_ne!(outcome, "ok", "{attack} to {address}");
                }
            }
        }
        // Both still serve their own user while a sandbox shares the network.
        let (sleeper, params) = (fixture.next_id(), fixture.params(&fixture.workspace("enabled")));
        fixture.client.start(&sleeper, &["/bin/sleep", "1000"], params).await.unwrap();
        for server in [&by_tcp, &by_path] {
            server.client().await.call("environment/status", json!({})).await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_token_does_not_help_a_sandbox_of_another_server() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "open-sesame-and-more").unwrap();
    let auth = ["--ws-auth", "capability-token", "--ws-token-file", token.to_str().unwrap()];
    let mut fixture = SandboxFixture::new(TestExecutor::start().await, None).await;
    let other = TestExecutor::start_with(&auth).await;
    fixture.env.insert("DIAL".to_owned(), dialled(&other));
    let free = outcomes(&mut fixture, &Value::Null, &["dial"]).await;
    assert_eq!(free["dial"], "ok");
    let policy = fixture.workspace("enabled");
    for (attack, outcome) in outcomes(&mut fixture, &policy, &ATTACKS).await {
        assert_ne!(outcome, "ok", "{attack}");
    }
}

#[tokio::test]
async fn client_commands_that_listen_do_not_serve_a_sandbox() {
    as_each_user(async |fixture| {
        for command in ["mcp", "e2b"] {
            let url = fixture.server.url().to_owned();
            let arguments = [command, "--listen", "127.0.0.1:0", &url];
            let builder = TestExecutor::builder().args(&arguments);
            let builder = match fixture.is_own_user() {
                true => builder,
                false => for_the_nobody_user_alone(builder).expect("there is one already"),
            };
            let listener = builder.start().await;
            let address = listener.url().trim_start_matches("http://").trim_end_matches("/mcp");
            fixture.env.insert("DIAL".to_owned(), address.to_owned());
            let free = outcomes(fixture, &Value::Null, &["dial"]).await;
            assert_eq!(free["dial"], "ok", "{command}");
            for policy in [fixture.workspace("enabled"), unrestricted("enabled")] {
                for (attack, outcome) in outcomes(fixture, &policy, &ATTACKS).await {
                    assert_ne!(outcome, "ok", "{attack} to {command}");
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn the_port_of_metrics_does_not_serve_a_sandbox_of_another_server() {
    if !Path::new("/bin/bash").exists() {
        return eprintln!("skipped: there is no bash to dial with");
    }
    let (_other, metrics) = crate::metrics::start().await;
    let mut fixture = SandboxFixture::new(TestExecutor::start().await, None).await;
    let dial = "exec 3<>/dev/tcp/$HOST/$PORT; \
                printf 'GET /metrics HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n' >&3; \
                head -n 1 <&3";
    let (host, port) = metrics.trim_start_matches("http://").split_once(':').unwrap();
    fixture.env.extend([("HOST", host), ("PORT", port)].map(|(k, v)| (k.to_owned(), v.to_owned())));
    let script = format!("bash -c \"{}\"", dial.replace('$', "\\$"));
    assert!(fixture.run_free(&script).await.text().starts_with("HTTP/1.1 200"));
    let policy = fixture.workspace("enabled");
    assert_eq!(fixture.run(&policy, &script).await.text(), "");
}

#[tokio::test]
async fn the_sandbox_command_does_not_get_at_a_server() {
    if !Path::new("/bin/bash").exists() {
        return eprintln!("skipped: there is no bash to dial with");
    }
    let server = TestExecutor::start().await;
    let port = server.url().rsplit(':').next().unwrap().trim_end_matches('/');
    let dial = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n' >&3; \
         head -n 1 <&3; echo done"
    );
    let command = ["--", "/bin/bash", "-c", &dial];
    for flags in
        [["sandbox", "--network"].as_slice(), &["sandbox", "--network", "--policy", "read-only"]]
    {
        let builder = TestExecutor::builder().args(flags).args(&command);
        let (code, said, errors) = builder.run().await;
        // Output to a closed connection may end the shell.
        assert!([0, 141].contains(&code), "{code} {errors}");
        assert!(!said.contains("HTTP"), "{said}");
    }
}
