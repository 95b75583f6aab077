//! Drops every privilege of a process, for itself and its descendants.

use std::io;

use exec_server_os::linux::capabilities::{self, CAP_SETPCAP, has_effective};
use exec_server_os::linux::check;

use super::step::{Step, StepError};

/// Clears all capabilities, prevents gaining any by exec or as root, sets `no_new_privs` and clears dumpable.
///
/// Lowering the bounding set and the securebits needs a capability. A process without that capability cannot gain any by
/// `execve`, because of `no_new_privs`.
pub fn drop_all() -> Result<(), StepError> {
    capabilities::clear_ambient().step("ambient capabilities")?;
    if has_effective(CAP_SETPCAP).step("capabilities")? {
        drop_bounding_set().step("bounding set of capabilities")?;
        lock_securebits().step("securebits")?;
    }
    capabilities::clear().step("capabilities")?;
    set(libc::PR_SET_NO_NEW_PRIVS, 1).step("no new privileges")?;
    // Lasts until execve. Until then the process is a copy of the launcher, whose memory must not be readable.
    set(libc::PR_SET_DUMPABLE, 0).step("dumpable")
}

/// Sets `no_new_privs` and clears dumpable.
pub fn conceal() -> Result<(), StepError> {
    set(libc::PR_SET_NO_NEW_PRIVS, 1).step("no new privileges")?;
    set(libc::PR_SET_DUMPABLE, 0).step("dumpable")
}

/// Root has no implicit capabilities, changing the user changes none, none can be kept or raised; all locked.
const SECUREBITS: libc::c_int = libc::SECBIT_NOROOT
    | libc::SECBIT_NOROOT_LOCKED
    | libc::SECBIT_NO_SETUID_FIXUP
    | libc::SECBIT_NO_SETUID_FIXUP_LOCKED
    | libc::SECBIT_KEEP_CAPS_LOCKED
    | libc::SECBIT_NO_CAP_AMBIENT_RAISE
    | libc::SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;

fn drop_bounding_set() -> io::Result<()> {
    // The kernel has at most 64; EINVAL marks the first unknown one.
    for capability in 0..64 {
        match set(libc::PR_CAPBSET_DROP, capability) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && capability > 0 => break,
            other => other?,
        }
    }
    Ok(())
}

fn lock_securebits() -> io::Result<()> {
    set(libc::PR_SET_SECUREBITS, SECUREBITS as libc::c_ulong)
}

fn set(option: libc::c_int, value: libc::c_ulong) -> io::Result<()> {
    let none: libc::c_ulong = 0;
    // SAFETY: all the options used here take numbers only.
    check(unsafe { libc::prctl(option, value, none, none, none) }).map(drop)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use exec_server_os::linux::testing::{Ended, User, in_child, status_of_self};

    use super::*;

    const NONE: &str = "0000000000000000";

    fn assert_no_capabilities() {
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(status_of_self(set), NONE, "{set}");
        }
        assert_eq!(status_of_self("NoNewPrivs"), "1");
    }

    /// Whether a newly executed program has any capability.
    fn executed_program_has_capabilities() -> bool {
        let output = Command::new("/bin/grep").args(["Cap", "/proc/self/status"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), 5);
        text.lines().any(|line| !line.ends_with(NONE))
    }

    #[test]
    fn the_caller_loses_all_capabilities_also_across_exec() {
        let ended = in_child(User::Caller, || {
            let is_root = has_effective(CAP_SETPCAP).unwrap();
            drop_all().unwrap();
            assert_no_capabilities();
            if is_root {
                assert_eq!(status_of_self("CapBnd"), NONE);
                assert!(!executed_program_has_capabilities());
                // SAFETY: takes and returns numbers only.
                assert_eq!(unsafe { libc::prctl(libc::PR_GET_SECUREBITS) }, SECUREBITS);
                assert!(set(libc::PR_SET_SECUREBITS, 0).is_err());
            }
            // SAFETY: as above.
            assert_eq!(unsafe { libc::prctl(libc::PR_GET_DUMPABLE) }, 0);
            0
        });
        assert_eq!(ended, Ended::Exit(0));
    }

    #[test]
    fn an_ordinary_user_gets_no_new_privs() {
        let ended = in_child(User::Ordinary, || {
            drop_all().unwrap();
            assert_no_capabilities();
            0
        });
        assert_eq!(ended, Ended::Exit(0));
    }

    #[test]
    fn an_ordinary_user_loses_the_capabilities_of_a_user_namespace() {
        let ended = in_child(User::Ordinary, || {
            // SAFETY: this process has one thread.
            if unsafe { libc::unshare(libc::CLONE_NEWUSER) } == -1 {
                eprintln!("skipped: this machine has no user namespaces for ordinary users");
                return 0;
            }
            assert_ne!(status_of_self("CapEff"), NONE);
            drop_all().unwrap();
            assert_no_capabilities();
            assert_eq!(status_of_self("CapBnd"), NONE);
            assert!(!executed_program_has_capabilities());
            0
        });
        assert_eq!(ended, Ended::Exit(0));
    }

    #[test]
    fn dropping_privileges_twice_succeeds() {
        let ended = in_child(User::Caller, || {
            drop_all().unwrap();
            drop_all().unwrap();
            0
        });
        assert_eq!(ended, Ended::Exit(0));
    }
}
