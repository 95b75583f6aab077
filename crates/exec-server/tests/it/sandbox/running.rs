//! Processes in a sandbox behave like others.

use super::fixture::as_each_user;
use super::*;

#[tokio::test]
async fn a_sandboxed_process_writes_its_workspace_and_nothing_else() {
    on_each_file_system(async |fixture: &mut FsFixture| {
        let (work, outside) = (fixture.path("work"), fixture.path("outside"));
        for dir in [&work, &outside] {
            std::fs::create_dir(dir).unwrap();
        }
        let policy = workspace_write(&[&work], "restricted");
        let script = format!("echo in > f; cat f; echo out > {}/f; echo $?", outside.display());
        let finished = run_in(&mut fixture.client, "p", policy, &work, &script).await;
        assert_eq!(finished.text(), "in\n2\n", "{}", finished.error_text());
        assert_eq!(std::fs::read(work.join("f")).unwrap(), b"in\n");
        assert!(!outside.join("f").exists());
    })
    .await;
}

#[tokio::test]
async fn the_sandbox_report_is_in_the_info_and_in_every_start() {
    let fixture = &mut FsFixture::new().await;
    let info = fixture.client.call("environment/info", json!({})).await.unwrap();
    let work = fixture.root().to_owned();
    let policy = workspace_write(&[&work], "restricted");
    let more = json!({"sandbox": policy, "cwd": uri(&work)});
    let started = fixture.client.start("p", &["/bin/true"], more).await.unwrap();
    assert_eq!(started["sandboxType"], "linuxSeccomp");
    assert_eq!(started["sandbox"], info["sandbox"]);
    assert_eq!(started["sandbox"]["level"], "full");
    assert_eq!(fixture.client.finish("p").await.exit_code, 0);
}

/// Each prints the same with and without a sandbox, and nothing on stderr.
const WORKS: [(&str, &str); 17] = [
    (
        "files",
        "echo a > x; mv x y; cp y z; ln y w; ln -s w v; cat v; chmod 600 z; stat -c %a z; rm x y z w v -f; ls -A | wc -l",
    ),
    ("directories", "mkdir -p a/b/c; mv a/b d; rmdir d/c; ls; rm -r a d"),
    ("a move between directories", "mkdir p q; echo 1 > p/f; mv p/f q/f; cat q/f; rm -r p q"),
    ("pipes", "echo one two | tr ' ' '\\n' | sort -r | head -n 1"),
    ("a reader that leaves", "yes | head -n 1; echo $?"),
    ("subprocesses", "for i in 1 2 3; do (exit $i); echo $?; done; echo $(echo nested)"),
    ("background jobs", "sleep 0.01 & wait; echo $?"),
    ("null", "echo gone > /dev/null; cat /dev/null; test -c /dev/null && echo device"),
    ("stdin", "cat; test -c /dev/stdin && echo device"),
    ("random", "head -c 8 /dev/urandom | wc -c; head -c 8 /dev/zero | wc -c"),
    ("descriptors", "echo via | cat /dev/fd/0; echo out > /dev/stdout; ls /dev/fd/1"),
    ("temporary memory", "echo m > /dev/shm/f; cat /dev/shm/f; rm /dev/shm/f"),
    ("reading", "head -c 0 /etc/passwd && test -d /usr/bin && echo read; pwd | grep -c work"),
    ("who", "id -u; id -g"),
    (
        "a signal",
        "exec 2>/dev/null; sh -c 'kill -TERM $$'; echo $?; sh -c 'kill -PIPE $$'; echo $?; sh -c 'kill -XFSZ $$'; echo $?",
    ),
    ("locks", "flock f echo locked; rm f"),
    ("a script without a first line", "echo 'echo script $1' > s; chmod +x s; ./s works; rm s"),
];

#[tokio::test]
async fn everyday_work_is_the_same_inside() {
    as_each_user(async |fixture| {
        for (name, script) in WORKS {
            let free = fixture.run_free(script).await;
            assert_eq!(free.error_text(), "", "{name} does not work anywhere");
            for policy in [
                fixture.workspace("restricted"),
                fixture.workspace("enabled"),
                unrestricted("restricted"),
            ] {
                let inside = fixture.run(&policy, script).await;
                // Placeholders of protected names exist while it runs.
                let expected = match (name, policy == unrestricted("restricted")) {
                    ("files", false) => free.text().replace("0\n", "4\n").replace("604\n", "600\n"),
                    _ => free.text(),
                };
                assert_eq!(
                    (inside.text(), inside.error_text()),
                    (expected, String::new()),
                    "{name}"
                );
                assert_eq!(inside.exit_code, free.exit_code, "{name}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn ends_are_reported_as_those_of_other_processes() {
    as_each_user(async |fixture| {
        for script in [
            "exit 0",
            "exit 3",
            "exit 255",
            "kill -TERM $$",
            "kill -KILL $$",
            "kill -SEGV $$",
            "kill -INT $$",
            "kill -PIPE $$",
        ] {
            let free = fixture.run_free(script).await;
            let policy = fixture.workspace("restricted");
            let inside = fixture.run(&policy, script).await;
            assert_eq!(inside.exit_code, free.exit_code, "{script}");
            for member in ["signal", "reason", "sandboxDenied"] {
                assert_eq!(inside.exited[member], free.exited[member], "{script} {member}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn starts_fail_as_those_of_other_processes() {
    as_each_user(async |fixture| {
        fixture.put(&fixture.work().join("plain"), "");
        let work = fixture.work();
        let here = uri(&work);
        let cases = [
            (vec!["/nowhere/program"], here.clone()),
            (vec!["no-such-program"], here.clone()),
            (vec!["./plain"], here.clone()),
            (vec!["/etc"], here.clone()),
            (vec!["/bin/true"], uri(&work.join("missing"))),
            (vec!["/bin/true"], uri(&work.join("plain"))),
        ];
        for (argv, cwd) in cases {
            let mut errors = Vec::new();
            for sandbox in [Value::Null, fixture.workspace("restricted")] {
                let (id, mut params) = (fixture.next_id(), fixture.params(&sandbox));
                params["cwd"] = json!(cwd);
                errors.push(
                    fixture.client.start(&id, &argv, params).await.expect_err("it cannot start"),
                );
            }
            assert_eq!(errors[0], errors[1], "{argv:?} in {cwd}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_start_reports_what_is_enforced() {
    as_each_user(async |fixture| {
        for (sandbox, wanted) in
            [(Value::Null, "none"), (fixture.workspace("restricted"), "linuxSeccomp")]
        {
            let (id, params) = (fixture.next_id(), fixture.params(&sandbox));
            let started = fixture.client.start(&id, &["/bin/true"], params).await.unwrap();
            assert_eq!(started["sandboxType"], wanted);
            let enforced = started["sandbox"]["enforced"].as_array().cloned().unwrap_or_default();
            assert_eq!(enforced.contains(&json!("seccomp")), wanted != "none");
            assert_eq!(enforced.contains(&json!("network")), wanted != "none");
            fixture.client.finish(&id).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_denial_is_reported_as_such() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        let denied = |script| (script, true);
        let fine = |script| (script, false);
        for (script, expected) in [
            denied("echo x > $OUT/file"),
            denied("rm -r $OUT/dir"),
            denied("echo 'my sandbox game'; exit 3"),
            denied("kill -SYS $$"),
            fine("echo x > $OUT/file; exit 0"),
            fine("exit 1"),
            fine("cat nowhere"),
        ] {
            let finished = fixture.run(&policy, script).await;
            assert_eq!(finished.exited["sandboxDenied"], expected, "{script}: {finished:?}");
        }
        let free = fixture.run_free("echo permission denied; exit 1").await;
        assert_eq!(free.exited["sandboxDenied"], false);
    })
    .await;
}

#[tokio::test]
async fn a_refused_network_call_is_reported_whatever_the_program_prints() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        // This program does not print its result.
        let quietly = |names| format!("{} >/dev/null; exit 3", attempt::command(names));
        let finished = fixture.run(&policy, &quietly("socket_inet")).await;
        assert_eq!(finished.exited["sandboxDenied"], true, "{finished:?}");
        let id = format!("run-{}", fixture.runs());
        let read = fixture.client.call("process/read", json!({"processId": id})).await.unwrap();
        assert_eq!(read["sandboxDenied"], true, "{read}");
        // Refusals of its children count as well.
        let script = format!(
            "for i in 1 2; do {} >/dev/null & done; wait; exit 3",
            attempt::command("unix")
        );
        assert_eq!(fixture.run(&policy, &script).await.exited["sandboxDenied"], true);
        // A success is not a denial, and neither is a failure after an error that was ignored.
        let fine = format!("{} >/dev/null; exit 0", attempt::command("socket_inet"));
        assert_eq!(fixture.run(&policy, &fine).await.exited["sandboxDenied"], false);
        for harmless in ["socket_netlink", "socket_unix_datagram", "pair_stream", "io_uring"] {
            let finished = fixture.run(&policy, &quietly(harmless)).await;
            assert_eq!(finished.exited["sandboxDenied"], false, "{harmless}: {finished:?}");
        }
        // The C library tries to connect to a name service for every lookup.
        let finished = fixture.run(&policy, "id nobody-of-this-name 2>/dev/null; exit 3").await;
        assert_eq!(finished.exited["sandboxDenied"], false, "{finished:?}");
    })
    .await;
}

#[tokio::test]
async fn a_refused_network_is_known_after_a_kill_and_on_a_terminal() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        let script = format!("{} >/dev/null; echo on; sleep 1000", attempt::command("socket_inet"));
        for tty in [false, true] {
            let id = fixture.next_id();
            let mut params = fixture.params(&policy);
            params["tty"] = json!(tty);
            fixture.client.start(&id, &["/bin/sh", "-c", &script], params).await.unwrap();
            fixture.client.wait_output(&id, "on").await;
            fixture.client.call("process/terminate", json!({"processId": id})).await.unwrap();
            let finished = fixture.client.finish(&id).await;
            assert_eq!(finished.exited["sandboxDenied"], true, "{finished:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn git_works_in_a_subdirectory() {
    as_each_user(async |fixture| {
        let made = fixture.run_free("git init -q . && mkdir sub && echo x > sub/f && git -c safe.directory=* status --short").await;
        if made.exit_code != 0 {
            crate::files::host::skip("there is no git here");
            return;
        }
        let policy = fixture.workspace("restricted");
        let inside = fixture.run(&policy, "cd sub && git -c safe.directory=* status --short").await;
        assert_eq!((inside.text().as_str(), inside.exit_code), ("?? ./\n", 0), "{inside:?}");
    })
    .await;
}
