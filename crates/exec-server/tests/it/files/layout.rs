//! Creates directory trees for tests.

use exec_server_testkit::fs_fixture::FsFixture;

/// Makes files that hold their own paths and, where a path ends in a slash, directories.
pub fn make(fixture: &FsFixture, paths: &[&str]) {
    for path in paths {
        let full = fixture.path(path);
        if path.ends_with('/') {
            std::fs::create_dir_all(full).unwrap();
        } else {
            std::fs::create_dir_all(full.parent().unwrap()).unwrap();
            fixture.put(path, path);
        }
    }
}
