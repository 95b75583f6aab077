//! `cp` with pipes, devices and `-`: they are written to, and never replaced.

use std::io::Read;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use exec_server_testkit::TestExecutor;
use rustix::fs::{CWD, FileType, Mode, mkfifoat, mknodat};

use super::{Ran, cli, cli_with, command, finish, ran};

/// A server and a directory that both sides use.
struct CopyFixture {
    server: TestExecutor,
    folder: tempfile::TempDir,
}

impl CopyFixture {
    async fn start() -> Self {
        Self { server: TestExecutor::start().await, folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn local(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn remote(&self, name: &str) -> String {
        format!("{}:{}", self.server.url(), self.local(name))
    }

    fn pipe(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        mkfifoat(CWD, &path, Mode::RWXU).unwrap();
        path
    }
}

/// Reads a pipe to its end while a copy writes to it.
fn read_to_end(path: &Path) -> tokio::task::JoinHandle<Vec<u8>> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || std::fs::read(path).unwrap())
}

fn is_pipe(path: &Path) -> bool {
    std::fs::symlink_metadata(path).unwrap().file_type().is_fifo()
}

#[tokio::test]
async fn a_pipe_gets_the_content_and_stays_a_pipe() {
    let fixture = CopyFixture::start().await;
    let content = vec![0x5a; 3_000_001];
    std::fs::write(fixture.path("large"), &content).unwrap();
    std::fs::write(fixture.path("small"), "small").unwrap();
    let pipe = fixture.pipe("pipe");
    symlink("pipe", fixture.path("link")).unwrap();
    for (destination, source) in [("pipe", "large"), ("pipe", "small"), ("link", "large")] {
        let reading = read_to_end(&pipe);
        let copied = cli(&["cp", &fixture.remote(source), &fixture.local(destination)]).await;
        assert_eq!(copied, ran(0, "", ""), "{destination}");
        assert!(is_pipe(&pipe), "{destination}");
        assert!(reading.await.unwrap() == std::fs::read(fixture.path(source)).unwrap());
    }
    assert!(std::fs::symlink_metadata(fixture.path("link")).unwrap().is_symlink());
}

#[tokio::test]
async fn a_pipe_is_also_a_source() {
    let fixture = CopyFixture::start().await;
    let content = vec![0xa5; 2_500_000];
    let pipe = fixture.pipe("pipe");
    std::fs::create_dir(fixture.path("directory")).unwrap();
    for (destination, copy) in [("copy", "copy"), ("directory", "directory/pipe")] {
        let (pipe, text) = (pipe.clone(), content.clone());
        let writing = tokio::task::spawn_blocking(move || std::fs::write(pipe, text).unwrap());
        let copied = cli(&["cp", &fixture.local("pipe"), &fixture.remote(destination)]).await;
        assert_eq!(copied, ran(0, "", ""));
        writing.await.unwrap();
        assert!(std::fs::read(fixture.path(copy)).unwrap() == content, "{destination}");
    }
}

#[tokio::test]
async fn a_device_is_written_to_and_stays_a_device() {
    let fixture = CopyFixture::start().await;
    std::fs::write(fixture.path("file"), "content").unwrap();
    let device = fixture.path("null");
    let mode = Mode::from_raw_mode(0o666);
    // Device numbers of `/dev/null`.
    let made = mknodat(CWD, &device, FileType::CharacterDevice, mode, rustix::fs::makedev(1, 3));
    if made.is_err() || std::fs::OpenOptions::new().write(true).open(&device).is_err() {
        eprintln!("skipped: only root can make and use a device in this place");
        return;
    }
    symlink("null", fixture.path("link")).unwrap();
    for destination in ["null", "link"] {
        let copied = cli(&["cp", &fixture.remote("file"), &fixture.local(destination)]).await;
        assert_eq!(copied, ran(0, "", ""), "{destination}");
        assert!(std::fs::symlink_metadata(&device).unwrap().file_type().is_char_device());
    }
    assert!(std::fs::symlink_metadata(fixture.path("link")).unwrap().is_symlink());
    let copied = cli(&["cp", &fixture.local("null"), &fixture.remote("empty")]).await;
    assert_eq!(copied, ran(0, "", ""));
    assert_eq!(std::fs::read(fixture.path("empty")).unwrap(), b"");
}

#[tokio::test]
async fn a_socket_is_refused() {
    let fixture = CopyFixture::start().await;
    std::fs::write(fixture.path("file"), "content").unwrap();
    let socket = std::os::unix::net::UnixListener::bind(fixture.path("socket")).unwrap();
    symlink("socket", fixture.path("link")).unwrap();
    for destination in ["socket", "link"] {
        let refused = cli(&["cp", &fixture.remote("file"), &fixture.local(destination)]).await;
        assert_eq!(refused.code, 1);
        assert!(refused.err.contains("is a socket"), "{}", refused.err);
    }
    assert!(std::fs::symlink_metadata(fixture.path("socket")).unwrap().file_type().is_socket());
    drop(socket);
}

#[tokio::test]
async fn a_pipe_on_the_server_is_left_as_it_is() {
    let fixture = CopyFixture::start().await;
    std::fs::write(fixture.path("file"), "content").unwrap();
    let pipe = fixture.pipe("pipe");
    let refused = cli(&["cp", &fixture.local("file"), &fixture.remote("pipe")]).await;
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("is a pipe, a socket or a device"), "{}", refused.err);
    assert!(is_pipe(&pipe));
}

#[tokio::test]
async fn a_dash_is_stdin_or_stdout() {
    let fixture = CopyFixture::start().await;
    let content = "line\n".repeat(500_000);
    let stored = cli_with(&["cp", "-", &fixture.remote("copy")], content.as_bytes()).await;
    assert_eq!(stored, ran(0, "", ""));
    assert!(std::fs::read(fixture.path("copy")).unwrap() == content.as_bytes());
    assert_eq!(cli_with(&["cp", "-", &fixture.remote("empty")], b"").await, ran(0, "", ""));
    assert_eq!(std::fs::read(fixture.path("empty")).unwrap(), b"");
    let printed = cli(&["cp", &fixture.remote("copy"), "-"]).await;
    assert!(printed == ran(0, &content, ""), "{}", printed.err);
    assert_eq!(cli(&["cp", &fixture.remote("empty"), "-"]).await, ran(0, "", ""));
}

#[tokio::test]
async fn invalid_combinations_with_a_stream_are_rejected() {
    let fixture = CopyFixture::start().await;
    std::fs::write(fixture.path("file"), "content").unwrap();
    std::fs::create_dir(fixture.path("directory")).unwrap();
    let pipe = fixture.pipe("pipe");
    let (file, remote_folder, folder) =
        (fixture.remote("file"), fixture.remote("directory"), fixture.local("directory"));
    let local_pipe = fixture.local("pipe");
    let cases: &[(&[&str], &str)] = &[
        (&["-", "-"], "cannot be both"),
        (&["-", &folder], "are both on this machine"),
        (&[&local_pipe, "-"], "are both on this machine"),
        (&[&file, &file, "-"], "several files need a directory"),
        (&[&file, &file, &local_pipe], "several files need a directory"),
        (&["-", "-", &remote_folder], "only once"),
        (&["-p", &file, "-"], "-p preserves"),
        (&["-p", &file, &local_pipe], "-p preserves"),
        (&["-p", "-", &file], "-p preserves"),
        (&["-r", &remote_folder, "-"], "is no file"),
        (&["-r", &remote_folder, &local_pipe], "is no file"),
        (&[&remote_folder, "-"], "use -r to copy it"),
        (&["-", &remote_folder], "add a file name"),
        (&[&fixture.remote("missing"), "-"], "no such file"),
        (&[&fixture.remote("pipe"), "-"], "is no file"),
    ];
    for (arguments, told) in cases {
        let refused = cli(&[&["cp"], *arguments].concat()).await;
        assert_eq!((refused.code, refused.out.as_str()), (1, ""), "{arguments:?}");
        assert!(refused.err.contains(told), "{arguments:?}: {}", refused.err);
    }
    assert!(is_pipe(&pipe));
    assert_eq!(std::fs::read(fixture.path("file")).unwrap(), b"content");
    assert_eq!(std::fs::read_dir(fixture.path("directory")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_path_of_stdout_is_stdout_and_its_file_is_not_replaced() {
    let fixture = CopyFixture::start().await;
    std::fs::write(fixture.path("file"), "content\n").unwrap();
    symlink("/proc/self/fd/1", fixture.path("out")).unwrap();
    std::fs::write(fixture.path("log"), "before\n").unwrap();
    let log = std::fs::OpenOptions::new().append(true).open(fixture.path("log")).unwrap();
    let copied = command(&["cp", &fixture.remote("file"), &fixture.local("out")])
        .stdout(Stdio::from(log.try_clone().unwrap()))
        .spawn()
        .unwrap();
    assert_eq!(finish(copied).await, ran(0, "", ""));
    assert_eq!(std::fs::read(fixture.path("log")).unwrap(), b"before\ncontent\n");
    let same = |file: &std::fs::Metadata| std::os::unix::fs::MetadataExt::ino(file);
    let path = std::fs::metadata(fixture.path("log")).unwrap();
    assert_eq!(same(&log.metadata().unwrap()), same(&path));
    assert!(std::fs::symlink_metadata(fixture.path("out")).unwrap().is_symlink());
    let printed = cli(&["cp", &fixture.remote("file"), &fixture.local("out")]).await;
    assert_eq!(printed, ran(0, "content\n", ""));
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_the_copy() {
    let fixture = CopyFixture::start().await;
    std::fs::write(fixture.path("large"), vec![0x5a; 20_000_000]).unwrap();
    let mut copying = command(&["cp", &fixture.remote("large"), "-"]).spawn().unwrap();
    drop(copying.stdout.take());
    assert_eq!(finish(copying).await, ran(141, "", ""));
    let pipe = fixture.pipe("pipe");
    let copying =
        command(&["cp", &fixture.remote("large"), &fixture.local("pipe")]).spawn().unwrap();
    let path = pipe.clone();
    tokio::task::spawn_blocking(move || {
        let mut some = [0; 1000];
        std::fs::File::open(path).unwrap().read_exact(&mut some).unwrap();
    })
    .await
    .unwrap();
    let Ran { code, err, .. } = finish(copying).await;
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("pipe") && err.contains("incomplete"), "{err}");
    assert!(is_pipe(&pipe));
}

#[tokio::test]
async fn a_copy_that_waits_for_a_pipe_ends_with_a_signal() {
    let fixture = CopyFixture::start().await;
    std::fs::write(fixture.path("file"), "content").unwrap();
    let pipe = fixture.pipe("pipe");
    let copying =
        command(&["cp", &fixture.remote("file"), &fixture.local("pipe")]).spawn().unwrap();
    let pid = rustix::process::Pid::from_raw(copying.id().unwrap().cast_signed()).unwrap();
    // A thread that blocks in open shows that everything before is done.
    exec_server_testkit::eventually("the copy waits for a reader", || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
        tasks.flatten().any(|task| {
            std::fs::read_to_string(task.path().join("wchan"))
                .is_ok_and(|place| place.contains("fifo"))
                || std::fs::read_to_string(task.path().join("stack"))
                    .is_ok_and(|place| place.contains("fifo_open"))
        })
    })
    .await;
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(finish(copying).await.code, 130);
    assert!(is_pipe(&pipe));
}

#[tokio::test]
async fn in_a_tree_only_files_are_replaced_and_links_are_not_followed() {
    let fixture = CopyFixture::start().await;
    std::fs::create_dir_all(fixture.path("tree/linked")).unwrap();
    for name in ["pipe", "socket", "link", "linked/inner", "other"] {
        std::fs::write(fixture.path("tree").join(name), "new").unwrap();
    }
    std::fs::create_dir_all(fixture.path("copy/tree")).unwrap();
    std::fs::create_dir(fixture.path("outside")).unwrap();
    std::fs::write(fixture.path("outside/file"), "old").unwrap();
    let pipe = fixture.pipe("copy/tree/pipe");
    let _socket = std::os::unix::net::UnixListener::bind(fixture.path("copy/tree/socket")).unwrap();
    symlink("../../outside/file", fixture.path("copy/tree/link")).unwrap();
    symlink("../../outside", fixture.path("copy/tree/linked")).unwrap();
    let partly = cli(&["cp", "-r", &fixture.remote("tree"), &fixture.local("copy")]).await;
    assert_eq!(partly.code, 1, "{}", partly.err);
    for name in ["pipe", "socket", "link", "linked"] {
        let told = partly.err.lines().find(|line| line.contains(&format!("copy/tree/{name}: ")));
        assert!(told.is_some_and(|line| line.contains("in the way")), "{name}: {}", partly.err);
    }
    assert!(partly.err.contains("4 could not be copied"), "{}", partly.err);
    assert!(is_pipe(&pipe));
    assert_eq!(std::fs::read(fixture.path("outside/file")).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(fixture.path("outside")).unwrap().count(), 1);
    assert_eq!(std::fs::read(fixture.path("copy/tree/other")).unwrap(), b"new");
    // The same link as the destination itself is followed, because the user named it.
    let named = cli(&["cp", &fixture.remote("tree/other"), &fixture.local("copy/tree/link")]).await;
    assert_eq!(named, ran(0, "", ""));
    assert_eq!(std::fs::read(fixture.path("outside/file")).unwrap(), b"new");
    assert!(std::fs::symlink_metadata(fixture.path("copy/tree/link")).unwrap().is_symlink());
}
