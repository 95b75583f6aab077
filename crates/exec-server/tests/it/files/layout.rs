//! Trees for tests to begin with.

use std::os::unix::fs::PermissionsExt;

use exec_server_testkit::desk::Desk;

/// Makes files that hold their own paths and, where a path ends in a slash, directories.
pub fn make(desk: &Desk, paths: &[&str]) {
    for path in paths {
        let full = desk.path(path);
        if path.ends_with('/') {
            std::fs::create_dir_all(full).unwrap();
        } else {
            std::fs::create_dir_all(full.parent().unwrap()).unwrap();
            desk.put(path, path);
        }
    }
}

/// Changes the permission bits of a name.
pub fn set_mode(desk: &Desk, name: &str, mode: u32) {
    std::fs::set_permissions(desk.path(name), PermissionsExt::from_mode(mode)).unwrap();
}
