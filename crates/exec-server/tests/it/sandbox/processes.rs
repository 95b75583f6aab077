//! Seeing, signalling, tracing or outliving other processes.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use super::attempt::outcomes;
use super::fixture::{SandboxFixture, as_each_user};
use super::landlock_level::Segment;
use super::*;
use crate::files::host::NOBODY;

/// A process of the server's user outside of the sandbox.
pub struct Stranger(Child);

impl Stranger {
    pub fn start(fixture: &mut SandboxFixture) -> Self {
        let mut command = Command::new("/bin/sleep");
        command.arg("1000").env("CANARY", "a-secret-of-the-host").stdin(Stdio::null());
        if rustix::process::geteuid().is_root() && !fixture.is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        let stranger = Self(command.spawn().expect("there is a sleep"));
        fixture.env.insert("STRANGER".to_owned(), stranger.0.id().to_string());
        fixture.env.insert("SERVER".to_owned(), fixture.server.serving_pid().to_string());
        stranger
    }

    pub fn is_alive(&mut self) -> bool {
        self.0.try_wait().expect("it is our child").is_none()
    }

    pub fn niceness(&self) -> i32 {
        let pid = rustix::process::Pid::from_raw(self.0.id().cast_signed());
        rustix::process::getpriority_process(pid).expect("it is there")
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Each script prints `reached` if it succeeds.
pub const ATTACKS: [&str; 9] = [
    "kill -0 $STRANGER && echo reached",
    "kill -0 $SERVER && echo reached",
    "test -d /proc/$STRANGER && echo reached",
    "tr '\\0' '\\n' < /proc/$STRANGER/environ | grep -q a-secret && echo reached",
    "ls /proc/$STRANGER/root/etc >&2 && echo reached",
    "ls /proc/$SERVER/fd >&2 && echo reached",
    "echo 500 > /proc/$STRANGER/oom_score_adj && echo reached",
    "renice -n 19 -p $STRANGER >&2 && echo reached",
    "head -c 1 /proc/$STRANGER/maps >&2 && echo reached",
];

#[tokio::test]
async fn processes_outside_cannot_be_seen_or_touched() {
    as_each_user(async |fixture| {
        let mut stranger = Stranger::start(fixture);
        for attack in ATTACKS {
            // A server's memory is not readable even by its own user.
            let is_possible = fixture.is_root() || !attack.contains("$SERVER/fd");
            let free = fixture.run_free(attack).await.text();
            assert_eq!(free, if is_possible { "reached\n" } else { "" }, "{attack}");
            for policy in [fixture.workspace("restricted"), unrestricted("enabled")] {
                let inside = fixture.run(&policy, attack).await;
                assert_eq!(inside.text(), "", "{attack} got through");
            }
        }
        let before = stranger.niceness();
        let policy = fixture.workspace("enabled");
        let script =
            "renice -n 19 -u $(id -u); kill -9 -1; kill -9 $STRANGER; kill -9 $SERVER; true";
        fixture.run(&policy, script).await;
        assert!(stranger.is_alive());
        assert_eq!(stranger.niceness(), before);
        assert_eq!(fixture.run_free("echo alive").await.text(), "alive\n");
    })
    .await;
}

#[tokio::test]
async fn sibling_sandboxes_do_not_see_each_other() {
    as_each_user(async |fixture| {
        let params = fixture.params(&fixture.workspace("restricted"));
        let argv = ["/bin/sh", "-c", "echo ready; SECRET=of-a-sibling exec sleep 1000"];
        fixture.client.start("sibling", &argv, params).await.expect("it starts");
        fixture.client.wait_output("sibling", "ready").await;
        let script = "grep -l of-a-sibling /proc/[0-9]*/environ | grep -v self; kill -9 -1; true";
        let policy = fixture.workspace("restricted");
        let inside = fixture.run(&policy, script).await;
        assert!(!inside.text().contains("/proc/"), "{inside:?}");
        let listed = fixture.client.call("process/list", json!({})).await;
        if let Ok(listed) = listed {
            assert!(listed.to_string().contains("sibling"));
        }
        assert!(fixture.client.terminate("sibling", None).await, "the sibling was killed");
        fixture.client.finish("sibling").await;
    })
    .await;
}

#[tokio::test]
async fn the_first_process_inside_keeps_its_secrets_and_its_life() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        let script = "for file in environ maps mem root/etc fd/5 cwd/etc exe ns/mnt; do \
                      ls -L /proc/1/$file/ >/dev/null && echo listed $file; \
                      head -c 1 /proc/1/$file >/dev/null && echo read $file; done 2>/dev/null; \
                      readlink /proc/1/exe /proc/1/cwd /proc/1/fd/*; \
                      for signal in KILL STOP TERM INT HUP SEGV; do kill -$signal 1; done; echo alive";
        let inside = fixture.run(&policy, script).await;
        assert_eq!((inside.text().as_str(), inside.exit_code), ("alive\n", 0), "{inside:?}");
    })
    .await;
}

#[tokio::test]
async fn nothing_of_the_server_is_inherited() {
    as_each_user(async |fixture| {
        for policy in [fixture.workspace("restricted"), unrestricted("enabled")] {
            // One is that of the listing itself.
            let inside = fixture.run(&policy, "ls /proc/self/fd | tr '\\n' ' '; echo; env | cut -d= -f1 | sort | tr '\\n' ' '").await;
            assert_eq!(inside.text(), "0 1 2 3 \nATTEMPT_PROGRAM LC_ALL OUT PATH PWD WORK ", "{inside:?}");
            let inside = fixture.run(&policy, "cd /proc/self; for fd in fd/*; do readlink $fd; done").await;
            for line in inside.text().lines() {
                let is_known = line == "/dev/null" || line.starts_with("pipe:") || line.starts_with("/proc/");
                assert!(is_known, "{line}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn shared_memory_of_the_host_is_not_there() {
    as_each_user(async |fixture| {
        let canary =
            tempfile::Builder::new().prefix("exec-server-canary-").tempfile_in("/dev/shm").unwrap();
        let name = canary.path().file_name().unwrap().to_str().unwrap();
        crate::files::host::set_mode(canary.path(), 0o666);
        let script = format!(
            "test -e /dev/shm/{name} && echo there; cat /proc/sysvipc/shm | wc -l; ls /dev/shm"
        );
        assert!(fixture.run_free(&script).await.text().starts_with("there"));
        for policy in [fixture.workspace("enabled"), unrestricted("enabled")] {
            assert_eq!(fixture.run(&policy, &script).await.text(), "1\n");
        }
        let made = fixture
            .run(
                &unrestricted("enabled"),
                "echo x > /dev/shm/exec-server-left && cat /dev/shm/exec-server-left",
            )
            .await;
        assert_eq!(made.text(), "x\n");
        assert!(!Path::new("/dev/shm/exec-server-left").exists());
    })
    .await;
}

#[tokio::test]
async fn segments_of_the_host_cannot_be_attached() {
    as_each_user(async |fixture| {
        let segment = Segment::make(fixture);
        fixture.env.insert("SEGMENT".to_owned(), segment.id().to_string());
        assert_eq!(
            outcomes(fixture, &Value::Null, &["other_segment"]).await["other_segment"],
            "ok"
        );
        for policy in [fixture.workspace("restricted"), unrestricted("enabled")] {
            let inside = outcomes(fixture, &policy, &["other_segment"]).await;
            assert_ne!(inside["other_segment"], "ok");
        }
    })
    .await;
}

#[tokio::test]
async fn the_environment_of_a_request_does_not_reach_the_launcher() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        // A library, a configuration of the allocator, and a directory that the launcher must not use.
        for (name, value) in [
            ("LD_PRELOAD", "/nowhere/evil.so"),
            ("LD_LIBRARY_PATH", "/nowhere"),
            ("LD_DEBUG", "files"),
            ("TMPDIR", "/nowhere"),
            ("RUST_BACKTRACE", "full"),
        ] {
            fixture.env.insert(name.to_owned(), value.to_owned());
        }
        fixture
            .env
            .insert("LD_DEBUG_OUTPUT".to_owned(), format!("{}/trace", fixture.work().display()));
        let inside = fixture.run(&policy, "echo works").await;
        assert_eq!(inside.text(), "works\n");
        let traces = std::fs::read_dir(fixture.work()).unwrap().flatten();
        for trace in traces {
            let text = std::fs::read_to_string(trace.path()).unwrap();
            assert!(!text.contains("exec-server"), "the launcher was traced: {text}");
        }
    })
    .await;
}
