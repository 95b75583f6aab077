//! Many at once.

use exec_server_protocol::relay_frame::RelayBody;
use exec_server_testkit::TestRendezvous;

use super::env;

#[tokio::test]
async fn two_hundred_at_once_each_hear_their_own() {
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
            // An echo: every harness gets back what it said, whatever the order in which it came.
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
