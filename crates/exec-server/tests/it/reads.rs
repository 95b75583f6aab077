//! Long polls of `process/read`.

use exec_server_testkit::TestExecutor;
use serde_json::json;

#[tokio::test]
async fn a_reader_that_waits_for_the_close_gets_it() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    // The shell exits at once; its child holds the output open until the test opens the gate.
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let script = format!("mkfifo {0}; cat {0} & exit 0", gate.display());
    client.start("p", &["/bin/sh", "-c", &script], json!({})).await.unwrap();
    let exited = client.process_event("p").await;
    assert_eq!(
        (&exited["method"], &exited["params"]["seq"]),
        (&json!("process/exited"), &json!(1))
    );
    let params = json!({"processId": "p", "afterSeq": 1, "maxBytes": null, "waitMs": 60_000});
    let read = client.send("process/read", params).await;
    // A reply to a later request shows that the read is pending.
    client.call("process/list", json!({})).await.unwrap();
    std::fs::write(&gate, "").unwrap();
    let answer = client.reply(read).await.unwrap();
    assert_eq!((&answer["closed"], &answer["exitCode"]), (&json!(true), &json!(0)));
    assert_eq!(answer["nextSeq"], 3);
}
