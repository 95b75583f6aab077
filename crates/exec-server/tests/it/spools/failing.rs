//! Requests that cannot be honoured, and disks that are full.

use exec_server_testkit::TestExecutor;
use serde_json::json;

use super::{bytes, numbers, read_all, text, view};
use crate::files::host::server_with_mounts;

#[tokio::test]
async fn views_that_make_no_sense_are_refused() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    client.run("p", &["echo", "x"], json!({"outputSpool": {}})).await;
    for (more, kind) in [
        (json!({"view": {"offset": 0}, "afterSeq": 1}), "invalid_params"),
        (json!({"view": {"offset": 0}, "waitMs": 10}), "invalid_params"),
        (json!({"view": {"offset": 0}, "until": "exited"}), "invalid_params"),
        (json!({"view": {"offset": -1}}), "invalid_params"),
        (json!({"view": {"middle": 1}}), "invalid_params"),
        (json!({"view": {}}), "invalid_params"),
        (json!({"view": {"search": {"pattern": "("}}}), "invalid_pattern"),
        (json!({"view": {"search": {"pattern": "x".repeat(100_000)}}}), "invalid_params"),
    ] {
        let mut params = more.clone();
        params["processId"] = json!("p");
        let error = client.call("process/read", params).await.unwrap_err();
        assert_eq!(
            (&error["code"], &error["data"]["kind"]),
            (&json!(-32602), &json!(kind)),
            "{more} {error}"
        );
    }
    for spool in [json!(true), json!({"maxBytes": -1}), json!({"maxBytes": "1m"})] {
        let error = client.start("q", &["true"], json!({"outputSpool": spool})).await.unwrap_err();
        assert_eq!(error["code"], -32602, "{error}");
    }
}

#[tokio::test]
async fn the_spools_of_a_server_share_a_budget() {
    let server = TestExecutor::start_with(&["--max-output-spools", "3145728"]).await;
    let mut client = server.client().await;
    let more = json!({"outputSpool": {}, "outputRetention": 65_536, "closedRetentionMs": 0});
    // One spool grows until the budget is used up, and then evicts its oldest output.
    client
        .start("a", &["sh", "-c", "seq 1000000; exec cat"], {
            let mut more = more.clone();
            more["pipeStdin"] = json!(true);
            more
        })
        .await
        .unwrap();
    client.wait_output("a", "\n1000000\n").await;
    let tail = view(&mut client, "a", json!({"tailLines": 1})).await;
    assert_eq!(text(&tail), "1000000\n");
    assert!(tail["extent"]["firstOffset"].as_u64().unwrap() > 3_000_000, "{}", tail["extent"]);
    let mut held = 0;
    let error = loop {
        match client
            .start(&format!("b{held}"), &["cat"], json!({"outputSpool": {}, "pipeStdin": true}))
            .await
        {
            Ok(_) => held += 1,
            Err(error) => break error,
        }
    };
    assert!(held <= 2, "{held}");
    assert_eq!(
        (&error["code"], &error["data"]["kind"]),
        (&json!(-32600), &json!("spools_full")),
        "{error}"
    );
    // A process that is gone gives its share back.
    client.terminate("a", None).await;
    client.finish("a").await;
    loop {
        match client.start("c", &["true"], more.clone()).await {
            Ok(_) => break,
            Err(error) => assert_eq!(error["data"]["kind"], "spools_full"),
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_full_disk_is_reported_and_the_process_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let setup = format!("mount -t tmpfs -o size=2m none {}", place.path().display());
    let Some(server) = server_with_state(&setup, place.path()).await else { return };
    let mut client = server.client().await;
    let more = json!({"outputSpool": {}, "outputRetention": 65_536});
    let finished = client.run("p", &["seq", "1000000"], more).await;
    let whole = numbers(1_000_000);
    assert_eq!(finished.exit_code, 0);
    assert!(finished.stdout == whole.as_bytes(), "{}", finished.stdout.len());
    let head = view(&mut client, "p", json!({"headLines": 3})).await;
    assert_eq!(text(&head), "1\n2\n3\n");
    assert_eq!(head["extent"]["spoolFailure"], "no_space", "{}", head["extent"]);
    let tail = view(&mut client, "p", json!({"tailBytes": 1000})).await;
    assert_eq!(bytes(&tail), &whole.as_bytes()[whole.len() - 1000..]);
    // The beginning is in the spool, the end in memory, and what is between is a gap.
    let (kept, gaps) = read_all(&mut client, "p", 0).await;
    assert!((1_000_000..2_200_000).contains(&kept.len()), "{}", kept.len());
    assert!(whole.as_bytes().starts_with(&kept[..1_000_000]));
    assert!(kept.ends_with(b"1000000\n"));
    assert_eq!(gaps.len(), 1, "{gaps:?}");
}

#[tokio::test]
async fn a_limit_of_file_sizes_is_reported_and_the_process_goes_on() {
    let server = TestExecutor::builder().after("ulimit -f 4096").start().await;
    let mut client = server.client().await;
    let more = json!({"outputSpool": {}, "outputRetention": 65_536});
    let finished = client.run("p", &["seq", "1000000"], more).await;
    let whole = numbers(1_000_000);
    assert_eq!(finished.exit_code, 0);
    assert!(finished.stdout == whole.as_bytes(), "{}", finished.stdout.len());
    let head = view(&mut client, "p", json!({"headLines": 2})).await;
    assert_eq!(text(&head), "1\n2\n");
    assert_eq!(head["extent"]["spoolFailure"], "file_size_limit", "{}", head["extent"]);
    let tail = view(&mut client, "p", json!({"tailLines": 1})).await;
    assert_eq!(text(&tail), "1000000\n");
}

async fn server_with_state(setup: &str, state: &std::path::Path) -> Option<TestExecutor> {
    // The state directory is found through the environment of the server.
    let setup = format!("{setup}\nexport XDG_STATE_HOME={}", state.display());
    server_with_mounts(&setup).await
}

#[tokio::test]
async fn nothing_has_a_name_in_the_state_directory() {
    let state = tempfile::tempdir().unwrap();
    let path = state.path().to_str().unwrap();
    let server = TestExecutor::start_with(&["--state-dir", path]).await;
    let mut client = server.client().await;
    client.run("p", &["seq", "300000"], json!({"outputSpool": {}})).await;
    let _ = view(&mut client, "p", json!({"tailLines": 1})).await;
    let spool = state.path().join("spool");
    assert_eq!(crate::files::host::names(&spool), Vec::<String>::new());
    assert_eq!(crate::files::host::mode(&spool), 0o700);
}
