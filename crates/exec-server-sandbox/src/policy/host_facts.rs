//! Facts about this host that determine the meaning of a policy.

use std::env;
use std::path::{Path, PathBuf};

use exec_server_protocol::path_uri::NativePaths;

use exec_server_os::host;

/// Directories that programs need to start, on common Linux systems.
const MINIMAL: [&str; 8] =
    ["/bin", "/sbin", "/usr", "/etc", "/lib", "/lib64", "/nix/store", "/run/current-system/sw"];

/// Facts about this server that a policy may refer to; a request cannot change them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostFacts {
    /// The server's own `TMPDIR`.
    pub tmpdir: Option<PathBuf>,
    /// Whether `/tmp` is a directory.
    pub has_slash_tmp: bool,
    /// The home of the server's user.
    pub home: Option<PathBuf>,
    /// Directories of the special path `minimal` that exist.
    pub minimal: Vec<PathBuf>,
    /// Whether native paths are accepted in place of a URI.
    pub native_paths: NativePaths,
}

impl HostFacts {
    /// Inspects this machine; once at start is enough.
    pub fn gather(native_paths: NativePaths) -> Self {
        let tmpdir = env::var_os("TMPDIR").map(PathBuf::from);
        Self {
            tmpdir: tmpdir.filter(|path| path.is_absolute()),
            has_slash_tmp: cfg!(unix) && Path::new("/tmp").is_dir(),
            home: host::home_dir(),
            minimal: MINIMAL.map(PathBuf::from).into_iter().filter(|path| path.is_dir()).collect(),
            native_paths,
        }
    }
}
