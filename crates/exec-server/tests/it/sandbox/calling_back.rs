//! A sandboxed process that shares the machine's network does not get at the server itself.

use super::*;

#[tokio::test]
async fn the_server_does_not_answer_those_whom_it_confines() {
    if !Path::new("/bin/bash").exists() {
        return eprintln!("skipped: there is no bash to dial with");
    }
    let desk = &mut Desk::new().await;
    let work = desk.root().to_owned();
    let port = desk.server.url().rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n' >&3; head -n 1 <&3"
    );
    let argv = ["/bin/bash", "-c", script.as_str()];
    let free = desk.client.run("free", &argv, json!({"env": {"PATH": "/usr/bin:/bin"}})).await;
    assert!(free.text().starts_with("HTTP/1.1 200"), "{}", free.error_text());
    let more = json!({
        "sandbox": workspace_write(&[&work], "enabled"), "cwd": uri(&work),
        "env": {"PATH": "/usr/bin:/bin"},
    });
    let confined = desk.client.run("confined", &argv, more).await;
    assert_eq!(confined.text(), "", "{}", confined.error_text());
    // Everybody else is served all the same, also while a sandbox shares the network.
    let sleeper = json!({"sandbox": workspace_write(&[&work], "enabled"), "cwd": uri(&work)});
    desk.client.start("sleeper", &["/bin/sleep", "1000"], sleeper).await.unwrap();
    let mut other = desk.server.client().await;
    other.call("environment/status", json!({})).await.unwrap();
    desk.client.terminate("sleeper", None).await;
    desk.client.finish("sleeper").await;
}
