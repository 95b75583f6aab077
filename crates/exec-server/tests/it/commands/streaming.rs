//! `cp` with pipes, devices and `-`: bytes go into them, and nothing takes their place.

use std::io::Read;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use exec_server_testkit::TestExecutor;
use rustix::fs::{CWD, FileType, Mode, mkfifoat, mknodat};

use super::{Ran, cli, cli_with, command, finish, ran};

/// A server, and a folder that both sides use.
struct FsFixture {
    server: TestExecutor,
    folder: tempfile::TempDir,
}

impl FsFixture {
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

/// Reads a pipe to its end, beside a copy that writes to it.
fn read_to_end(path: &Path) -> tokio::task::JoinHandle<Vec<u8>> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || std::fs::read(path).unwrap())
}

fn is_pipe(path: &Path) -> bool {
    std::fs::symlink_metadata(path).unwrap().file_type().is_fifo()
}

#[tokio::test]
async fn a_pipe_gets_the_content_and_stays_a_pipe() {
    let desk = FsFixture::start().await;
    let content = vec![0x5a; 3_000_001];
    std::fs::write(desk.path("large"), &content).unwrap();
    std::fs::write(desk.path("small"), "small").unwrap();
    let pipe = desk.pipe("pipe");
    symlink("pipe", desk.path("link")).unwrap();
    for (destination, source) in [("pipe", "large"), ("pipe", "small"), ("link", "large")] {
        let reading = read_to_end(&pipe);
        let copied = cli(&["cp", &desk.remote(source), &desk.local(destination)]).await;
        assert_eq!(copied, ran(0, "", ""), "{destination}");
        assert!(is_pipe(&pipe), "{destination}");
        assert!(reading.await.unwrap() == std::fs::read(desk.path(source)).unwrap());
    }
    assert!(std::fs::symlink_metadata(desk.path("link")).unwrap().is_symlink());
}

#[tokio::test]
async fn a_pipe_is_also_a_source() {
    let desk = FsFixture::start().await;
    let content = vec![0xa5; 2_500_000];
    let pipe = desk.pipe("pipe");
    std::fs::create_dir(desk.path("directory")).unwrap();
    for (destination, copy) in [("copy", "copy"), ("directory", "directory/pipe")] {
        let (pipe, text) = (pipe.clone(), content.clone());
        let writing = tokio::task::spawn_blocking(move || std::fs::write(pipe, text).unwrap());
        let copied = cli(&["cp", &desk.local("pipe"), &desk.remote(destination)]).await;
        assert_eq!(copied, ran(0, "", ""));
        writing.await.unwrap();
        assert!(std::fs::read(desk.path(copy)).unwrap() == content, "{destination}");
    }
}

#[tokio::test]
async fn a_device_is_written_to_and_stays_a_device() {
    let desk = FsFixture::start().await;
    std::fs::write(desk.path("file"), "content").unwrap();
    let device = desk.path("null");
    let mode = Mode::from_raw_mode(0o666);
    // The numbers of the device that swallows everything.
    let made = mknodat(CWD, &device, FileType::CharacterDevice, mode, rustix::fs::makedev(1, 3));
    if made.is_err() || std::fs::OpenOptions::new().write(true).open(&device).is_err() {
        eprintln!("skipped: only root can make and use a device in this place");
        return;
    }
    symlink("null", desk.path("link")).unwrap();
    for destination in ["null", "link"] {
        let copied = cli(&["cp", &desk.remote("file"), &desk.local(destination)]).await;
        assert_eq!(copied, ran(0, "", ""), "{destination}");
        assert!(std::fs::symlink_metadata(&device).unwrap().file_type().is_char_device());
    }
    assert!(std::fs::symlink_metadata(desk.path("link")).unwrap().is_symlink());
    let copied = cli(&["cp", &desk.local("null"), &desk.remote("empty")]).await;
    assert_eq!(copied, ran(0, "", ""));
    assert_eq!(std::fs::read(desk.path("empty")).unwrap(), b"");
}

#[tokio::test]
async fn a_socket_is_refused() {
    let desk = FsFixture::start().await;
    std::fs::write(desk.path("file"), "content").unwrap();
    let socket = std::os::unix::net::UnixListener::bind(desk.path("socket")).unwrap();
    symlink("socket", desk.path("link")).unwrap();
    for destination in ["socket", "link"] {
        let refused = cli(&["cp", &desk.remote("file"), &desk.local(destination)]).await;
        assert_eq!(refused.code, 1);
        assert!(refused.err.contains("is a socket"), "{}", refused.err);
    }
    assert!(std::fs::symlink_metadata(desk.path("socket")).unwrap().file_type().is_socket());
    drop(socket);
}

#[tokio::test]
async fn a_pipe_on_the_server_is_left_as_it_is() {
    let desk = FsFixture::start().await;
    std::fs::write(desk.path("file"), "content").unwrap();
    let pipe = desk.pipe("pipe");
    let refused = cli(&["cp", &desk.local("file"), &desk.remote("pipe")]).await;
    assert_eq!(refused.code, 1);
    assert!(refused.err.contains("is a pipe, a socket or a device"), "{}", refused.err);
    assert!(is_pipe(&pipe));
}

#[tokio::test]
async fn a_dash_is_stdin_or_stdout() {
    let desk = FsFixture::start().await;
    let content = "line\n".repeat(500_000);
    let stored = cli_with(&["cp", "-", &desk.remote("copy")], content.as_bytes()).await;
    assert_eq!(stored, ran(0, "", ""));
    assert!(std::fs::read(desk.path("copy")).unwrap() == content.as_bytes());
    assert_eq!(cli_with(&["cp", "-", &desk.remote("empty")], b"").await, ran(0, "", ""));
    assert_eq!(std::fs::read(desk.path("empty")).unwrap(), b"");
    let printed = cli(&["cp", &desk.remote("copy"), "-"]).await;
    assert!(printed == ran(0, &content, ""), "{}", printed.err);
    assert_eq!(cli(&["cp", &desk.remote("empty"), "-"]).await, ran(0, "", ""));
}

#[tokio::test]
async fn what_makes_no_sense_with_a_stream_is_refused() {
    let desk = FsFixture::start().await;
    std::fs::write(desk.path("file"), "content").unwrap();
    std::fs::create_dir(desk.path("directory")).unwrap();
    let pipe = desk.pipe("pipe");
    let (file, remote_folder, folder) =
        (desk.remote("file"), desk.remote("directory"), desk.local("directory"));
    let local_pipe = desk.local("pipe");
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
        (&[&desk.remote("missing"), "-"], "no such file"),
        (&[&desk.remote("pipe"), "-"], "is no file"),
    ];
    for (arguments, told) in cases {
        let refused = cli(&[&["cp"], *arguments].concat()).await;
        assert_eq!((refused.code, refused.out.as_str()), (1, ""), "{arguments:?}");
        assert!(refused.err.contains(told), "{arguments:?}: {}", refused.err);
    }
    assert!(is_pipe(&pipe));
    assert_eq!(std::fs::read(desk.path("file")).unwrap(), b"content");
    assert_eq!(std::fs::read_dir(desk.path("directory")).unwrap().count(), 0);
}

#[tokio::test]
async fn a_path_of_stdout_is_stdout_and_its_file_is_not_replaced() {
    let desk = FsFixture::start().await;
    std::fs::write(desk.path("file"), "content\n").unwrap();
    symlink("/proc/self/fd/1", desk.path("out")).unwrap();
    std::fs::write(desk.path("log"), "before\n").unwrap();
    let log = std::fs::OpenOptions::new().append(true).open(desk.path("log")).unwrap();
    let copied = command(&["cp", &desk.remote("file"), &desk.local("out")])
        .stdout(Stdio::from(log.try_clone().unwrap()))
        .spawn()
        .unwrap();
    assert_eq!(finish(copied).await, ran(0, "", ""));
    assert_eq!(std::fs::read(desk.path("log")).unwrap(), b"before\ncontent\n");
    let same = |file: &std::fs::Metadata| std::os::unix::fs::MetadataExt::ino(file);
    let path = std::fs::metadata(desk.path("log")).unwrap();
    assert_eq!(same(&log.metadata().unwrap()), same(&path));
    assert!(std::fs::symlink_metadata(desk.path("out")).unwrap().is_symlink());
    let printed = cli(&["cp", &desk.remote("file"), &desk.local("out")]).await;
    assert_eq!(printed, ran(0, "content\n", ""));
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_the_copy() {
    let desk = FsFixture::start().await;
    std::fs::write(desk.path("large"), vec![0x5a; 20_000_000]).unwrap();
    let mut copying = command(&["cp", &desk.remote("large"), "-"]).spawn().unwrap();
    drop(copying.stdout.take());
    assert_eq!(finish(copying).await, ran(141, "", ""));
    let pipe = desk.pipe("pipe");
    let copying = command(&["cp", &desk.remote("large"), &desk.local("pipe")]).spawn().unwrap();
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
    let desk = FsFixture::start().await;
    std::fs::write(desk.path("file"), "content").unwrap();
    let pipe = desk.pipe("pipe");
    let copying = command(&["cp", &desk.remote("file"), &desk.local("pipe")]).spawn().unwrap();
    let pid = rustix::process::Pid::from_raw(copying.id().unwrap().cast_signed()).unwrap();
    // The thread that waits in the open is the sign that everything before it is done.
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
    let desk = FsFixture::start().await;
    std::fs::create_dir_all(desk.path("tree/linked")).unwrap();
    for name in ["pipe", "socket", "link", "linked/inner", "other"] {
        std::fs::write(desk.path("tree").join(name), "new").unwrap();
    }
    std::fs::create_dir_all(desk.path("copy/tree")).unwrap();
    std::fs::create_dir(desk.path("outside")).unwrap();
    std::fs::write(desk.path("outside/file"), "old").unwrap();
    let pipe = desk.pipe("copy/tree/pipe");
    let _socket = std::os::unix::net::UnixListener::bind(desk.path("copy/tree/socket")).unwrap();
    symlink("../../outside/file", desk.path("copy/tree/link")).unwrap();
    symlink("../../outside", desk.path("copy/tree/linked")).unwrap();
    let partly = cli(&["cp", "-r", &desk.remote("tree"), &desk.local("copy")]).await;
    assert_eq!(partly.code, 1, "{}", partly.err);
    for name in ["pipe", "socket", "link", "linked"] {
        let told = partly.err.lines().find(|line| line.contains(&format!("copy/tree/{name}: ")));
        assert!(told.is_some_and(|line| line.contains("in the way")), "{name}: {}", partly.err);
    }
    assert!(partly.err.contains("4 could not be copied"), "{}", partly.err);
    assert!(is_pipe(&pipe));
    assert_eq!(std::fs::read(desk.path("outside/file")).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(desk.path("outside")).unwrap().count(), 1);
    assert_eq!(std::fs::read(desk.path("copy/tree/other")).unwrap(), b"new");
    // The same link as the destination itself is followed, because the user named it.
    let named = cli(&["cp", &desk.remote("tree/other"), &desk.local("copy/tree/link")]).await;
    assert_eq!(named, ran(0, "", ""));
    assert_eq!(std::fs::read(desk.path("outside/file")).unwrap(), b"new");
    assert!(std::fs::symlink_metadata(desk.path("copy/tree/link")).unwrap().is_symlink());
}
