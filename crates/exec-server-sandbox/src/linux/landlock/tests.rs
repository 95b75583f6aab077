use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::process::{Command, Stdio};

use exec_server_os::linux::testing::{Ended, User, in_child};

use super::*;
use crate::linux::privileges;

/// A world-writable directory with `open/one`, `open/two` and `closed`, and a file in each.
struct Fixture(tempfile::TempDir);

impl Fixture {
    fn new() -> Self {
        let fixture = Self(tempfile::tempdir().unwrap());
        for name in ["", "open", "open/one", "open/two", "closed"] {
            let path = fixture.path(name);
            fs::create_dir_all(&path).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).unwrap();
            fs::write(path.join("file"), "text").unwrap();
            fs::set_permissions(path.join("file"), PermissionsExt::from_mode(0o666)).unwrap();
        }
        fixture
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().canonicalize().unwrap().join(name)
    }
}

fn write_to(path: &Path) -> LandlockRule<'_> {
    LandlockRule { target: RuleTarget::Path(path), access: Access::Write }
}

/// Runs `body` as both users in a process without privileges that is not restricted yet.
fn check(body: impl Fn(&Fixture)) {
    check_since(1, body);
}

fn check_since(abi: u32, body: impl Fn(&Fixture)) {
    let kernel = kernel_abi().unwrap_or(0);
    if kernel < abi {
        eprintln!("skipped: needs Landlock {abi}, and this kernel has {kernel}");
        return;
    }
    for user in [User::Caller, User::Ordinary] {
        let fixture = Fixture::new();
        let ended = in_child(user, || {
            privileges::drop_all().unwrap();
            body(&fixture);
            0
        });
        assert_eq!(ended, Ended::Exit(0), "{user:?}");
    }
}

fn errno<T>(result: io::Result<T>) -> i32 {
    result.map_or_else(|error| error.raw_os_error().unwrap(), |_| 0)
}

fn restrict_to_open(newest: u32, fixture: &Fixture) -> LandlockStatus {
    let open = fixture.path("open");
    let rules =
        LandlockRules { read_root: true, rules: vec![write_to(&open)], ..LandlockRules::default() };
    restrict_up_to(newest, &rules).unwrap()
}

#[test]
fn everything_can_be_read_and_one_tree_written() {
    check_since(3, |fixture| {
        let closed = fixture.path("closed/file");
        let status = restrict_to_open(NEWEST, fixture);
        assert_eq!(status.skipped, Vec::<PathBuf>::new());
        fs::read(&closed).unwrap();
        fs::read_dir("/").unwrap();
        assert!(Command::new("/bin/true").status().unwrap().success());

        fs::write(fixture.path("open/one/new"), "x").unwrap();
        fs::rename(fixture.path("open/one/new"), fixture.path("open/two/moved")).unwrap();
        fs::create_dir(fixture.path("open/directory")).unwrap();
        fs::remove_dir(fixture.path("open/directory")).unwrap();
        symlink("x", fixture.path("open/link")).unwrap();

        assert_eq!(errno(File::options().append(true).open(&closed)), libc::EACCES);
        assert_eq!(errno(File::create(fixture.path("closed/new"))), libc::EACCES);
        assert_eq!(errno(fs::create_dir(fixture.path("closed/new"))), libc::EACCES);
        assert_eq!(errno(fs::remove_file(&closed)), libc::EACCES);
        assert_eq!(errno(truncate(&closed)), libc::EACCES);
        // A hard link in the open tree would keep the file from being removed.
        assert_ne!(errno(fs::hard_link(&closed, fixture.path("open/file2"))), 0);
        assert_ne!(errno(fs::rename(fixture.path("open/file"), fixture.path("closed/file2"))), 0);
    });
}

#[test]
fn nothing_is_allowed_that_no_rule_allows() {
    check(|fixture| {
        let (open, one) = (fixture.path("open"), fixture.path("open/one"));
        let read = LandlockRule { target: RuleTarget::Path(&open), access: Access::Read };
        restrict(&LandlockRules {
            read_root: false,
            rules: vec![read, write_to(&one)],
            ..LandlockRules::default()
        })
        .unwrap();
        fs::read(fixture.path("open/file")).unwrap();
        fs::write(fixture.path("open/one/new"), "x").unwrap();
        assert_eq!(errno(fs::write(fixture.path("open/new"), "x")), libc::EACCES);
        assert_eq!(errno(fs::read(fixture.path("closed/file"))), libc::EACCES);
        assert_eq!(errno(fs::read_dir("/")), libc::EACCES);
        assert_eq!(errno(Command::new("/bin/true").status()), libc::EACCES);
    });
}

#[test]
fn a_rule_on_a_file_is_for_that_file_alone() {
    check(|fixture| {
        let (file, null) = (fixture.path("closed/file"), PathBuf::from("/dev/null"));
        let rules = vec![write_to(&file), write_to(&null)];
        restrict(&LandlockRules { read_root: true, rules, ..LandlockRules::default() }).unwrap();
        fs::write(&null, "x").unwrap();
        fs::write(&file, "x").unwrap();
        assert_eq!(errno(fs::write(fixture.path("closed/new"), "x")), libc::EACCES);
        assert_eq!(errno(fs::remove_file(&file)), libc::EACCES);
    });
}

#[test]
fn a_rule_can_be_given_by_descriptor() {
    check(|fixture| {
        let open = File::open(fixture.path("open")).unwrap();
        let rule = LandlockRule { target: RuleTarget::Fd(open.as_fd()), access: Access::Write };
        restrict(&LandlockRules { read_root: true, rules: vec![rule], ..LandlockRules::default() })
            .unwrap();
        fs::write(fixture.path("open/new"), "x").unwrap();
        assert_eq!(errno(fs::write(fixture.path("closed/new"), "x")), libc::EACCES);
    });
}

#[test]
fn missing_paths_are_skipped_and_writable_links_refused() {
    check(|fixture| {
        let (gone, link) = (fixture.path("open/gone"), fixture.path("open/link"));
        symlink(fixture.path("closed"), &link).unwrap();
        let refused = LandlockRules {
            read_root: true,
            rules: vec![write_to(&link)],
            ..LandlockRules::default()
        };
        let error = restrict(&refused).unwrap_err();
        assert_eq!(error.step, "landlock rule");
        assert_eq!(error.cause.raw_os_error(), Some(libc::ELOOP));
        let status = restrict(&LandlockRules {
            read_root: true,
            rules: vec![write_to(&gone)],
            ..LandlockRules::default()
        });
        assert_eq!(status.unwrap().skipped, [gone]);
    });
}

#[test]
fn signals_and_abstract_sockets_do_not_reach_outside() {
    check_since(6, |fixture| {
        let name = format!("exec-server-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        // `cat` exits when its input closes.
        let mut outsider = Command::new("/bin/cat").stdin(Stdio::piped()).spawn().unwrap();
        // SAFETY: signal 0 only asks whether one could be sent.
        let signal = |pid: u32| unsafe { libc::kill(pid as libc::pid_t, 0) };
        restrict_to_open(5, fixture);
        UnixStream::connect_addr(&address).unwrap();
        assert_eq!(signal(outsider.id()), 0);
        restrict_to_open(NEWEST, fixture);
        assert_eq!(errno(UnixStream::connect_addr(&address)), libc::EPERM);
        assert_eq!(signal(outsider.id()), -1);
        assert_eq!(signal(std::process::id()), 0);
        drop(outsider.stdin.take());
        outsider.wait().unwrap();
    });
}

#[test]
fn a_device_accepts_ioctls_only_where_it_is_writable() {
    check_since(5, |_| {
        let (open, closed) = (PathBuf::from("/dev/urandom"), PathBuf::from("/dev/random"));
        let rules = vec![write_to(&open)];
        let before = File::open(&closed).unwrap();
        restrict(&LandlockRules { read_root: true, rules, ..LandlockRules::default() }).unwrap();
        assert_eq!(errno(entropy_of(&before)), 0);
        assert_eq!(errno(entropy_of(&File::open(&open).unwrap())), 0);
        assert_eq!(errno(entropy_of(&File::open(&closed).unwrap())), libc::EACCES);
    });
}

#[test]
fn an_old_kernel_restricts_less_and_reports_it() {
    check_since(3, |fixture| {
        let status = restrict_to_open(1, fixture);
        assert_eq!((status.abi, &status.holds[..]), (1, &[LandlockPart::Files][..]));
        assert_eq!(status.missing.len(), LandlockPart::ALL.len() - 1);
        let (one, two) = (fixture.path("open/one/file"), fixture.path("open/two/moved"));
        assert_eq!(errno(fs::rename(one, two)), libc::EXDEV);
        truncate(&fixture.path("closed/file")).unwrap();
        assert_eq!(errno(fs::write(fixture.path("closed/new"), "x")), libc::EACCES);

        let status = restrict_to_open(3, fixture);
        assert!(status.holds.contains(&LandlockPart::Truncation));
        assert_eq!(errno(truncate(&fixture.path("closed/file"))), libc::EACCES);
    });
}

#[test]
fn without_landlock_nothing_is_restricted_and_the_status_reports_it() {
    check_since(0, |fixture| {
        let status = restrict_to_open(0, fixture);
        assert_eq!((status.abi, status.holds.len()), (0, 0));
        fs::write(fixture.path("closed/new"), "x").unwrap();
    });
}

fn truncate(path: &Path) -> io::Result<()> {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path is null-terminated and lives as long as the call.
    exec_server_os::linux::check(unsafe { libc::truncate(path.as_ptr(), 0) }).map(drop)
}

/// A harmless ioctl of these devices.
fn entropy_of(device: &File) -> io::Result<()> {
    const RNDGETENTCNT: libc::c_ulong = 0x8004_5200;
    let mut bits: libc::c_int = 0;
    // SAFETY: the command fills one int.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), RNDGETENTCNT as _, &raw mut bits) };
    exec_server_os::linux::check(result).map(drop)
}
