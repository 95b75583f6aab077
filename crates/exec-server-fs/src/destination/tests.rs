use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::*;

/// The rules hold for the descriptors of Linux and for the paths of other platforms.
macro_rules! both {
    ($($name:ident)*) => {
        $(
            mod $name {
                #[test]
                fn by_descriptor() {
                    super::rules::$name::<super::Beneath>();
                }

                #[test]
                fn by_path() {
                    super::rules::$name::<super::by_path::Beneath>();
                }
            }
        )*
    };
}

both! {
    names_cannot_leave_the_root
    links_below_the_root_are_not_followed
    only_regular_files_are_replaced
    what_is_not_published_leaves_nothing
    attributes_are_kept_or_those_of_the_old_file
}

trait Destination: Sized {
    fn open(root: &Path) -> Self;
    fn directory(&self, names: &[&str]) -> io::Result<()>;
    fn write(&self, names: &[&str], content: &str, kept: Option<Kept>) -> io::Result<()>;
    fn begin_only(&self, names: &[&str]);
    /// Removes the staged file while its writer still has it.
    fn begin_and_remove(&self, names: &[&str]);
    fn link(&self, names: &[&str], target: &str) -> io::Result<()>;
    fn attributes(&self, names: &[&str], kept: Kept) -> io::Result<()>;
}

macro_rules! destination {
    ($beneath:ty) => {
        impl Destination for $beneath {
            fn open(root: &Path) -> Self {
                Self::open(root).unwrap()
            }

            fn directory(&self, names: &[&str]) -> io::Result<()> {
                self.create_directory(&words(names))
            }

            fn write(&self, names: &[&str], content: &str, kept: Option<Kept>) -> io::Result<()> {
                let mut staged = self.stage(&words(names), 0o644, "token")?;
                staged.file().write_all(content.as_bytes())?;
                staged.publish(kept)
            }

            fn begin_only(&self, names: &[&str]) {
                let mut staged = self.stage(&words(names), 0o644, "token").unwrap();
                staged.file().write_all(b"half").unwrap();
            }

            fn begin_and_remove(&self, names: &[&str]) {
                let aside = self.aside(&words(names), "token").unwrap();
                assert!(aside.remove().is_err(), "it is not there yet");
                let staged = self.stage(&words(names), 0o644, "token").unwrap();
                std::mem::forget(staged);
                aside.remove().unwrap();
            }

            fn link(&self, names: &[&str], target: &str) -> io::Result<()> {
                self.link(&words(names), Path::new(target), "token")
            }

            fn attributes(&self, names: &[&str], kept: Kept) -> io::Result<()> {
                self.set_attributes(&words(names), kept)
            }
        }
    };
}

destination!(Beneath);
destination!(by_path::Beneath);

fn words(names: &[&str]) -> Vec<OsString> {
    names.iter().map(OsString::from).collect()
}

mod rules {
    use super::*;

    fn refused(result: io::Result<()>, kind: io::ErrorKind) {
        assert_eq!(result.unwrap_err().kind(), kind);
    }

    pub fn names_cannot_leave_the_root<D: Destination>() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir(&root).unwrap();
        let beneath = D::open(&root);
        beneath.directory(&["a"]).unwrap();
        let wrong: [&[&str]; 9] = [
            &[],
            &[""],
            &["."],
            &[".."],
            &["a", ".."],
            &["..", "x"],
            &["../x"],
            &["/tmp/x"],
            &["a", "b\0c"],
        ];
        for names in wrong {
            refused(beneath.directory(names), io::ErrorKind::InvalidInput);
            refused(beneath.write(names, "x", None), io::ErrorKind::InvalidInput);
            refused(beneath.link(names, "x"), io::ErrorKind::InvalidInput);
        }
        assert_eq!(names_in(folder.path()), ["root"]);
        assert_eq!(names_in(&root), ["a"]);
    }

    pub fn links_below_the_root_are_not_followed<D: Destination>() {
        let folder = tempfile::tempdir().unwrap();
        let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
        std::fs::create_dir(&root).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("file"), "old").unwrap();
        symlink("root", folder.path().join("link to root")).unwrap();
        let beneath = D::open(&folder.path().join("link to root"));
        beneath.link(&["out"], "../outside").unwrap();
        beneath.link(&["file"], "../outside/file").unwrap();
        assert!(beneath.write(&["out", "new"], "x", None).is_err());
        assert!(beneath.directory(&["out", "new"]).is_err());
        assert!(beneath.link(&["out", "new"], "x").is_err());
        refused(beneath.directory(&["out"]), io::ErrorKind::AlreadyExists);
        refused(beneath.write(&["file"], "new", None), io::ErrorKind::AlreadyExists);
        let kept = Kept { mode: Some(0o700), modified: SystemTime::UNIX_EPOCH };
        assert!(beneath.attributes(&["out"], kept).is_err());
        assert_eq!(names_in(&outside), ["file"]);
        assert_eq!(std::fs::read(outside.join("file")).unwrap(), b"old");
        assert_ne!(std::fs::metadata(&outside).unwrap().modified().unwrap(), kept.modified);
        // A link replaces a link.
        beneath.link(&["out"], "elsewhere").unwrap();
        assert_eq!(std::fs::read_link(root.join("out")).unwrap(), Path::new("elsewhere"));
    }

    pub fn only_regular_files_are_replaced<D: Destination>() {
        let folder = tempfile::tempdir().unwrap();
        let beneath = D::open(folder.path());
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        let _socket = UnixListener::bind(folder.path().join("socket")).unwrap();
        std::fs::create_dir(folder.path().join("directory")).unwrap();
        for name in ["pipe", "socket", "directory"] {
            refused(beneath.write(&[name], "x", None), io::ErrorKind::AlreadyExists);
            refused(beneath.link(&[name], "x"), io::ErrorKind::AlreadyExists);
        }
        for name in ["pipe", "socket"] {
            refused(beneath.directory(&[name]), io::ErrorKind::AlreadyExists);
        }
        beneath.directory(&["directory"]).unwrap();
        beneath.write(&["file"], "one", None).unwrap();
        beneath.write(&["file"], "two", None).unwrap();
        assert_eq!(std::fs::read(folder.path().join("file")).unwrap(), b"two");
        assert_eq!(names_in(folder.path()), ["directory", "file", "pipe", "socket"]);
    }

    pub fn what_is_not_published_leaves_nothing<D: Destination>() {
        let folder = tempfile::tempdir().unwrap();
        let beneath = D::open(folder.path());
        beneath.begin_only(&["file"]);
        beneath.begin_only(&[&"n".repeat(255)]);
        beneath.begin_and_remove(&["file"]);
        beneath.begin_and_remove(&[&"n".repeat(255)]);
        assert!(names_in(folder.path()).is_empty());
        beneath.write(&[&"n".repeat(255)], "x", None).unwrap();
        assert_eq!(names_in(folder.path()), ["n".repeat(255)]);
    }

    pub fn attributes_are_kept_or_those_of_the_old_file<D: Destination>() {
        let folder = tempfile::tempdir().unwrap();
        let beneath = D::open(folder.path());
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let kept = Kept { mode: Some(0o750), modified };
        let facts = |name: &str| {
            let metadata = std::fs::metadata(folder.path().join(name)).unwrap();
            (metadata.permissions().mode() & 0o7777, metadata.modified().unwrap())
        };
        beneath.write(&["file"], "x", Some(kept)).unwrap();
        assert_eq!(facts("file"), (0o750, modified));
        beneath.write(&["file"], "y", None).unwrap();
        assert_eq!(facts("file").0, 0o750);
        assert_ne!(facts("file").1, modified);
        beneath.directory(&["directory"]).unwrap();
        beneath.attributes(&["directory"], kept).unwrap();
        assert_eq!(facts("directory"), (0o750, modified));
        beneath.attributes(&[], kept).unwrap();
        assert_eq!(facts(""), (0o750, modified));
    }

    fn names_in(path: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn paths_of_descriptors_are_known_also_through_links() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link");
    symlink("/proc/self/fd/7", &link).unwrap();
    let second = folder.path().join("second");
    symlink("link", &second).unwrap();
    assert_eq!(descriptor_of(&link), Some(7));
    assert_eq!(descriptor_of(&second), Some(7));
    assert_eq!(descriptor_of(Path::new("/proc/self/fd/1")), Some(1));
    assert_eq!(
        descriptor_of(&Path::new("/proc").join(std::process::id().to_string()).join("fd/2")),
        Some(2)
    );
    assert_eq!(descriptor_of(folder.path()), None);
    assert_eq!(descriptor_of(&folder.path().join("missing")), None);
    let looping = folder.path().join("looping");
    symlink("looping", &looping).unwrap();
    assert_eq!(descriptor_of(&looping), None);
    assert_eq!(descriptor_of(Path::new(OsStr::from_bytes(b"\xff"))), None);
}

#[test]
fn a_pipe_is_a_stream_and_is_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let kind = |name: &str| std::fs::metadata(folder.path().join(name)).unwrap().file_type();
    for is_stream in [is_stream, by_path::is_stream] {
        assert!(is_stream(kind("pipe")) && !is_stream(kind("file")) && !is_stream(kind("")));
    }
    for open in [open_stream, by_path::open_stream] {
        // A reader that is there already, so that opening does not wait.
        let mut reader = std::fs::OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        open(&pipe).unwrap().write_all(b"hello").unwrap();
        let mut read = [0; 5];
        std::io::Read::read_exact(&mut reader, &mut read).unwrap();
        assert_eq!(&read, b"hello");
    }
}
