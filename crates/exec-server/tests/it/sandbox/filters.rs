//! System call filters that a command installs: a notifier inside must not answer in place of the sandbox's.
#![allow(unsafe_code, reason = "what a sandbox must refuse are system calls")]

use std::io;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

use libc::{sock_filter, sock_fprog, syscall};

use super::attempt::{check, in_child, outcomes, variable};
use super::fixture::as_each_user;
use super::*;

const ATTACKS: [&str; 3] = ["make_filter", "make_filter_the_old_way", "make_listener"];

#[tokio::test]
async fn inside_the_kernel_has_no_filters() {
    as_each_user(async |fixture| {
        let free = outcomes(fixture, &Value::Null, &ATTACKS).await;
        assert!(free.values().all(|outcome| outcome == "ok"), "{free:?}");
        for policy in [fixture.workspace("restricted"), unrestricted("enabled")] {
            let inside = outcomes(fixture, &policy, &ATTACKS).await;
            assert!(inside.values().all(|outcome| outcome == "EINVAL"), "{inside:?}");
        }
    })
    .await;
}

pub fn perform(name: &str) -> io::Result<()> {
    match name {
        "make_filter" => in_child(|| install(&open(), 0).map(drop)),
        "make_filter_the_old_way" => in_child(|| {
            let open = open();
            let (option, mode) = (libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER);
            no_new_privileges()?;
            // SAFETY: the kernel only reads the program.
            check(unsafe { libc::prctl(option, mode, &raw const *program_of(&open)) })
        }),
        "make_listener" => in_child(|| install(&open(), NEW_LISTENER).map(drop)),
        "answer_itself" => outlive_the_launcher(),
        unknown => panic!("there is no attack {unknown}"),
    }
}

const NEW_LISTENER: u64 = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const ANSWER: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

fn step(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// A filter that allows everything.
fn open() -> Vec<sock_filter> {
    vec![step(ANSWER, 0, 0, libc::SECCOMP_RET_ALLOW)]
}

/// A filter that notifies about network calls.
fn asking() -> Vec<sock_filter> {
    vec![
        step(LOAD, 0, 0, 0),
        step(EQUAL, 1, 0, libc::SYS_socket as u32),
        step(EQUAL, 0, 1, libc::SYS_connect as u32),
        step(ANSWER, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        step(ANSWER, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

fn program_of(steps: &[sock_filter]) -> Box<sock_fprog> {
    Box::new(sock_fprog { len: steps.len() as u16, filter: steps.as_ptr().cast_mut() })
}

fn no_new_privileges() -> io::Result<()> {
    // SAFETY: sets a flag of this process.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })
}

fn install(steps: &[sock_filter], flags: u64) -> io::Result<RawFd> {
    no_new_privileges()?;
    let program = program_of(steps);
    let make = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the kernel only reads the program, which outlives the call.
    let made = unsafe { syscall(libc::SYS_seccomp, make, flags, &raw const *program) };
    check(made)?;
    Ok(made as RawFd)
}

/// Leaves a process behind that waits until the sandbox's notifier is gone, and then answers itself.
///
/// The result is written to `came-of-it` in the workspace.
fn outlive_the_launcher() -> io::Result<()> {
    // SAFETY: with one test there is one thread; the copy makes descriptors of its own, and ends.
    unsafe {
        match libc::fork() {
            -1 => return Err(io::Error::last_os_error()),
            0 => {}
            _ => return Ok(()),
        }
        libc::setsid();
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for stream in 0..3 {
            libc::dup2(null, stream);
        }
    }
    let outcome = wait_until_the_notifier_is_gone().and_then(|()| dial_with_own_answers());
    let text = outcome.map_or_else(|error| attempt::error_name(&error), |()| "ok".to_owned());
    let work = variable("WORK");
    let (draft, name) = (format!("{work}/draft"), format!("{work}/came-of-it"));
    let told = std::fs::write(&draft, text).and_then(|()| std::fs::rename(&draft, &name));
    // SAFETY: ends this copy.
    unsafe { libc::_exit(i32::from(told.is_err())) }
}

/// The kernel then reports an unknown call.
fn wait_until_the_notifier_is_gone() -> io::Result<()> {
    for _ in 0..30_000 {
        // SAFETY: takes numbers only.
        match check(unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0) }) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => return Ok(()),
            // SAFETY: takes a number only.
            Err(_) => _ = unsafe { libc::usleep(1000) },
            Ok(()) => return Ok(()),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ETIMEDOUT))
}

fn dial_with_own_answers() -> io::Result<()> {
    let (sender, receiver) = mpsc::channel();
    // It was there before, so the filter is not for it.
    std::thread::spawn(move || receiver.iter().for_each(let_everything_through));
    sender.send(install(&asking(), NEW_LISTENER)?).expect("it listens");
    UnixStream::connect(format!("{}/socket", variable("OUT"))).map(drop)
}

fn let_everything_through(listener: RawFd) {
    loop {
        // SAFETY: both are live locals of the sizes that the requests have.
        unsafe {
            let mut asked = std::mem::zeroed::<libc::seccomp_notif>();
            if libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) == -1 {
                return;
            }
            let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
            let answer = libc::seccomp_notif_resp { id: asked.id, val: 0, error: 0, flags };
            libc::ioctl(listener, libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const answer);
        }
    }
}
