use exec_server_os::linux::testing::{Ended, User, errno_of, in_child};

use super::*;
use crate::linux::privileges;
use crate::linux::seccomp::{self, FilterOptions, NetworkMode};

fn unix(path: &[u8]) -> Vec<u8> {
    [&(libc::AF_UNIX as u16).to_ne_bytes(), path].concat()
}

#[test]
fn sockets_of_the_c_library_are_not_counted() {
    assert!(!names_a_peer(&unix(b"/var/run/nscd/socket\0")));
    assert!(!names_a_peer(&unix(b"/run/systemd/userdb/io.systemd.DynamicUser\0")));
    assert!(!names_a_peer(&unix(b"/dev/log")));
    assert!(names_a_peer(&unix(b"/run/docker.sock\0")));
    assert!(names_a_peer(&unix(b"\0hidden")));
    assert!(!names_a_peer(&[]));
    assert!(!names_a_peer(&[2]));
}

/// Runs `body` under the filter of a restricted command; returns how it ended, and what was counted.
fn refused_by(body: fn() -> i32) -> (Option<i32>, u64) {
    let (count, denial_count) = RefusedCalls::share().unwrap();
    let (ours, theirs) = connect().unwrap();
    // SAFETY: the child runs test code only, and glibc keeps its allocator usable after a fork.
    let inside = unsafe { libc::fork() };
    if inside == 0 {
        drop(ours);
        privileges::drop_all().unwrap();
        let listener =
            seccomp::install_counted(NetworkMode::Restricted, &FilterOptions::default()).unwrap();
        if let Some(listener) = listener {
            hand_over(&listener, theirs.as_fd()).unwrap();
        }
        let status = body() << 8;
        io::Write::write_all(&mut &theirs, &status.to_ne_bytes()).unwrap();
        // SAFETY: ends this child alone.
        unsafe { libc::_exit(0) };
    }
    drop(theirs);
    let told = SeccompNotifier::new(ours, Some(denial_count.into())).run();
    // SAFETY: waits for our own child.
    unsafe { libc::waitpid(inside, std::ptr::null_mut(), 0) };
    (told.map(|status| libc::WEXITSTATUS(status)), count.count())
}

fn socket(family: i32) -> i32 {
    errno_of(libc::SYS_socket, [family as u64, libc::SOCK_STREAM as u64, 0, 0, 0, 0])
}

#[test]
fn every_refused_socket_is_counted_and_answered() {
    let ended = in_child(User::Caller, || {
        let (code, count) = refused_by(|| {
            let refused = [libc::AF_INET, libc::AF_INET6, libc::AF_PACKET].map(socket);
            i32::from(refused != [libc::EPERM; 3])
        });
        assert_eq!((code, count), (Some(0), 3));
        0
    });
    assert_eq!(ended, Ended::Exit(0));
}

#[test]
fn allowed_and_implicit_calls_are_not_counted() {
    let ended = in_child(User::Ordinary, || {
        let (code, count) = refused_by(|| {
            let results = [libc::AF_UNIX, libc::AF_NETLINK].map(socket);
            i32::from(results != [0, libc::EPERM])
        });
        assert_eq!((code, count), (Some(0), 0));
        0
    });
    assert_eq!(ended, Ended::Exit(0));
}

#[test]
fn a_flood_of_refusals_from_many_processes_is_answered_to_the_last() {
    let ended = in_child(User::Ordinary, || {
        let (code, count) = refused_by(|| {
            let mut children = Vec::new();
            for _ in 0..4 {
                // SAFETY: the child makes system calls only.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    let failed = (0..500).any(|_| socket(libc::AF_INET) != libc::EPERM);
                    // SAFETY: ends this child alone.
                    unsafe { libc::_exit(i32::from(failed)) };
                }
                children.push(child);
            }
            let mut worst = 0;
            for child in children {
                let mut status = 0;
                // SAFETY: waits for our own child.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                worst = worst.max(status);
            }
            i32::from(worst != 0)
        });
        assert_eq!((code, count), (Some(0), 2000));
        0
    });
    assert_eq!(ended, Ended::Exit(0));
}

#[test]
fn a_caller_killed_while_waiting_does_not_block_others() {
    let ended = in_child(User::Ordinary, || {
        let (code, _) = refused_by(|| {
            for _ in 0..50 {
                // SAFETY: the child makes system calls only, and is killed.
                unsafe {
                    let child = libc::fork();
                    if child == 0 {
                        loop {
                            socket(libc::AF_INET);
                        }
                    }
                    socket(libc::AF_INET);
                    libc::kill(child, libc::SIGKILL);
                    libc::waitpid(child, std::ptr::null_mut(), 0);
                }
            }
            i32::from(socket(libc::AF_INET) != libc::EPERM)
        });
        assert_eq!(code, Some(0));
        0
    });
    assert_eq!(ended, Ended::Exit(0));
}

#[test]
fn with_a_foreign_listener_calls_are_refused_but_not_counted() {
    let ended = in_child(User::Ordinary, || {
        privileges::drop_all().unwrap();
        let Ok(foreign) = seccomp::listen_to_nothing() else { return 0 };
        let ours = seccomp::install_counted(NetworkMode::Restricted, &FilterOptions::default());
        assert!(ours.unwrap().is_none());
        assert_eq!(socket(libc::AF_INET), libc::EPERM);
        drop(foreign);
        0
    });
    assert_eq!(ended, Ended::Exit(0));
}

#[test]
fn without_a_listener_calls_are_refused_and_no_new_listener_is_accepted() {
    let ended = in_child(User::Ordinary, || {
        privileges::drop_all().unwrap();
        let listener =
            seccomp::install_counted(NetworkMode::Restricted, &FilterOptions::default()).unwrap();
        drop(listener);
        let error = seccomp::listen_to_nothing().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        let errno = socket(libc::AF_INET);
        assert!([libc::ENOSYS, libc::EPERM].contains(&errno), "{errno}");
        0
    });
    assert_eq!(ended, Ended::Exit(0));
}
