//! Processes in a sandbox work like others, and end like others.

use super::*;

#[tokio::test]
async fn a_sandboxed_process_writes_its_workspace_and_nothing_else() {
    on_each_file_system(async |desk: &mut Desk| {
        let (work, outside) = (desk.path("work"), desk.path("outside"));
        for dir in [&work, &outside] {
            std::fs::create_dir(dir).unwrap();
        }
        let policy = workspace_write(&[&work], "restricted");
        let script = format!("echo in > f; cat f; echo out > {}/f; echo $?", outside.display());
        let finished = run_in(&mut desk.client, "p", policy, &work, &script).await;
        assert_eq!(finished.text(), "in\n2\n", "{}", finished.error_text());
        assert_eq!(std::fs::read(work.join("f")).unwrap(), b"in\n");
        assert!(!outside.join("f").exists());
    })
    .await;
}

#[tokio::test]
async fn what_a_sandbox_holds_is_told_before_and_with_every_start() {
    let desk = &mut Desk::new().await;
    let info = desk.client.call("environment/info", json!({})).await.unwrap();
    let work = desk.root().to_owned();
    let policy = workspace_write(&[&work], "restricted");
    let more = json!({"sandbox": policy, "cwd": uri(&work)});
    let started = desk.client.start("p", &["/bin/true"], more).await.unwrap();
    assert_eq!(started["sandboxType"], "linuxSeccomp");
    assert_eq!(started["sandbox"], info["sandbox"]);
    assert_eq!(started["sandbox"]["level"], "full");
    assert_eq!(desk.client.finish("p").await.exit_code, 0);
}
