//! Starting, watching and ending processes.

use exec_server_testkit::TestExecutor;
use serde_json::json;

#[tokio::test]
async fn a_process_tells_its_output_exit_and_close_in_order() {
    let server = TestExecutor::start().await;
    let mut client = server.client().await;
    let result =
        client.start("p", &["/bin/sh", "-c", "echo out; echo err >&2; exit 7"], json!({})).await;
    assert_eq!(result.unwrap(), json!({"processId": "p", "sandboxType": "none"}));
    let finished = client.finish("p").await;
    assert_eq!((finished.text().as_str(), finished.error_text().as_str()), ("out\n", "err\n"));
    assert_eq!(finished.exit_code, 7);
    assert_eq!(finished.order, ["output", "output", "exited", "closed"]);
}
