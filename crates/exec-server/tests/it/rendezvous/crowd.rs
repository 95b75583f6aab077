//! Many concurrent executors and harnesses.

use exec_server_relay::frame::RelayBody;
use exec_server_testkit::TestRendezvous;

use super::env;

#[tokio::test]
async fn two_hundred_concurrent_harnesses_get_their_own_messages() {
    let rendezvous = TestRendezvous::start().await;
    let names: Vec<&'static str> =
        (0..20).map(|number| &*Box::leak(format!("env-{number}").into_boxed_str())).collect();
    let environments = names.into_iter().map(|name| {
        let rendezvous = &rendezvous;
        async move {
            let env = env(rendezvous, name).await;
            let mut executor = env.executor(rendezvous).await;
            let mut harnesses = Vec::new();
            for number in 0..10 {
                let mut harness = env.harness(rendezvous).await;
                let stream = format!("s{number}");
                harness.resume(&stream).await;
                executor.expect(&stream, RelayBody::Resume { next_seq: 0 }).await;
                harnesses.push((harness, stream));
            }
            for (harness, stream) in &mut harnesses {
                harness.send_data(stream, format!("{name} {stream}")).await;
            }
            // An echo: every harness gets its own messages back, whatever the order.
            for _ in 0..10 {
                let (stream, payload) = executor.next_data().await;
                executor.send_data(&stream, payload).await;
            }
            for (harness, stream) in &mut harnesses {
                let (from, payload) = harness.next_data().await;
                assert_eq!((&from, payload), (&*stream, format!("{name} {stream}").into()));
            }
            (executor, harnesses)
        }
    });
    let all = futures_util::future::join_all(environments).await;
    assert_eq!(all.len(), 20);
}

/// Memory limit for a thousand executors with a harness each.
#[cfg(target_os = "linux")]
const MOST_MEMORY: u64 = 256 << 20;

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_thousand_executors_with_a_harness_each_fit_into_256_mib() {
    use exec_server_testkit::RelaySocket;
    use exec_server_testkit::rendezvous::{connect_body, public_key, register_body};
    use futures_util::StreamExt;
    use serde_json::json;

    use super::commands::Program;

    exec_server_os::raise_open_file_limit();
    let data = tempfile::tempdir().unwrap();
    // Replies are not read.
    let log = "exec_server::cli::rendezvous=info";
    // Pings are not answered before their turn.
    let more = ["--ping-interval", "1h"];
    let program = Program::start_logging(data.path(), "http://127.0.0.1:0", &more, log).await;
    let admin = program.admin_token.as_deref().expect("the first start shows it");
    let one = async |number: usize| {
        let name = format!("env-{number}");
        let token = async |role: &str| {
            let wanted = json!({"role": role, "environment": name});
            program.post("/admin/tokens", admin, wanted).await["secret"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let ask = async |what: &str, token: String, body| {
            program.post(&format!("/cloud/environment/{name}/{what}"), &token, body).await
        };
        let body = register_body(&public_key(1));
        let registered = ask("register", token("executor").await, body).await;
        let mut executor = RelaySocket::open(super::url(&registered)).await;
        let body = connect_body(&public_key(2));
        let bundle = ask("connect", token("harness").await, body).await;
        let mut harness = RelaySocket::open(super::url(&bundle)).await;
        harness.resume("s").await;
        executor.expect("s", RelayBody::Resume { next_seq: 0 }).await;
        (executor, harness)
    };
    let all: Vec<_> = futures_util::stream::iter(0..1000).map(one).buffered(16).collect().await;
    let memory = super::trust::rss(program.pid());
    assert!(memory < MOST_MEMORY, "{} MiB", memory >> 20);
    // All of them are attached and served.
    for (number, (mut executor, mut harness)) in all.into_iter().enumerate() {
        harness.send_data("s", format!("{number}")).await;
        assert_eq!(executor.next_data().await.1, format!("{number}"));
    }
}
