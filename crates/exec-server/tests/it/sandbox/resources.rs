//! Per-user kernel resources that a sandbox could exhaust, and host objects that it could change.
#![allow(unsafe_code, reason = "what a sandbox must bound are system calls")]

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use exec_server_testkit::TestExecutor;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};

use super::attempt::{check, command, outcomes, text, variable};
use super::fixture::{SandboxFixture, as_each_user};
use super::*;
use crate::files::host::as_nobody;

/// Maximum number of descriptors per message.
const PER_MESSAGE: usize = 253;
/// More descriptors than any open-file limit of the tests.
const MOST_IN_FLIGHT: usize = 200_000;

/// The attacks of this file.
pub fn perform(name: &str) -> io::Result<()> {
    match name {
        "in_flight" => {
            let (pairs, count) = fill()?;
            hold(&format!("{name} {count}"))?;
            drop(pairs);
            Ok(())
        }
        "watchers" => {
            let mut all = Vec::new();
            // SAFETY: takes a number.
            while all.len() < 100_000 && check(unsafe { libc::inotify_init1(0) }).is_ok() {
                all.push(());
            }
            hold(&format!("{name} {}", all.len()))
        }
        "lease" => {
            let path = text(format!("{}/leased", variable("WORK")));
            std::fs::write(path.to_str().expect("it is UTF-8"), "")?;
            // SAFETY: the path is a C string, the rest are numbers.
            unsafe {
                let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
                check(libc::fcntl(file, libc::F_SETLEASE, libc::F_RDLCK))
            }
        }
        "no_core_limit" => core_limit(0),
        "raise_limit" => core_limit(1 << 20),
        // SAFETY: takes numbers.
        "tty_mode" => check(unsafe { libc::fchmod(0, 0o666) }),
        // SAFETY: as above.
        "tty_owner" => check(unsafe { libc::fchown(0, libc::geteuid(), libc::getegid()) }),
        _ => panic!("no attack is called {name}"),
    }
}

/// Prints a line and waits for the end of input, so that its resources stay in use.
fn hold(said: &str) -> io::Result<()> {
    println!("@ held {said}");
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Sends descriptors to itself, without receiving, until the kernel rejects more.
fn fill() -> io::Result<(Vec<(std::os::fd::OwnedFd, std::os::fd::OwnedFd)>, usize)> {
    // Its descriptors are few, but it may raise its own limit as far as it can.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills and passes a live local.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit))?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit))?;
    }
    let stdin = io::stdin();
    let passed: Vec<BorrowedFd> = vec![stdin.as_fd(); PER_MESSAGE];
    let (mut pairs, mut count) = (Vec::new(), 0);
    while count < MOST_IN_FLIGHT {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        loop {
            let mut space =
                [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_MESSAGE))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&passed)), "there is room");
            let sent =
                sendmsg(&pair.0, &[io::IoSlice::new(b"x")], &mut control, SendFlags::empty());
            match sent {
                Ok(_) if count < MOST_IN_FLIGHT => count += PER_MESSAGE,
                Err(rustix::io::Errno::TOOMANYREFS) => {
                    pairs.push(pair);
                    return Ok((pairs, count));
                }
                Ok(_) | Err(rustix::io::Errno::AGAIN) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        pairs.push(pair);
    }
    Ok((pairs, count))
}

/// Tries to change the core dump limit; an error if it stays.
fn core_limit(value: u64) -> io::Result<()> {
    let wanted = libc::rlimit { rlim_cur: value, rlim_max: value };
    let mut now = libc::rlimit { rlim_cur: 7, rlim_max: 7 };
    // SAFETY: all pass or fill live locals.
    unsafe {
        let (own, none) = (libc::getpid(), std::ptr::null_mut::<libc::rlimit>());
        libc::setrlimit(libc::RLIMIT_CORE, &raw const wanted);
        libc::syscall(libc::SYS_setrlimit, libc::RLIMIT_CORE, &raw const wanted);
        libc::prlimit(own, libc::RLIMIT_CORE, &raw const wanted, none);
        libc::prlimit(own, libc::RLIMIT_CORE, &raw const wanted, &raw mut now);
        check(libc::getrlimit(libc::RLIMIT_CORE, &raw mut now))?;
    }
    if now.rlim_cur == value { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EPERM)) }
}

/// Starts a lasting attack, and returns the number that it reached.
async fn start_holding(fixture: &mut SandboxFixture, sandbox: &Value, name: &str) -> (String, u64) {
    let (id, mut params) = (fixture.next_id(), fixture.params(sandbox));
    params["pipeStdin"] = json!(true);
    let script = command(name).replace("sed -n", "sed -un");
    fixture.client.start(&id, &["/bin/sh", "-c", &script], params).await.unwrap();
    let said = fixture.client.wait_output(&id, "\n").await;
    let number = said.split_whitespace().last().and_then(|word| word.parse().ok());
    (id, number.unwrap_or_else(|| panic!("{said}")))
}

async fn end_holding(fixture: &mut SandboxFixture, id: &str) {
    fixture.client.terminate(id, None).await;
    fixture.client.finish(id).await;
}

#[tokio::test]
async fn descriptors_in_flight_keep_no_sandbox_of_any_server_from_starting() {
    as_each_user(async |fixture| {
        for network in ["restricted", "enabled"] {
            let policy = fixture.workspace(network);
            let (id, count) = start_holding(fixture, &policy, "in_flight").await;
            assert!(count > 100, "the attack works: {count}");
            let finished = fixture.run(&policy, "echo in").await;
            assert_eq!(finished.text(), "in\n", "{finished:?}");
            let look = json!({"path": uri(&fixture.outside().join("file")), "sandbox": policy, "handleId": "h"});
            fixture.client.call("fs/open", look).await.expect("a descriptor can still be handed over");
            fixture.client.call("fs/close", json!({"handleId": "h"})).await.unwrap();
            let builder = TestExecutor::builder();
            let builder = if fixture.is_own_user() { Some(builder) } else { as_nobody(builder) };
            let other = builder.expect("there is such a server already").start().await;
            let mut client = other.client().await;
            let said = run_in(&mut client, "p", policy, &fixture.work(), "echo there").await;
            assert_eq!(said.text(), "there\n", "{said:?}");
            end_holding(fixture, &id).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_limit_on_open_files_inside_cannot_be_raised_to_that_of_the_server() {
    as_each_user(async |fixture| {
        let policy = fixture.workspace("restricted");
        let limits = |pid: u32| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
            let line =
                text.lines().find(|line| line.starts_with("Max open files")).unwrap().to_owned();
            line.split_whitespace().nth(4).unwrap().parse::<u64>().unwrap()
        };
        let hard = limits(fixture.server.serving_pid());
        let inside =
            fixture.run(&policy, "ulimit -Hn; ulimit -n $(($(ulimit -Hn) + 1)) || echo no").await;
        let said = inside.text();
        let [most, "no"] = said.lines().collect::<Vec<_>>()[..] else { panic!("{inside:?}") };
        assert!(most.parse::<u64>().unwrap() < hard, "{inside:?} {hard}");
        let free = fixture.run_free("ulimit -Hn").await;
        assert_eq!(free.text().trim(), hard.to_string());
    })
    .await;
}

#[tokio::test]
async fn a_sandbox_gets_only_a_share_of_the_inotify_limits() {
    as_each_user(async |fixture| {
        let read = "cat /proc/sys/user/max_inotify_instances /proc/sys/user/max_inotify_watches";
        let numbers =
            |text: String| -> Vec<u64> { text.lines().map(|line| line.parse().unwrap()).collect() };
        let policy = fixture.workspace("restricted");
        let inside = numbers(fixture.run(&policy, read).await.text());
        let of_machine = |name: &str| {
            let text = std::fs::read_to_string(format!("/proc/sys/fs/inotify/{name}")).unwrap();
            text.trim().parse::<u64>().unwrap()
        };
        let free = [of_machine("max_user_instances"), of_machine("max_user_watches")];
        // Both are set in the same way.
        let params = fixture.params(&policy);
        let started = fixture.client.start("p", &["/bin/true"], params).await.unwrap();
        fixture.client.finish("p").await;
        if started["limits"]["by"]["pids"] != "pidNamespace" && inside[0] > free[0] {
            return crate::files::host::skip("limits of namespaces cannot be set here");
        }
        assert_eq!(inside, free.map(|most| most / 4));
        let (id, count) = start_holding(fixture, &policy, "watchers").await;
        assert!(count > 0 && count <= inside[0], "{count} of {inside:?}");
        // Others of the same user still can.
        let other = fixture.run(&policy, &command("lease")).await;
        assert_eq!(other.text(), "lease EPERM\n");
        let (second, again) = start_holding(fixture, &policy, "watchers").await;
        assert!(again > 0, "{again}");
        end_holding(fixture, &id).await;
        end_holding(fixture, &second).await;
    })
    .await;
}

#[tokio::test]
async fn no_file_is_leased_and_no_core_is_dumped() {
    as_each_user(async |fixture| {
        for policy in [fixture.workspace("restricted"), unrestricted("enabled")] {
            let names = ["lease", "no_core_limit"];
            attempt::are_refused(fixture, &policy, &names, &[]).await;
            let script = "grep -i 'core file' /proc/self/limits | tr -s ' '; ulimit -c 0 && echo fine; \
                          (ulimit -c 0; kill -SEGV $(exec sh -c 'echo $PPID')); echo $?; ls core* 2>/dev/null; \
                          grep -i 'core file' /proc/self/limits | tr -s ' '";
            let said = fixture.run(&policy, script).await;
            let limit = "Max core file size 1 1 bytes ";
            assert_eq!(said.text(), format!("{limit}\nfine\n139\n{limit}\n"), "{said:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_mode_of_a_terminal_of_the_host_cannot_be_changed() {
    as_each_user(async |fixture| {
        let attacks = command("tty_mode tty_owner");
        let script = format!(
            "chmod 666 /proc/self/fd/0 /proc/self/fd/1 2>/dev/null; chmod 666 /dev/tty 2>/dev/null; {attacks}; \
             stat -L -c 'mode %a' /proc/self/fd/0; test -t 0 && test -t 1 && test -t 2 && echo terminal; \
             echo to the terminal > /dev/tty; stty size"
        );
        for (sandbox, expected) in [
            (Value::Null, ["tty_mode ok", "mode 666", "terminal"]),
            (fixture.workspace("restricted"), ["tty_mode EROFS", "tty_owner EROFS", "terminal"]),
            (unrestricted("enabled"), ["tty_mode EROFS", "tty_owner EROFS", "terminal"]),
        ] {
            let (id, mut params) = (fixture.next_id(), fixture.params(&sandbox));
            params["tty"] = json!(true);
            fixture.client.start(&id, &["/bin/sh", "-c", &script], params).await.unwrap();
            let said = fixture.client.finish(&id).await.pty_text();
            for line in expected.into_iter().chain(["to the terminal", "24 80"]) {
                assert!(said.lines().any(|it| it.trim() == line), "{line}: {said}");
            }
            assert_eq!(said.contains("mode 666"), sandbox.is_null(), "{said}");
        }
    })
    .await;
}

/// Denies this many missing names in the workspace.
fn denying(fixture: &SandboxFixture, count: usize, below: &Path) -> Value {
    let denied = (0..count).map(|number| at(&below.join(format!("none-{number}")), "deny"));
    let entries: Vec<Value> = [special("root", "read"), special("project_roots", "write")]
        .into_iter()
        .chain(denied)
        .collect();
    with_entries(&[&fixture.work()], "restricted", &entries)
}

#[tokio::test]
async fn a_policy_is_refused_above_its_size_and_kept_below() {
    as_each_user(async |fixture| {
        let large = denying(fixture, 20_000, &fixture.work());
        let params = fixture.params(&large);
        let error = fixture.client.start("p", &["/bin/true"], params).await.unwrap_err();
        assert_eq!(
            (&error["code"], &error["data"]["kind"]),
            (&json!(-32600), &json!("sandbox_policy")),
            "{error}"
        );
        assert!(error["message"].as_str().unwrap().contains("4096"), "{error}");
        let read = json!({"path": uri(&fixture.work()), "sandbox": large});
        let error = fixture.client.call("fs/readDirectory", read).await.unwrap_err();
        assert_eq!(error["data"]["kind"], "sandbox_policy", "{error}");

        let fits = denying(fixture, 4000, &fixture.work());
        let script = "mkdir none-7 none-3999 2>&1 | grep -c exists; touch fine && echo fine";
        let said = fixture.run(&fits, script).await;
        assert_eq!(said.text(), "2\nfine\n", "{said:?}");
        assert_eq!(crate::files::host::names(&fixture.work()), ["fine"]);
    })
    .await;
}

#[tokio::test]
async fn a_policy_that_takes_long_to_look_up_is_given_up() {
    let mut fixture = SandboxFixture::new(TestExecutor::builder().start().await, None).await;
    // Every parent of each is looked up, a few million in total.
    let deep: std::path::PathBuf = std::iter::repeat_n("d", 1800).collect();
    fixture.make_dir(&fixture.work().join("d"));
    std::fs::create_dir_all(fixture.work().join(&deep)).unwrap();
    let policy = denying(&fixture, 4000, &fixture.work().join(&deep));
    let params = fixture.params(&policy);
    let error = fixture.client.start("p", &["/bin/true"], params).await.unwrap_err();
    assert!(error["message"].as_str().unwrap().contains("CPU time"), "{error}");
    assert_eq!(fixture.client.sh("q", "echo calm").await.text(), "calm\n");
    // A rejected start leaves nothing behind.
    let left = || std::fs::read_dir(fixture.work().join(&deep)).unwrap().next().is_none();
    exec_server_testkit::eventually("the placeholders are gone", left).await;
}

#[tokio::test]
async fn outcomes_of_these_attacks_are_distinguished() {
    let mut fixture = SandboxFixture::new(TestExecutor::builder().start().await, None).await;
    let free = outcomes(&mut fixture, &Value::Null, &["lease", "no_core_limit"]).await;
    assert!(free.values().all(|outcome| outcome == "ok"), "{free:?}");
}
