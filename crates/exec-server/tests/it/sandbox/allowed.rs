//! What the operator allows in a sandbox works; everything else stays refused.
#![allow(unsafe_code, reason = "what a sandbox must refuse are system calls")]

use std::collections::BTreeMap;
use std::io;

use exec_server_testkit::TestExecutor;
use libc::c_void;

use super::attempt::{check, in_child, outcomes};
use super::fixture::{SandboxFixture, as_each_user_of};
use super::*;

/// Calls that succeed where the operator allows them.
const OPENED: [(&str, &[&str]); 4] = [
    ("debugging", &["ptrace", "kcmp", "trace_child"]),
    ("namespaces", &["unshare_user", "clone_user"]),
    ("keyrings", &["keyctl", "add_key"]),
    ("filters", &["make_filter", "make_filter_the_old_way"]),
];

/// Refused whatever the operator allows.
const NEVER: [&str; 7] =
    ["mount", "umount", "setns", "pidfd_getfd", "bpf", "io_uring", "make_listener"];

fn names() -> Vec<&'static str> {
    OPENED.into_iter().flat_map(|(_, names)| names).copied().collect()
}

fn are_these_open(inside: &BTreeMap<String, String>, open: &[&str]) {
    for name in names() {
        assert_eq!(inside[name] == "ok", open.contains(&name), "{name}: {inside:?}");
    }
}

#[tokio::test]
async fn each_allowance_allows_only_what_it_names() {
    for (allowed, opened) in OPENED {
        let builder = || TestExecutor::builder().args(&["--sandbox-allow", allowed]);
        as_each_user_of(builder, async |fixture| {
            let policy = fixture.workspace("restricted");
            let inside = outcomes(fixture, &policy, &[&names()[..], &NEVER[..]].concat()).await;
            are_these_open(&inside, opened);
            assert!(NEVER.iter().all(|name| inside[*name] != "ok"), "{inside:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn allowances_are_reported_and_never_set_by_a_request() {
    let builder = TestExecutor::builder().args(&["--sandbox-allow", "debugging,keyrings"]);
    let mut fixture = SandboxFixture::new(builder.start().await, None).await;
    let info = fixture.client.call("environment/info", json!({})).await.unwrap();
    let params = fixture.params(&fixture.workspace("restricted"));
    let started = fixture.client.start("p", &["/bin/true"], params).await.unwrap();
    assert_eq!(started["sandbox"], info["sandbox"]);
    let missing = started["sandbox"]["missing"].as_array().unwrap();
    let holds = |word: &str| missing.iter().any(|entry| entry == word);
    assert!(holds("seccompDebugging") && holds("seccompKeyrings"), "{missing:?}");
    assert!(!holds("seccompNamespaces") && !holds("seccompFilters"), "{missing:?}");
    fixture.client.finish("p").await;

    let mut fixture = SandboxFixture::new(TestExecutor::start().await, None).await;
    let mut params = fixture.params(&fixture.workspace("restricted"));
    for name in ["allow", "sandboxAllow", "sandbox_allow"] {
        params["sandbox"][name] = json!(["debugging", "namespaces", "keyrings", "filters"]);
        params["sandbox"]["permissions"][name] = json!({"debugging": true});
    }
    let script = attempt::command(&names().join(" "));
    let finished = fixture.client.run("p", &["/bin/sh", "-c", &script], params).await;
    assert!(!finished.text().contains(" ok"), "{finished:?}");
}

#[tokio::test]
async fn a_debugger_reaches_neither_processes_outside_nor_the_first_process() {
    let builder = || TestExecutor::builder().args(&["--sandbox-allow", "debugging"]);
    as_each_user_of(builder, async |fixture| {
        let policy = fixture.workspace("restricted");
        let inside = outcomes(fixture, &policy, &["trace_first", "read_first"]).await;
        assert!(inside.values().all(|outcome| outcome == "EPERM"), "{inside:?}");
    })
    .await;
}

#[tokio::test]
async fn a_new_namespace_is_no_way_out() {
    let both = ["--sandbox-allow", "namespaces", "--sandbox-allow", "debugging,filters"];
    as_each_user_of(
        || TestExecutor::builder().args(&both),
        async |fixture| {
            let policy = fixture.workspace("restricted");
            let tried = [
                "own:mount",
                "own:mount_tmpfs",
                "own:remount",
                "own:umount",
                "own:pivot_root",
                "own:open_tree",
                "own:open_tree_attr",
                "own:fsopen",
                "own:move_mount",
                "own:mount_setattr",
                "own:setns",
                "own:sethostname",
                "own:bpf",
                "own:trace_first",
                "own:read_first",
            ];
            let inside = outcomes(fixture, &policy, &tried).await;
            assert!(inside.values().all(|outcome| outcome == "EPERM"), "{inside:?}");
            // No user may map root without capabilities.
            let map = if fixture.is_root() { "" } else { "-r" };
            let own = format!("unshare -Um {map} --propagation unchanged /bin/sh");
            let works = fixture.run(&policy, &format!("echo 'echo made > made' | {own}")).await;
            assert_eq!(works.exit_code, 0, "{works:?}");
            assert!(fixture.work().join("made").exists());
            for (name, script) in super::escapes::ATTACKS {
                let script = format!("{own} <<'the end'\n{script}\nthe end");
                fixture.cannot_change_outside(&policy, name, &script).await;
            }
        },
    )
    .await;
}

pub fn perform(name: &str) -> io::Result<()> {
    if let Some(name) = name.strip_prefix("own:") {
        return in_child(|| {
            // SAFETY: takes a number only.
            check(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) })
                // Not what is expected of the attack itself.
                .map_err(|_| io::Error::from_raw_os_error(libc::EPROTO))?;
            attempt::perform(name)
        });
    }
    let none = std::ptr::null_mut::<c_void>();
    // SAFETY (all): every pointer is a C string, a live local, or null; the traced are our own children.
    unsafe {
        match name {
            "mount_tmpfs" => {
                let (none, kind) = (c"none".as_ptr(), c"tmpfs".as_ptr());
                check(libc::mount(none, c"/tmp".as_ptr(), kind, 0, std::ptr::null()))
            }
            "trace_first" => check(libc::ptrace(libc::PTRACE_SEIZE, 1, none, none)),
            "read_first" => read_memory(1),
            "trace_stranger" => {
                let stranger = number("STRANGER");
                check(libc::ptrace(libc::PTRACE_SEIZE, stranger, none, none))?;
                check(libc::ptrace(libc::PTRACE_INTERRUPT, stranger, none, none))?;
                check(libc::waitpid(stranger, std::ptr::null_mut(), libc::__WALL))?;
                check(libc::ptrace(libc::PTRACE_DETACH, stranger, none, none))
            }
            "read_stranger" => read_memory(number("STRANGER")),
            "read_server" => read_memory(number("SERVER")),
            "trace_child" => trace_child(),
            _ => super::filters::perform(name),
        }
    }
}

fn number(name: &str) -> i32 {
    attempt::variable(name).parse().expect("a number")
}

/// Reads a byte at an unmapped address: EFAULT shows that the call is allowed, EPERM that it is refused before.
fn read_memory(process: i32) -> io::Result<()> {
    let mut byte = 0u8;
    let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let remote = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
    // SAFETY: writes at most the one byte; the other address is only looked up in the other process.
    let read =
        unsafe { libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0) };
    match check(read as i64) {
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(()),
        read => read,
    }
}

/// Stops a child, reads its state, and continues it.
fn trace_child() -> io::Result<()> {
    let none = std::ptr::null_mut::<c_void>();
    // SAFETY: the child makes system calls only; it is ours.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::pause();
            libc::_exit(0);
        }
        let mut status = 0;
        let traced = (|| {
            check(libc::ptrace(libc::PTRACE_ATTACH, child, none, none))?;
            check(libc::waitpid(child, &raw mut status, 0))?;
            assert!(libc::WIFSTOPPED(status));
            check(libc::ptrace(libc::PTRACE_DETACH, child, none, none))
        })();
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, &raw mut status, 0);
        traced
    }
}
