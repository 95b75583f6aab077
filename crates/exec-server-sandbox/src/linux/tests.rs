//! All restrictions together, in the order of a launcher.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use exec_server_os::limits::Rlimits;
use exec_server_os::linux::testing::{Ended, User, in_child};

use super::landlock::{Access, LandlockRule, LandlockRules, RuleTarget};
use super::seccomp::{FilterOptions, NetworkMode};
use super::zygote::Limit;
use super::{landlock, limits, privileges, seccomp};

/// Runs `script` in a shell that may write in `workspace` and to `/dev/null`.
fn run_confined(workspace: &Path, script: &str) -> Output {
    limits::apply(&Rlimits::default()).unwrap();
    limits::apply_open_files(Limit(256, 256), None).unwrap();
    privileges::drop_all().unwrap();
    let write = |path| LandlockRule { target: RuleTarget::Path(path), access: Access::Write };
    let rules = vec![write(workspace), write(Path::new("/dev/null"))];
    landlock::restrict(&LandlockRules { read_root: true, rules, ..LandlockRules::default() })
        .unwrap();
    seccomp::install(&seccomp::program(NetworkMode::Restricted, &FilterOptions::default()))
        .unwrap();
    Command::new("/bin/sh").current_dir(workspace).args(["-c", script]).output().unwrap()
}

fn check(script: &str, expected: &str) {
    for user in [User::Caller, User::Ordinary] {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o777)).unwrap();
        let workspace = directory.path().canonicalize().unwrap();
        let ended = in_child(user, || {
            let output = run_confined(&workspace, script);
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{error}");
            0
        });
        assert_eq!(ended, Ended::Exit(0), "{user:?}");
    }
}

#[test]
fn a_confined_shell_still_works() {
    check(
        "mkdir a b && echo x > a/f && mv a/f b/f && cp -p b/f c && chmod 640 c && ln -s c d && \
         cat d | tr x y > /dev/null && sort /etc/passwd | head -c 0 && ulimit -c && ls",
        "0\na\nb\nc\nd\n",
    );
}

#[test]
fn a_confined_shell_cannot_escape() {
    check(
        "for attempt in 'touch /tmp/exec-server-canary' 'rm /etc/hostname' 'chmod u+s new' \
         'unshare -r true' 'mount -t tmpfs none .' 'mkdir /var/tmp/exec-server-canary' \
         'chroot / true' 'mknod device c 1 3'; do \
         touch new; $attempt 2>/dev/null && echo \"$attempt worked\"; done; echo done",
        "done\n",
    );
}
