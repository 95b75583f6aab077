//! Random cuts of the link while processes write and read: every byte arrives once and in order.

use std::time::Duration;

use exec_server::{Child, ExecServerClient, ProcessEvent, Stdin};
use exec_server_testkit::fault_proxy::FaultSchedule;
use exec_server_testkit::{DEADLINE, FaultProxy, TestExecutor};
use tokio::time::timeout;

const WRITERS: u64 = 3;
const LINES: u64 = 1200;

/// The cuts come from a seed, which a failure prints.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_cuts_lose_nothing_and_repeat_nothing() {
    let server = TestExecutor::start().await;
    let proxy = FaultProxy::to(server.url()).await;
    let client = ExecServerClient::connect(proxy.url()).await.unwrap();
    let seed = 20_261_116;
    proxy.set_faults(Some(FaultSchedule {
        seed,
        delay: Duration::ZERO..Duration::from_millis(1),
        piece: 1..3000,
        cut_every: Some(3000..7000),
    }));
    let mut talks = tokio::task::JoinSet::new();
    for number in 0..WRITERS {
        let client = client.clone();
        talks.spawn(async move { talk(&client, number).await });
    }
    talks.spawn({
        let client = client.clone();
        async move { listen(&client).await }
    });
    let all = async {
        while let Some(result) = talks.join_next().await {
            result.unwrap()
        }
    };
    timeout(10 * DEADLINE, all).await.unwrap_or_else(|_| panic!("seed {seed}: it never ends"));
    assert!(proxy.connections() > 150, "only {} connections", proxy.connections());
    proxy.set_faults(None);
}

/// Starts a process despite cuts; the client never repeats a start, so this does.
async fn start(client: &ExecServerClient, argv: &[&str], id: &str) -> Child {
    for attempt in 0.. {
        let mut command = client.command(argv[0]);
        command.args(argv[1..].iter().copied()).stdin(Stdin::Piped);
        command.process_id(format!("{id}-{attempt}"));
        match command.spawn().await {
            Ok(child) => return child,
            Err(error) => assert!(error.is_disconnected(), "{error}"),
        }
    }
    unreachable!("the loop has no end")
}

/// Writes numbered lines to a process that echoes them, and checks that they come back.
async fn talk(client: &ExecServerClient, number: u64) {
    let child = start(client, &["cat"], &format!("talk-{number}")).await;
    let process = child.session();
    let expected: String = (0..LINES).map(|line| format!("{number}:{line}\n")).collect();
    let mut events = process.events();
    let writing = async {
        for line in 0..LINES {
            process.write(format!("{number}:{line}\n").as_bytes()).await.unwrap();
        }
        process.close_stdin().await.unwrap();
    };
    let reading = collect(&mut events);
    let ((), text) = tokio::join!(writing, reading);
    assert!(text == expected, "{number}: {text}");
}

/// Reads what a process writes at its own pace, in pieces of every size.
async fn listen(client: &ExecServerClient) {
    // Slowly, so that what is missed during a cut fits between that cut and the next.
    let script = "for i in $(seq 1000); do echo $i; sleep 0.005; done";
    let child = start(client, &["bash", "-c", script], "listen").await;
    let text = collect(&mut child.session().events()).await;
    let expected: String = (1..=1000).map(|number| format!("{number}\n")).collect();
    assert!(text == expected);
}

/// All output; checks the sequence numbers.
async fn collect(events: &mut exec_server::ProcessEvents) -> String {
    let mut text = Vec::new();
    let mut last = 0;
    while let Some(event) = events.next().await {
        if let Some(seq) = event.seq() {
            assert_eq!(seq, last + 1, "numbers are without gaps and repetitions");
            last = seq;
        }
        match event {
            ProcessEvent::Output { bytes, .. } => text.extend_from_slice(&bytes),
            ProcessEvent::Exited { exit, .. } => assert_eq!(exit.exit_code, 0),
            ProcessEvent::Closed { .. } | ProcessEvent::ResyncRequired => {}
            event => panic!("{event:?}"),
        }
    }
    String::from_utf8(text).unwrap()
}
