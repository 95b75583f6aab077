//! Changes the user of a process between fork and exec.

use std::io;
use std::sync::OnceLock;

use super::capabilities::{self, CAP_CHOWN, CAP_KILL, CAP_SETGID, CAP_SETUID};
use super::{check, keyring};
use crate::accounts::Credentials;

/// Whether this server can start processes as other users, give them their terminals, and kill them.
pub fn can_change_users() -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    *CAN.get_or_init(|| {
        let needed = [CAP_SETUID, CAP_SETGID, CAP_KILL, CAP_CHOWN];
        let has_all = needed.into_iter().all(|it| capabilities::has_effective(it).unwrap_or(false));
        // A user namespace of an ordinary user has all capabilities and cannot set groups.
        let groups = std::fs::read_to_string("/proc/self/setgroups");
        has_all && groups.map_or(true, |groups| groups.trim() != "deny")
    })
}

/// Takes on the user and groups; a user other than root keeps no capability.
///
/// Neither allocates nor locks, so a fork of a process with threads may call it. It makes the system calls itself,
/// because those of the C library change all threads that it knows of. The kernel clears the parent-death signal and
/// the dumpable flag of the process.
pub fn change_to(user: &Credentials) -> io::Result<()> {
    let Credentials { uid, gid, groups } = user;
    // SAFETY: the list is alive and as long as said.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) as i32 })?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid) as i32 })?;
    // SAFETY: takes numbers only.
    check(unsafe { libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid) as i32 })?;
    if *uid != 0 {
        // The kernel clears them only for a server that was root.
        capabilities::clear_ambient()?;
        capabilities::clear()?;
    }
    // The keys of the server's session are not for other users. A container that forbids the call has no such keys.
    let _ = keyring::join_new_session();
    Ok(())
}
