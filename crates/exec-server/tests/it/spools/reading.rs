//! What is kept, and what is returned of it.

use exec_server::ExecServerClient;
use exec_server_protocol::fs::CaseMode;
use exec_server_protocol::process::{OutputSearch, OutputView, ProcessReadResponse};
use exec_server_testkit::{TestClient, TestExecutor};
use serde_json::{Value, json};

use super::{bytes, numbers, read_all, text, view};

/// Keeps little in memory, so that a read needs the spool.
fn spooled(more: Value) -> Value {
    let mut params = json!({"outputRetention": 65_536, "outputSpool": {}});
    for (name, value) in more.as_object().unwrap() {
        params[name] = value.clone();
    }
    params
}

#[tokio::test]
async fn all_output_is_read_by_number_also_after_it_left_the_memory() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let more = spooled(json!({"detailed": true}));
    let started = client.start("p", &["seq", "600000"], more).await.unwrap();
    assert_eq!(started["outputSpool"], json!({"maxBytes": 268_435_456}));
    client.finish("p").await;
    let (all, gaps) = read_all(&mut client, "p", 0).await;
    assert!(all == numbers(600_000).into_bytes(), "{} bytes", all.len());
    assert!(gaps.is_empty(), "{gaps:?}");
    // Without a spool the same output is evicted, and no answer mentions a spool.
    client.run("q", &["seq", "600000"], json!({"outputRetention": 65_536})).await;
    let (rest, gaps) = read_all(&mut client, "q", 0).await;
    assert!(rest.len() <= 65_536 && gaps.len() == 1, "{} {gaps:?}", rest.len());
    let plain = client.call("process/read", json!({"processId": "q"})).await.unwrap();
    assert!(plain.get("extent").is_none(), "{plain}");
}

#[tokio::test]
async fn the_rust_client_reads_parts_of_the_output() {
    let server = TestExecutor::start().await;
    let client = ExecServerClient::connect(server.url()).await.unwrap();
    let process = client.command("seq").arg("600000").output_spool(None).spawn().await.unwrap();
    let session = process.session().clone();
    process.wait_with_output().await.unwrap();
    let text = |read: &ProcessReadResponse| {
        let bytes = read.chunks.iter().flat_map(|chunk| chunk.chunk.0.clone()).collect();
        String::from_utf8(bytes).unwrap()
    };
    let read = async |view, most| session.read_view(view, most).await.unwrap();
    assert_eq!(text(&read(OutputView::HeadLines(2), None).await), "1\n2\n");
    assert_eq!(text(&read(OutputView::TailBytes(7), None).await), "600000\n");
    let whole = numbers(600_000);
    let middle = read(OutputView::Offset(1_000_000), Some(10_000)).await;
    assert!(whole[1_000_000..].starts_with(&text(&middle)) && text(&middle).len() >= 10_000);
    let extent = middle.extent.clone().unwrap();
    assert_eq!(extent.next_offset, 1_000_000 + text(&middle).len() as u64);
    assert_eq!(extent.end_offset, whole.len() as u64);
    let search = OutputSearch {
        pattern: "^1234[56]$".to_owned(),
        literal: false,
        case: CaseMode::Sensitive,
        offset: 0,
    };
    let (mut found, mut search) = (String::new(), search);
    loop {
        let page = read(OutputView::Search(search.clone()), None).await;
        found.push_str(&text(&page));
        search.offset = page.extent.unwrap().next_offset;
        if search.offset >= whole.len() as u64 {
            break;
        }
    }
    assert_eq!(found, "12345\n12346\n");
}

#[tokio::test]
async fn a_client_that_was_away_misses_nothing() {
    let server = TestExecutor::start().await;
    let mut first = server.client().await;
    let session = first.session_id.clone();
    let script = "echo ready; read go; seq 300000; echo end";
    first.start("p", &["sh", "-c", script], spooled(json!({"pipeStdin": true}))).await.unwrap();
    first.wait_output("p", "ready\n").await;
    first.write("p", "w1", "go\n").await.unwrap();
    drop(first);
    let mut client = TestClient::connect(server.url()).await;
    client.resume(&session).await.unwrap();
    let wait = json!({"processId": "p", "until": "closed", "waitMs": 60_000});
    assert_eq!(client.call("process/read", wait).await.unwrap()["closed"], true);
    let (all, gaps) = read_all(&mut client, "p", 0).await;
    assert!(gaps.is_empty(), "{gaps:?}");
    let expected = format!("ready\n{}end\n", numbers(300_000));
    assert!(all == expected.as_bytes(), "{} bytes", all.len());
}

#[tokio::test]
async fn a_full_spool_evicts_the_oldest_output_and_says_so() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let more = spooled(json!({"outputSpool": {"maxBytes": 2_000_000}}));
    let started = client.start("p", &["seq", "1000000"], more).await.unwrap();
    assert_eq!(started["outputSpool"], json!({"maxBytes": 2_000_000}));
    client.finish("p").await;
    let whole = numbers(1_000_000);
    let (kept, gaps) = read_all(&mut client, "p", 0).await;
    assert!(whole.as_bytes().ends_with(&kept), "{} bytes", kept.len());
    assert!((1_500_000..=2_000_000).contains(&kept.len()), "{} bytes", kept.len());
    let evicted = whole.len() - kept.len();
    assert_eq!((gaps.len(), &gaps[0][0]), (1, &json!(evicted)), "{gaps:?}");
    let head = view(&mut client, "p", json!({"headBytes": 10})).await;
    assert_eq!(bytes(&head), &whole.as_bytes()[evicted..evicted + 10]);
    assert_eq!(head["extent"]["firstOffset"], evicted);
    assert_eq!(head["extent"]["endOffset"], whole.len());
}

#[tokio::test]
async fn views_are_the_same_with_and_without_a_spool() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let script = "printf 'one\\ntwo\\nth'; read a; printf ree; read b; echo err >&2; read c; printf '\\nfour Two'";
    for (id, more) in [("spool", json!({"outputSpool": {}})), ("memory", json!({}))] {
        let mut more = more;
        more["pipeStdin"] = json!(true);
        client.start(id, &["sh", "-c", script], more).await.unwrap();
        // Each piece is there before the next one is written.
        for (write, piece) in [("a", "\nth"), ("b", "ree"), ("c", "err\n")] {
            client.wait_output(id, piece).await;
            client.write(id, write, "\n").await.unwrap();
        }
        client.finish(id).await;
    }
    for id in ["spool", "memory"] {
        let whole = text(&view(&mut client, id, json!({"offset": 0})).await);
        assert_eq!(whole.len(), 26, "{whole}");
        for (wanted, expected) in [
            (json!({"offset": 8}), &whole[8..]),
            (json!({"offset": 26}), ""),
            (json!({"offset": u64::MAX}), ""),
            (json!({"headBytes": 5}), &whole[..5]),
            (json!({"headLines": 2}), "one\ntwo\n"),
            (json!({"headLines": 0}), ""),
            (json!({"tailBytes": 4}), " Two"),
            (json!({"tailBytes": 1000}), &whole[..]),
            (json!({"tailLines": 1}), "four Two"),
            (json!({"tailLines": 100}), &whole[..]),
            (json!({"search": {"pattern": "^t[wh]"}}), "two\nthree\n"),
            (json!({"search": {"pattern": "two", "case": "insensitive"}}), "two\nfour Two"),
            (json!({"search": {"pattern": "two", "offset": 8}}), ""),
            (json!({"search": {"pattern": "r.", "literal": true}}), ""),
        ] {
            let answer = view(&mut client, id, wanted.clone()).await;
            let got = text(&answer);
            assert_eq!(got, expected, "{id} {wanted}");
            assert_eq!(answer["extent"]["endOffset"], 26, "{id} {wanted}");
        }
        let errors = view(&mut client, id, json!({"search": {"pattern": "err"}})).await;
        assert_eq!(errors["chunks"][0]["stream"], "stderr");
        let times = json!({"processId": id, "view": {"offset": 0}, "timestamps": true});
        let times = client.call("process/read", times).await.unwrap();
        assert!(times["chunks"].as_array().unwrap().iter().all(|chunk| chunk["atMs"].is_u64()));
    }
}

#[tokio::test]
async fn a_long_view_comes_in_pages_by_offset() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.run("p", &["seq", "400000"], spooled(json!({}))).await;
    let whole = numbers(400_000);
    let (mut offset, mut all, mut pages) = (0, Vec::new(), 0);
    loop {
        let params = json!({"processId": "p", "view": {"offset": offset}, "maxBytes": 500_000});
        let answer = client.call("process/read", params).await.unwrap();
        all.extend(bytes(&answer));
        pages += 1;
        let next = answer["extent"]["nextOffset"].as_u64().unwrap();
        if next == offset {
            break;
        }
        assert_eq!(answer["chunks"][0]["offset"], offset);
        offset = next;
    }
    assert!(pages > 4 && all == whole.as_bytes(), "{pages} {}", all.len());
    // A search continues in the same way.
    let (mut offset, mut found) = (0, String::new());
    loop {
        let search = json!({"search": {"pattern": "^12", "offset": offset}});
        let params = json!({"processId": "p", "view": search, "maxBytes": 20_000});
        let answer = client.call("process/read", params).await.unwrap();
        found += &text(&answer);
        let next = answer["extent"]["nextOffset"].as_u64().unwrap();
        if next >= whole.len() as u64 {
            break;
        }
        assert!(next > offset);
        offset = next;
    }
    let expected: String =
        whole.split_inclusive('\n').filter(|line| line.starts_with("12")).collect();
    assert!(found == expected, "{} {}", found.len(), expected.len());
    let tail = view(&mut client, "p", json!({"tailLines": 3})).await;
    assert_eq!(text(&tail), "399998\n399999\n400000\n");
}

#[tokio::test]
async fn a_running_process_is_read_while_it_writes() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let more = spooled(json!({"pipeStdin": true, "outputSpool": {"maxBytes": 1_048_576}}));
    client.start("p", &["sh", "-c", "seq 200000; read go; seq 200001 400000"], more).await.unwrap();
    client.wait_output("p", "\n200000\n").await;
    let tail = view(&mut client, "p", json!({"tailLines": 2})).await;
    assert_eq!(text(&tail), "199999\n200000\n");
    assert_eq!((&tail["exited"], &tail["closed"]), (&json!(false), &json!(false)));
    client.write("p", "w", "go\n").await.unwrap();
    client.finish("p").await;
    let tail = view(&mut client, "p", json!({"tailLines": 1})).await;
    assert_eq!(text(&tail), "400000\n");
}
