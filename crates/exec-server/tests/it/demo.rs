//! `exec-server demo`: what it shows, and what it leaves.

use exec_server_testkit::TestExecutor;

#[tokio::test]
async fn it_shows_what_it_says_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (code, out, errors) =
        TestExecutor::builder().env("TMPDIR", dir.path()).args(&["demo", "--quick"]).run().await;
    assert_eq!((code, errors.as_str()), (0, ""), "{out}");
    // Two commands of six lines went on during a fault.
    for number in 1..=6 {
        assert_eq!(out.matches(&format!("│ line {number}, pid ")).count(), 2, "{out}");
    }
    assert_eq!(out.matches("│ exit code 7").count(), 2, "{out}");
    let can_sandbox = !out.contains("this machine cannot make sandboxes");
    let summary = if can_sandbox {
        "3 of 3 shown\n"
    } else {
        "2 of 3 shown, 1 not possible on this machine\n"
    };
    assert!(out.contains(summary), "{out}");
    assert!(
        !can_sandbox || out.contains("✓ the file is unchanged, and the server still serves"),
        "{out}"
    );
    assert!(!out.contains('\x1b'), "colours are for terminals: {out}");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}
