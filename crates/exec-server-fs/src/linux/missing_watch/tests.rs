//! Runs on a real file system. The kernel queues an event before the system call that caused it returns, so an empty
//! queue proves that there was no event.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::Duration;

use super::*;

/// Only a failing test waits this long.
const DEADLINE: Duration = Duration::from_secs(20);

#[test]
fn a_missing_path_appears_in_any_way() {
    let ways: [Change; 6] = [
        |dir| dir.write("w/a/.git"),
        |dir| dir.mkdir("w/a/.git"),
        |dir| dir.rename("w/other", "w/a/.git"),
        |dir| symlink("nowhere", dir.path("w/a/.git")).unwrap(),
        |dir| fs::hard_link(dir.path("w/other"), dir.path("w/a/.git")).unwrap(),
        |dir| {
            dir.write("w/a/.git");
            dir.remove("w/a/.git");
        },
    ];
    for way in ways {
        let dir = Dir::new();
        let watch = dir.watch(&["w/a/b/.git", "w/a/.git", "w/.git"], None).unwrap();
        way(&dir);
        assert_fires(watch);
    }
}

#[test]
fn a_missing_ancestor_appears_without_the_path() {
    let dir = Dir::new();
    let made = dir.watch(&["w/a/b/c/.git"], None).unwrap();
    dir.mkdir("w/a/b");
    assert_fires(made);

    dir.mkdir("ready");
    let moved = dir.watch(&["w/x/y/.git"], None).unwrap();
    dir.rename("ready", "w/x");
    assert_fires(moved);
}

#[test]
fn an_existing_ancestor_is_renamed_removed_or_replaced() {
    let ways: [Change; 5] = [
        |dir| dir.rename("w/a", "w/z"),
        |dir| dir.rename("w", "z"),
        |dir| dir.remove("w/a"),
        |dir| {
            dir.mkdir("new");
            dir.rename("new", "w/a");
        },
        |dir| {
            dir.mkdir("new");
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            let (new, old) = (dir.path("new"), dir.path("w"));
            rustix::fs::renameat_with(rustix::fs::CWD, new, rustix::fs::CWD, old, flags).unwrap();
        },
    ];
    for way in ways {
        let dir = Dir::new();
        let watch = dir.watch(&["w/a/.git"], None).unwrap();
        way(&dir);
        assert_fires(watch);
    }
}

#[test]
fn a_removed_ancestor_is_reported_while_it_is_open() {
    let dir = Dir::new();
    let watch = dir.watch(&["w/a/.git"], None).unwrap();
    let open = File::open(dir.path("w/a")).unwrap();
    dir.remove("w/a");
    assert_fires(watch);
    drop(open);
}

#[test]
fn a_file_on_the_way_is_replaced_by_a_directory() {
    let dir = Dir::new();
    let watch = dir.watch(&["w/other/deep/.git"], None).unwrap();
    dir.remove("w/other");
    assert_fires(watch);
}

#[test]
fn the_present_path_changes_in_any_way() {
    let ways: [Change; 7] = [
        |dir| dir.write("w/marker"),
        |dir| File::options().write(true).open(dir.path("w/marker")).unwrap().set_len(1).unwrap(),
        |dir| fs::set_permissions(dir.path("w/marker"), Permissions::from_mode(0o600)).unwrap(),
        |dir| dir.rename("w/other", "w/marker"),
        |dir| dir.rename("w/marker", "w/moved"),
        |dir| dir.remove("w/marker"),
        |dir| dir.rename("w", "z"),
    ];
    for way in ways {
        let dir = Dir::new();
        dir.write("w/marker");
        let watch = dir.watch(&["w/a/marker"], Some("w/marker")).unwrap();
        way(&dir);
        assert_fires(watch);
    }
}

#[test]
fn a_present_directory_is_not_its_entries() {
    let dir = Dir::new();
    let watch = dir.watch(&["w/a/.git"], Some("w")).unwrap();
    dir.write("w/other");
    dir.write("w/new");
    dir.remove("w/new");
    fs::set_permissions(dir.path("w/a"), Permissions::from_mode(0o700)).unwrap();
    assert_quiet(&watch);
    fs::set_permissions(dir.path("w"), Permissions::from_mode(0o700)).unwrap();
    assert_fires(watch);
}

#[test]
fn one_directory_reports_all_its_watched_names() {
    let ways: [Change; 3] = [
        |dir| dir.mkdir("w/.git"),
        |dir| dir.remove("w/a"),
        |dir| fs::set_permissions(dir.path("w"), Permissions::from_mode(0o700)).unwrap(),
    ];
    for way in ways {
        let dir = Dir::new();
        let watch = dir.watch(&["w/.git", "w/a/.git"], Some("w")).unwrap();
        way(&dir);
        assert_fires(watch);
    }
}

#[test]
fn unrelated_siblings_do_not_matter() {
    let dir = Dir::new();
    dir.write("w/marker");
    let watch = dir.watch(&["w/a/b/.git", "w/.git", ".git"], Some("w/marker")).unwrap();
    // The same names in other directories, other names in the same directories, and read access.
    dir.mkdir("w/a/.git");
    dir.mkdir("w/b");
    dir.write("w/.gitignore");
    dir.rename("w/.gitignore", "w/a/marker");
    dir.write("w/other");
    dir.remove("w/other");
    dir.mkdir("z");
    dir.remove("z");
    assert_eq!(fs::read(dir.path("w/marker")).unwrap(), b"text");
    assert_eq!(fs::read_dir(dir.path("w")).unwrap().count(), 3);
    assert_quiet(&watch);
    dir.mkdir("w/a/b");
    assert_fires(watch);
}

#[test]
fn waiting_skips_irrelevant_events() {
    let dir = Dir::new();
    let watch = dir.watch(&["w/.git"], None).unwrap();
    run(async {
        let mut changed = std::pin::pin!(watch.changed());
        // More than one buffer of events.
        for number in 0..500 {
            dir.write(&format!("w/{number}"));
        }
        assert!(
            std::future::poll_fn(|cx| Poll::Ready(changed.as_mut().poll(cx).is_pending())).await
        );
        dir.write("w/.git");
        tokio::time::timeout(DEADLINE, changed).await.expect("the change is reported").unwrap();
    });
}

#[test]
fn a_full_queue_matters() {
    let dir = Dir::new();
    let watch = dir.watch(&["w/.git"], None).unwrap();
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    // Two names in turn, because an event that equals the last one is not queued.
    for _ in 0..=limit.trim().parse::<usize>().unwrap() / 2 {
        dir.rename("w/other", "w/another");
        dir.rename("w/another", "w/other");
    }
    assert_fires(watch);
}

#[test]
fn an_unmount_and_the_end_of_a_watch_matter() {
    let names = Names(BTreeMap::from([(1, BTreeSet::from([OsString::from(".git")]))]));
    for event in [ReadFlags::UNMOUNT, ReadFlags::IGNORED, ReadFlags::QUEUE_OVERFLOW] {
        assert_eq!(names.judge(1, event, None), Matters::Yes);
    }
    assert_eq!(names.judge(1, ReadFlags::CREATE, Some(c".git")), Matters::Yes);
    assert_eq!(names.judge(2, ReadFlags::CREATE, Some(c".git")), Matters::No);
    assert_eq!(names.judge(1, ReadFlags::MODIFY, Some(c".git")), Matters::No);
}

#[test]
fn a_watch_is_refused_with_a_reason() {
    let dir = Dir::new();
    symlink("nowhere", dir.path("dangling")).unwrap();
    symlink("w", dir.path("link")).unwrap();
    let refused = |missing: &[&str], present| dir.shown(&dir.watch(missing, present).unwrap_err());
    assert_eq!(refused(&[], None), "there is no path to watch");
    assert_eq!(refused(&[], Some("w")), "there is no path to watch");
    assert_eq!(refused(&["x", "w/a"], None), "`w/a` exists");
    assert_eq!(refused(&["x", "w/other"], None), "`w/other` exists");
    assert_eq!(refused(&["/"], None), "`/` exists");
    assert_eq!(refused(&["dangling"], None), "`dangling` is a link");
    assert_eq!(refused(&["link/x"], None), "`link` is a link");
    assert_eq!(refused(&["x"], Some("y")), "`y` does not exist");
    assert_eq!(refused(&["x"], Some("w/other/y")), "`w/other/y` does not exist");
    assert_eq!(refused(&["x"], Some("link")), "`link` is a link");
    assert_eq!(refused(&["x"], Some("link/other")), "`link` is a link");
    let silent = |path| format!("`{path}` is on a file system whose changes are not all reported");
    assert_eq!(refused(&["/proc/no-such-thing"], None), silent("/proc"));
    assert_eq!(refused(&["x"], Some("/proc/version")), silent("/proc"));
    let long = "n".repeat(300);
    assert_eq!(refused(&[&long], None), format!("`{long}` cannot be watched"));
}

#[test]
fn the_number_of_paths_and_directories_is_limited() {
    let dir = Dir::new();
    let names: Vec<String> = (0..=MAX_WATCHED_PATHS).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    dir.watch(&names[1..], None).unwrap();
    assert!(matches!(dir.watch(&names, None), Err(NotWatched::TooMany)));

    let deep = "d/".repeat(MAX_STEPS) + "x";
    fs::create_dir_all(dir.path(&deep)).unwrap();
    assert!(matches!(dir.watch(&[&(deep + "/.git")], None), Err(NotWatched::TooMany)));
}

#[test]
fn an_unreadable_directory_cannot_be_watched() {
    if rustix::process::geteuid().is_root() {
        // Root may read everything.
        return;
    }
    let dir = Dir::new();
    fs::set_permissions(dir.path("w"), Permissions::from_mode(0o311)).unwrap();
    let Err(NotWatched::Unwatchable { path, source }) = dir.watch(&["w/a/.git"], None) else {
        panic!("an unreadable directory cannot be watched");
    };
    assert_eq!((path, source.kind()), (dir.path("w"), io::ErrorKind::PermissionDenied));
    fs::set_permissions(dir.path("w"), Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_change_between_survey_and_watch_is_rejected() {
    let changes: [(Change, &str); 5] = [
        (|_| (), "watching"),
        (|dir| dir.write("w/a/.git"), "`w/a/.git` exists"),
        (|dir| dir.mkdir("w/a/b"), "the paths are being changed"),
        (|dir| dir.rename("new/a", "w/a"), "the paths are being changed"),
        (|dir| dir.rename("new/other", "w/other"), "the paths are being changed"),
    ];
    for (change, answer) in changes {
        let dir = Dir::new();
        dir.mkdir("new");
        dir.mkdir("new/a");
        dir.write("new/other");
        let missing = [dir.path("w/a/.git"), dir.path("w/a/b/.git")];
        let present = dir.path("w/other");
        let survey = Survey::new(&missing, Some(&present)).unwrap();
        change(&dir);
        let shown = match MissingWatch::begin(&survey, &missing, Some(&present)) {
            Ok(_) => "watching".to_owned(),
            Err(refusal) => dir.shown(&refusal),
        };
        assert_eq!(shown, answer);
    }
}

#[test]
fn a_change_during_the_setup_is_rejected_or_reported() {
    let dir = Dir::new();
    for _ in 0..100 {
        let started = std::sync::Barrier::new(2);
        let watch = std::thread::scope(|scope| {
            scope.spawn(|| {
                started.wait();
                dir.rename("w", "old");
                dir.mkdir("w");
                dir.mkdir("w/a");
                dir.write("w/a/.git");
            });
            started.wait();
            dir.watch(&["w/a/b/.git", "w/a/.git"], None)
        });
        if let Ok(watch) = watch {
            assert_fires(watch);
        }
        dir.remove("old");
        dir.remove("w/a/.git");
    }
}

/// Something that happens to a [`Dir`].
type Change = fn(&Dir);

/// A directory with `w/other`, a file, and `w/a`, an empty directory.
struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        // The paths must not contain a symbolic link, which the path of the temp directory may.
        let parent = std::env::temp_dir().canonicalize().unwrap();
        let dir = Self(tempfile::tempdir_in(parent).unwrap());
        dir.mkdir("w");
        dir.mkdir("w/a");
        dir.write("w/other");
        dir
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn watch(&self, missing: &[&str], present: Option<&str>) -> Result<MissingWatch, NotWatched> {
        let missing: Vec<PathBuf> = missing.iter().map(|path| self.path(path)).collect();
        MissingWatch::new(&missing, present.map(|path| self.path(path)).as_deref())
    }

    /// The error text with paths relative to this directory.
    fn shown(&self, refusal: &NotWatched) -> String {
        refusal.to_string().replace(&self.path("").display().to_string(), "")
    }

    fn mkdir(&self, path: &str) {
        fs::create_dir(self.path(path)).unwrap();
    }

    fn write(&self, path: &str) {
        fs::write(self.path(path), "text").unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    fn remove(&self, path: &str) {
        let path = self.path(path);
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }
}

#[track_caller]
fn assert_fires(watch: MissingWatch) {
    let changed = run(async { tokio::time::timeout(DEADLINE, watch.changed()).await });
    changed.expect("the change is reported").unwrap();
}

#[track_caller]
fn assert_quiet(watch: &MissingWatch) {
    loop {
        match watch.names.read_events(&watch.inotify) {
            Ok(matters) => assert_eq!(matters, Matters::No),
            Err(error) => return assert_eq!(error, Errno::AGAIN),
        }
    }
}

/// Accepts only futures that a task can run.
fn run<T>(future: impl Future<Output = T> + Send) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}
