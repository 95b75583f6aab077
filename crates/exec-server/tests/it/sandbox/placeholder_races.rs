//! A sandbox that swaps names cannot choose where the server creates placeholders.

use std::os::unix::fs::symlink;

use super::fixture::{SandboxFixture, as_each_user};
use super::*;

/// Enough rounds to hit every moment at which names can be swapped.
const STARTS: usize = 60;

/// A time in the past, which every name that is made or removed in a directory changes.
fn long_ago() -> std::time::SystemTime {
    std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000)
}

fn make_old(dir: &Path) {
    std::fs::File::open(dir).unwrap().set_modified(long_ago()).unwrap();
}

fn is_old(dir: &Path) -> bool {
    dir.metadata().unwrap().modified().unwrap() == long_ago()
}

/// A process that swaps the directory `x` and the link `y` to the outside forever.
async fn start_swapping(fixture: &mut SandboxFixture, policy: &Value) -> String {
    let work = fixture.work();
    fixture.make_dir(&work.join("x"));
    symlink(fixture.outside(), work.join("y")).unwrap();
    fixture.give(&work.join("y"));
    let (id, params) = (fixture.next_id(), fixture.params(policy));
    let swap = attempt::command("swap");
    fixture.client.start(&id, &["/bin/sh", "-c", &swap], params).await.unwrap();
    for is_link in [true, false, true] {
        let is_so = || work.join("x").is_symlink() == is_link;
        exec_server_testkit::eventually("names are exchanged", is_so).await;
    }
    id
}

#[tokio::test]
async fn no_placeholder_is_made_outside_while_names_are_exchanged() {
    as_each_user(async |fixture| {
        let (work, outside) = (fixture.work(), fixture.outside());
        let outer = fixture.workspace("restricted");
        let id = start_swapping(fixture, &outer).await;
        make_old(&outside);
        let missing = at(&work.join("x/none/secret"), "deny");
        let entries = [special("root", "read"), special("project_roots", "write"), missing];
        let policies = [
            with_entries(&[&work], "restricted", &entries),
            workspace_write(&[&work.join("x")], "restricted"),
            workspace_write(&[&work, &work.join("x")], "restricted"),
        ];
        let (mut started, mut refused) = (0, 0);
        for number in 0..STARTS {
            let (id, params) = (fixture.next_id(), fixture.params(&policies[number % 3]));
            match fixture.client.start(&id, &["/bin/true"], params).await {
                Ok(_) => {
                    fixture.client.finish(&id).await;
                    started += 1;
                }
                Err(error) => {
                    assert_eq!(error["data"]["kind"], "sandbox_failed", "{error}");
                    refused += 1;
                }
            }
            assert!(is_old(&outside), "something was made outside, after {started} and {refused}");
        }
        eprintln!("{started} started, {refused} refused");
        fixture.client.terminate(&id, None).await;
        fixture.client.finish(&id).await;
        let left = || !work.join("x/.git").exists() && !work.join("x/none").exists();
        exec_server_testkit::eventually("the placeholders are gone", left).await;
        assert!(is_old(&outside));
    })
    .await;
}
