//! Drops every privilege of a process, for itself and its descendants.

use std::io;

use exec_server_os::linux::check;

use super::step::{Step, StepError};

/// Clears all capabilities, prevents gaining any by exec or as root, sets `no_new_privs` and clears dumpable.
///
/// Lowering the bounding set and the securebits needs a capability. A process without that capability cannot gain any by
/// `execve`, because of `no_new_privs`.
pub fn drop_all() -> Result<(), StepError> {
    clear_ambient().step("ambient capabilities")?;
    if has_effective(CAP_SETPCAP).step("capabilities")? {
        drop_bounding_set().step("bounding set of capabilities")?;
        lock_securebits().step("securebits")?;
    }
    clear_capabilities().step("capabilities")?;
    set(libc::PR_SET_NO_NEW_PRIVS, 1).step("no new privileges")?;
    // Lasts until execve. Until then the process is a copy of the launcher, whose memory must not be readable.
    set(libc::PR_SET_DUMPABLE, 0).step("dumpable")
}

const CAP_SETPCAP: u32 = 8;
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// Root has no implicit capabilities, changing the user changes none, none can be kept or raised; all locked.
const SECUREBITS: libc::c_int = libc::SECBIT_NOROOT
    | libc::SECBIT_NOROOT_LOCKED
    | libc::SECBIT_NO_SETUID_FIXUP
    | libc::SECBIT_NO_SETUID_FIXUP_LOCKED
    | libc::SECBIT_KEEP_CAPS_LOCKED
    | libc::SECBIT_NO_CAP_AMBIENT_RAISE
    | libc::SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;

#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// One 32-bit half of the three sets; the kernel takes two, low half first.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn clear_ambient() -> io::Result<()> {
    let (operation, none) = (libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0 as libc::c_ulong);
    // SAFETY: takes numbers only.
    check(unsafe { libc::prctl(libc::PR_CAP_AMBIENT, operation, none, none, none) }).map(drop)
}

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

fn has_effective(capability: u32) -> io::Result<bool> {
    let mut header = Header { version: CAPABILITY_VERSION_3, pid: 0 };
    let mut halves = [Half::default(); 2];
    // SAFETY: both are live locals of the layout that this version of the call has.
    let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) };
    check(result as libc::c_int)?;
    Ok(halves[capability as usize / 32].effective & (1 << (capability % 32)) != 0)
}

fn clear_capabilities() -> io::Result<()> {
    let mut header = Header { version: CAPABILITY_VERSION_3, pid: 0 };
    let halves = [Half::default(); 2];
    // SAFETY: as above; the kernel only reads them.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, halves.as_ptr()) };
    check(result as libc::c_int).map(drop)
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
