//! The attacks where user namespaces are unavailable and Landlock is the only mechanism.
//!
//! The server runs under a seccomp filter that refuses user namespaces, as in containers.
#![allow(
    unsafe_code,
    reason = "what a sandbox must refuse are system calls, and the server is to be refused some, too"
)]

use exec_server_protocol::base64;
use exec_server_testkit::executor::ExecutorBuilder;
use exec_server_testkit::fs_fixture::content;
use exec_server_testkit::{TestExecutor, eventually};
use libc::{sock_filter, sock_fprog};

use super::attempt::{are_refused, check, command, outcomes};
use super::fixture::{SandboxFixture, snapshot};
use super::network::Outside;
use super::processes::Stranger;
use super::*;
use crate::files::host::{NOBODY, as_nobody, skip};

mod attempts;

use attempts::terminal;
pub use attempts::{Segment, perform};

const FALLBACK: [&str; 2] = ["--sandbox-fallback", "landlock"];

/// Denies user namespaces to the started program.
fn without_namespaces(mut builder: ExecutorBuilder) -> ExecutorBuilder {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
    const ANSWER: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    let refuse = |errno: i32| libc::SECCOMP_RET_ERRNO | errno.unsigned_abs();
    let program = [
        step(LOAD, 0, 0, 0),
        step(EQUAL, 0, 1, libc::SYS_clone3 as u32),
        step(ANSWER, 0, 0, refuse(libc::ENOSYS)),
        step(EQUAL, 2, 0, libc::SYS_unshare as u32),
        step(EQUAL, 1, 0, libc::SYS_clone as u32),
        step(ANSWER, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(LOAD, 0, 0, 16),
        step(ANY_BIT, 0, 1, libc::CLONE_NEWUSER as u32),
        step(ANSWER, 0, 0, refuse(libc::EPERM)),
        step(ANSWER, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let install = move || {
        let filter = sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
        // SAFETY: plain system calls; the kernel only reads the program.
        unsafe {
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            check(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter))
        }
    };
    // SAFETY: it only makes system calls.
    unsafe { builder.command().pre_exec(install) };
    builder
}

/// Runs a test with a server of either user that cannot make namespaces and may use Landlock alone.
async fn at_this_level(test: impl AsyncFn(&mut SandboxFixture)) {
    with_servers(|| without_namespaces(TestExecutor::builder().args(&FALLBACK)), test).await;
}

async fn with_servers(
    builder: impl Fn() -> ExecutorBuilder,
    test: impl AsyncFn(&mut SandboxFixture),
) {
    let server = builder().start().await;
    let info = server.client().await.call("environment/info", json!({})).await.unwrap();
    if info["sandbox"]["level"] != "landlock" {
        skip("this kernel has no Landlock that could be the only lock");
        return;
    }
    test(&mut SandboxFixture::new(server, None).await).await;
    if rustix::process::geteuid().is_root()
        && let Some(builder) = as_nobody(builder())
    {
        test(&mut SandboxFixture::new(builder.start().await, Some(NOBODY)).await).await;
    }
}

fn workspace(fixture: &SandboxFixture) -> Value {
    fixture.workspace("restricted")
}

fn read_only(fixture: &SandboxFixture) -> Value {
    with_entries(&[&fixture.work()], "restricted", &[special("root", "read")])
}

#[tokio::test]
async fn a_start_reports_the_landlock_level() {
    at_this_level(async |fixture| {
        let info = fixture.client.call("environment/info", json!({})).await.unwrap();
        // Landlock cannot deny a part of what it allows, so a client must not ask for that.
        let promised = &info["capabilities"]["linuxApprovedRootWritePreservesRestrictions"];
        assert_eq!(promised, &Value::Null);
        for policy in [read_only(fixture), workspace(fixture)] {
            let (id, params) = (fixture.next_id(), fixture.params(&policy));
            let started = fixture.client.start(&id, &["/bin/true"], params).await.unwrap();
            assert_eq!(started["sandboxType"], "linuxSeccomp");
            let report = &started["sandbox"];
            assert_eq!(report, &info["sandbox"]);
            assert_eq!(report["level"], "landlock");
            let holds = |list: &str, word: &str| {
                report[list].as_array().unwrap().iter().any(|entry| entry == word)
            };
            for word in ["network", "ipc", "seccomp", "noNewPrivileges", "landlockFiles"] {
                assert!(holds("enforced", word) && !holds("missing", word), "{report}");
            }
            for word in ["mounts", "processes", "protectedNames"] {
                assert!(holds("missing", word) && !holds("enforced", word), "{report}");
            }
            assert_eq!(fixture.client.finish(&id).await.exit_code, 0);
        }
    })
    .await;
}

#[tokio::test]
async fn everyday_work_is_done_inside() {
    at_this_level(async |fixture| {
        let policy = workspace(fixture);
        let script = "mkdir -p a/b && echo one > a/f && mv a/f a/b/g && cp a/b/g h && cat h | tr o O \
                      && ln -s h l && ln h k && rm -r a && echo x > /dev/null && head -c 4 /dev/urandom | wc -c \
                      && cat /etc/passwd | wc -l > n && test -s n && ls / > /dev/null && (sleep 0 & wait) \
                      && exec 5<h && cat /dev/fd/5";
        let finished = fixture.run(&policy, script).await;
        let said = (finished.text(), finished.exit_code);
        assert_eq!(said, ("One\n4\none\n".to_owned(), 0), "{finished:?}");
        assert_eq!(outcomes(fixture, &policy, &["pair_stream"]).await["pair_stream"], "ok");
        // Signals between processes of one sandbox.
        let script = "sleep 1000 & kill $!; wait $!; echo $?";
        assert_eq!(fixture.run(&policy, script).await.text(), "143\n");
        let mut params = fixture.params(&policy);
        params["tty"] = json!(true);
        let argv = ["/bin/sh", "-c", "test -t 0 && echo on a > /dev/tty && echo terminal"];
        let finished = fixture.client.run("tty", &argv, params).await;
        assert_eq!(finished.pty_text(), "on a\r\nterminal\r\n");
    })
    .await;
}

#[tokio::test]
async fn nothing_outside_of_the_workspace_can_be_changed() {
    at_this_level(async |fixture| {
        for policy in [workspace(fixture), read_only(fixture)] {
            for (name, script) in super::escapes::ATTACKS {
                fixture.cannot_change_outside(&policy, name, script).await;
            }
        }
        let before = snapshot(&fixture.work());
        let policy = read_only(fixture);
        let finished = fixture.run(&policy, "echo evil > here; mkdir there; chmod 777 .").await;
        assert_eq!(snapshot(&fixture.work()), before, "{finished:?}");
        assert_eq!(finished.exited["sandboxDenied"], true);
    })
    .await;
}

#[tokio::test]
async fn nothing_outside_can_be_changed_by_rare_calls() {
    at_this_level(async |fixture| {
        let policy = workspace(fixture);
        let calls = super::escapes::CALLS;
        for call in calls.into_iter().filter(|call| *call != "handle") {
            fixture.cannot_change_outside(&policy, call, &command(call)).await;
        }
        // Not every file system has flags, but none refuses them to the owner.
        are_refused(fixture, &policy, &["set_flags"], &[]).await;
        fixture.reset();
        let before = snapshot(&fixture.outside());
        let finished = fixture.run(&policy, &command(&calls.join(" "))).await;
        assert_eq!(snapshot(&fixture.outside()), before, "{finished:?}");
        assert!(!finished.text().contains(" ok"), "{finished:?}");
    })
    .await;
}

#[tokio::test]
async fn a_writable_root_that_became_a_link_gives_nothing() {
    at_this_level(async |fixture| {
        let policy = workspace(fixture);
        assert_eq!(fixture.run(&policy, "echo in > f").await.exit_code, 0);
        std::fs::remove_dir_all(fixture.work()).unwrap();
        std::os::unix::fs::symlink(fixture.outside(), fixture.work()).unwrap();
        fixture.give(&fixture.work());
        let before = snapshot(&fixture.outside());
        let (id, params) = (fixture.next_id(), fixture.params(&policy));
        let argv = ["/bin/sh", "-c", "echo evil > $OUT/file; echo evil > $WORK/file"];
        if fixture.client.start(&id, &argv, params).await.is_ok() {
            fixture.client.finish(&id).await;
        }
        assert_eq!(snapshot(&fixture.outside()), before);
        std::fs::remove_file(fixture.work()).unwrap();
        fixture.reset();
    })
    .await;
}

#[tokio::test]
async fn nothing_gives_privileges_or_reaches_into_the_kernel() {
    use super::{kernel, privileges};
    at_this_level(async |fixture| {
        let policy = workspace(fixture);
        // What the server's own filter refuses cannot be shown to work without the sandbox.
        let shown = |name: &&&str| {
            !["unshare_user", "clone_user", "clone_user_high", "clone3"].contains(*name)
        };
        let for_all_users: Vec<&str> =
            privileges::FOR_EVERYBODY.iter().filter(shown).copied().collect();
        are_refused(fixture, &policy, &for_all_users, &privileges::FOR_ROOT).await;
        are_refused(fixture, &policy, &kernel::FOR_EVERYBODY, &kernel::FOR_ROOT).await;
        let files = privileges::KERNEL_FILES.join(" ");
        let script = format!(
            "for path in {files}; do for root in '' /proc/self/root; do \
             true 2>/dev/null >> $root$path && echo $root$path; done; done; true"
        );
        assert_eq!(fixture.run(&policy, &script).await.text(), "");
        let script =
            "grep -E '^(CapPrm|CapEff|CapAmb|NoNewPrivs|Seccomp:)' /proc/self/status | tr -d '\\t'";
        let none = "0".repeat(16);
        let expected =
            format!("CapPrm:{none}\nCapEff:{none}\nCapAmb:{none}\nNoNewPrivs:1\nSeccomp:2\n");
        assert_eq!(fixture.run(&policy, script).await.text(), expected);
    })
    .await;
}

#[tokio::test]
async fn other_processes_can_be_seen_but_not_touched() {
    at_this_level(async |fixture| {
        let mut stranger = Stranger::start(fixture);
        let policy = workspace(fixture);
        // Their existence and number of descriptors is all that Landlock does not hide.
        let is_a_look = |script: &&str| script.starts_with("test -d") || script.contains("/fd >");
        let scripts = super::processes::ATTACKS.into_iter().filter(|script| !is_a_look(script));
        let more = [
            "readlink /proc/$SERVER/fd/0 >&2 && echo reached",
            "readlink /proc/$STRANGER/exe >&2 && echo reached",
        ];
        for script in scripts.chain(more) {
            // A server's memory is not readable even by its own user.
            let is_possible = fixture.is_root() || !script.contains("$SERVER/fd");
            let free = fixture.run_free(script).await.text();
            assert_eq!(free, if is_possible { "reached\n" } else { "" }, "{script}");
            let inside = fixture.run(&policy, script).await;
            assert_eq!(inside.text(), "", "{script} got through");
        }
        are_refused(fixture, &policy, &["other_limits", "other_affinity"], &[]).await;
        let before = stranger.niceness();
        // Never all at once: without a process namespace, `kill -1` would reach every process of this machine.
        let script =
            "renice -n 19 -p $STRANGER; kill -9 $STRANGER; kill -9 $SERVER; kill -9 $PPID; true";
        fixture.run(&policy, script).await;
        assert!(stranger.is_alive());
        assert_eq!(stranger.niceness(), before);
        assert_eq!(fixture.run_free("echo alive").await.text(), "alive\n");
    })
    .await;
}

#[tokio::test]
async fn an_allowed_debugger_reaches_no_process_outside() {
    let allow = [FALLBACK[0], FALLBACK[1], "--sandbox-allow", "debugging"];
    let builder = || without_namespaces(TestExecutor::builder().args(&allow));
    with_servers(builder, async |fixture| {
        let _stranger = Stranger::start(fixture);
        let outside = ["trace_stranger", "read_stranger", "read_server"];
        let policy = workspace(fixture);
        let inside = outcomes(fixture, &policy, &[&outside[..], &["trace_child"]].concat()).await;
        assert_eq!(inside["trace_child"], "ok");
        assert!(outside.iter().all(|name| inside[*name] == "EPERM"), "{inside:?}");
    })
    .await;
}

#[tokio::test]
async fn memory_and_terminals_of_others_are_out_of_reach() {
    at_this_level(async |fixture| {
        let policy = workspace(fixture);
        let segment = Segment::make(fixture);
        fixture.env.insert("SEGMENT".to_owned(), segment.id().to_string());
        let (_terminal, path) = terminal();
        fixture.give(&path);
        fixture.env.insert("TERMINAL".to_owned(), path.to_str().unwrap().to_owned());
        are_refused(fixture, &policy, &["other_segment", "other_terminal"], &[]).await;
        let canary =
            tempfile::Builder::new().prefix("exec-server-canary-").tempfile_in("/dev/shm").unwrap();
        fixture.give(canary.path());
        let script =
            format!("cat {} && echo evil > {}", canary.path().display(), canary.path().display());
        fixture.run(&policy, &script).await;
        assert_eq!(canary.path().metadata().unwrap().len(), 0);
    })
    .await;
}

#[tokio::test]
async fn no_process_outside_is_reached_and_the_refusal_is_reported() {
    at_this_level(async |fixture| {
        let outside = Outside::listen(fixture);
        let calls = super::network::CALLS;
        outcomes(fixture, &Value::Null, &calls).await;
        assert_eq!(outside.reached(), ["tcp", "udp", "path", "datagrams", "abstract"]);
        for policy in [workspace(fixture), read_only(fixture)] {
            let inside = outcomes(fixture, &policy, &calls).await;
            assert!(outside.reached().is_empty(), "{inside:?}");
            assert!(inside.values().all(|outcome| outcome != "ok"), "{inside:?}");
        }
        let policy = workspace(fixture);
        for (code, expected) in [(3, true), (0, false)] {
            let script = format!("{} >/dev/null; exit {code}", command("socket_inet"));
            let finished = fixture.run(&policy, &script).await;
            assert_eq!(finished.exited["sandboxDenied"], expected, "{finished:?}");
        }
        let finished = fixture.run(&policy, "exit 3").await;
        assert_eq!(finished.exited["sandboxDenied"], false);
    })
    .await;
}

#[tokio::test]
async fn who_outlives_the_launcher_does_not_answer_for_the_sandbox() {
    at_this_level(async |fixture| {
        let outside = Outside::listen(fixture);
        let came_of_it = fixture.work().join("came-of-it");
        // Without a sandbox the answers do not matter, but the attack works.
        outcomes(fixture, &Value::Null, &["answer_itself"]).await;
        eventually("it is told what came of it", || came_of_it.exists()).await;
        assert_eq!(std::fs::read_to_string(&came_of_it).unwrap(), "ok");
        assert_eq!(outside.reached(), ["path"]);
        std::fs::remove_file(&came_of_it).unwrap();
        outcomes(fixture, &workspace(fixture), &["answer_itself"]).await;
        eventually("it is told what came of it", || came_of_it.exists()).await;
        assert_eq!(std::fs::read_to_string(&came_of_it).unwrap(), "EINVAL");
        assert!(outside.reached().is_empty());
    })
    .await;
}

#[tokio::test]
async fn terminate_ends_everything_that_was_started() {
    at_this_level(async |fixture| {
        let policy = workspace(fixture);
        are_refused(fixture, &policy, &["lose_tag"], &[]).await;
        let mark = format!("{}.5", 100_000 + std::process::id());
        let script = format!(
            "(setsid sh -c 'sleep {mark} & trap \"\" TERM HUP INT; sleep {mark}' &) ; echo on; sleep {mark}"
        );
        let (id, params) = (fixture.next_id(), fixture.params(&policy));
        fixture.client.start(&id, &["/bin/sh", "-c", &script], params).await.unwrap();
        fixture.client.wait_output(&id, "on").await;
        eventually("three run", || with_argument(&mark) == 3).await;
        fixture.client.terminate(&id, None).await;
        fixture.client.finish(&id).await;
        eventually("none is left", || with_argument(&mark) == 0).await;
    })
    .await;
}

#[tokio::test]
async fn requests_about_files_are_confined_the_same_way() {
    at_this_level(async |fixture| {
        let sandbox = workspace(fixture);
        let (inside, outside) = (fixture.work().join("f"), fixture.outside().join("file"));
        fixture.put(&inside, "old");
        let set = |path: &Path| json!({"path": uri(path), "mode": 0o777, "sandbox": sandbox});
        let write = |path: &Path| {
            json!({"path": uri(path), "dataBase64": base64::encode(b"new"), "sandbox": sandbox})
        };
        let look = |path: &Path| json!({"path": uri(path), "sandbox": sandbox});
        let before = snapshot(&fixture.outside());
        fixture.client.call("fs/writeFile", write(&inside)).await.unwrap();
        fixture.client.call("fs/writeFile", write(&fixture.work().join("new"))).await.unwrap();
        assert_eq!(std::fs::read(&inside).unwrap(), b"new");
        let read = fixture.client.call("fs/readFile", look(&outside)).await.unwrap();
        assert_eq!(content(&read["dataBase64"]), b"safe\n");
        let new = fixture.outside().join("new");
        for (method, params) in [
            ("fs/writeFile", write(&outside)),
            ("fs/writeFile", write(&new)),
            ("fs/remove", look(&outside)),
            ("fs/createDirectory", look(&new)),
            ("fs/setPermissions", set(&outside)),
        ] {
            let error = fixture.client.call(method, params).await.expect_err(method);
            assert_eq!(error["data"]["sandboxDenied"], true, "{method}: {error}");
        }
        assert_eq!(snapshot(&fixture.outside()), before);
        let environ = format!("/proc/{}/environ", fixture.server.serving_pid());
        fixture.client.call("fs/readFile", look(Path::new(&environ))).await.unwrap_err();
    })
    .await;
}

#[tokio::test]
async fn policies_beyond_landlock_are_rejected_with_the_reason() {
    at_this_level(async |fixture| {
        let work = fixture.work();
        fixture.make_dir(&work.join(".git"));
        let root = special("root", "read");
        let lines = [
            (workspace(fixture), "cannot keep"),
            (workspace_write(&[&work], "enabled"), "network"),
            (
                with_entries(&[&work], "restricted", &[root.clone(), at(&work, "deny")]),
                "cannot deny",
            ),
            (with_entries(&[&work], "restricted", &[root, glob("**/*.env")]), "pattern"),
            (with_entries(&[&work], "restricted", &[special("minimal", "read")]), "cannot hide"),
            (unrestricted("restricted"), "kernel's own files"),
        ];
        for (policy, reason) in lines {
            let (id, params) = (fixture.next_id(), fixture.params(&policy));
            let error = fixture.client.start(&id, &["/bin/true"], params).await.unwrap_err();
            assert_eq!(
                (&error["code"], &error["data"]["kind"]),
                (&json!(-32602), &json!("sandbox_unsupported"))
            );
            let message = error["message"].as_str().unwrap();
            assert!(
                message.contains(reason) && message.contains("exec-server doctor"),
                "{message}"
            );
        }
        let params = json!({"path": uri(&work), "sandbox": workspace(fixture)});
        let error = fixture.client.call("fs/getMetadata", params).await.unwrap_err();
        assert_eq!(error["data"]["kind"], "sandbox_unsupported", "{error}");
    })
    .await;
}

#[tokio::test]
async fn without_the_flag_every_policy_is_refused_and_the_flag_named() {
    let server = without_namespaces(TestExecutor::builder()).start().await;
    let fixture = &mut SandboxFixture::new(server, None).await;
    for policy in [read_only(fixture), workspace(fixture)] {
        let (id, params) = (fixture.next_id(), fixture.params(&policy));
        let error = fixture.client.start(&id, &["/bin/true"], params).await.unwrap_err();
        assert_eq!(error["data"]["kind"], "sandbox_failed");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("--sandbox-fallback landlock"), "{message}");
    }
}

#[tokio::test]
async fn where_namespaces_work_the_flag_changes_nothing() {
    let server = TestExecutor::start_with(&FALLBACK).await;
    let other = TestExecutor::start().await;
    let info = server.client().await.call("environment/info", json!({})).await.unwrap();
    let expected = other.client().await.call("environment/info", json!({})).await.unwrap();
    assert_eq!(info["sandbox"], expected["sandbox"]);
}

#[tokio::test]
async fn the_doctor_and_the_command_know_the_level() {
    let run = async |arguments: &[&str]| {
        without_namespaces(TestExecutor::builder().args(arguments)).run().await
    };
    let (code, said, _) = run(&["doctor", "--json"]).await;
    let said: Value = serde_json::from_str(&said).unwrap();
    if said["landlockSandbox"]["works"] != true {
        return skip("this kernel has no Landlock that could be the only lock");
    }
    assert_eq!((code, &said["level"]), (1, &json!("landlock")));
    assert!(said["meaning"].as_str().unwrap().contains("--sandbox-fallback landlock"), "{said}");
    let flags = ["sandbox", "--policy", "read-only"];
    let script = ["--", "/bin/sh", "-c", "echo ran; echo > /exec-server-canary"];
    let (code, said, errors) = run(&[&flags[..], &FALLBACK, &script].concat()).await;
    assert_eq!((code != 0, said.as_str()), (true, "ran\n"), "{errors}");
    assert!(errors.contains("Permission denied"), "{errors}");
    let (code, said, errors) = run(&[&flags[..], &script].concat()).await;
    assert_eq!((code, said.as_str()), (125, ""));
    assert!(errors.contains("--sandbox-fallback landlock"), "{errors}");
}

#[tokio::test]
async fn a_limit_of_no_namespaces_is_recognised_as_well() {
    let preparation = "exec unshare -Ur /bin/sh -ec \
        'echo 0 > /proc/sys/user/max_user_namespaces; exec \"$0\" \"$@\"' \"$0\" \"$@\"";
    // In its user namespace the server may not look for the holder of a port, so it is reached by a path.
    let folder = tempfile::tempdir().unwrap();
    let listen = format!("unix://{}", folder.path().join("socket").display());
    let builder = TestExecutor::builder().after(preparation).args(&FALLBACK);
    let server = builder.args(&["--listen", &listen]).start().await;
    let fixture = &mut SandboxFixture::new(server, None).await;
    let info = fixture.client.call("environment/info", json!({})).await.unwrap();
    if info["sandbox"]["level"] != "landlock" {
        return skip("this kernel has no Landlock that could be the only lock");
    }
    let policy = workspace(fixture);
    for (name, script) in super::escapes::ATTACKS {
        fixture.cannot_change_outside(&policy, name, script).await;
    }
}

/// How many processes have this argument.
fn with_argument(argument: &str) -> usize {
    let processes = std::fs::read_dir("/proc").expect("there is a /proc").flatten();
    processes
        .filter_map(|process| std::fs::read(process.path().join("cmdline")).ok())
        .filter(|line| line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes()))
        .count()
}

#[tokio::test]
async fn processes_at_this_level_have_the_mark_of_a_sandbox() {
    at_this_level(async |fixture| {
        let script = "grep 'Max file locks' /proc/self/limits";
        let free = fixture.run_free(script).await.text();
        let policy = workspace(fixture);
        let inside = fixture.run(&policy, script).await.text();
        let hard = |text: &str| text.split_ascii_whitespace().nth(4).map(str::to_owned);
        assert!(hard(&free) != hard(&inside), "{free} {inside}");
        assert!(inside.split_ascii_whitespace().nth(4).unwrap().parse::<u64>().is_ok(), "{inside}");
    })
    .await;
}
