//! Decides which policies Landlock and seccomp can enforce where namespaces are not available.
//!
//! Landlock has only allow rules, so nothing below an allowed directory can be denied. It does not hide files either,
//! so a policy that requires hidden files cannot be enforced. Protected names are enforced in part: a policy with an
//! existing one is rejected, but Landlock cannot prevent that a missing one is created. Reports name this gap.

use std::path::{Path, PathBuf};

use exec_server_protocol::sandbox::Network;

use super::{Access, FilePolicy, Policy};

/// A part of a policy that requires namespaces and mounts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BeyondLandlock {
    /// The sockets of local services and of the server would be reachable.
    #[error("with the network enabled it cannot hide the sockets of this machine's services")]
    Network,
    /// Landlock does not hide names.
    #[error("it cannot hide what the policy does not make readable")]
    HiddenFiles,
    /// A denied path inside a readable one.
    #[error("it cannot deny {} inside of what can be read", .0.display())]
    Denied(PathBuf),
    /// A deny pattern inside a readable path.
    #[error("it cannot deny what a pattern matches")]
    DeniedPattern,
    /// A read-only path inside a writable one.
    #[error("it cannot keep {} read-only inside of a writable directory", .0.display())]
    CarveOut(PathBuf),
    /// Kernel interfaces of the host would be reachable.
    #[error("it cannot make {} writable without the kernel's own files and devices", .0.display())]
    KernelFiles(PathBuf),
}

/// Kernel files and devices, which are private in a sandbox with namespaces.
const KERNEL_FILES: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Whether Landlock alone can enforce the policy; the error names the first part that it cannot.
///
/// The returned paths are protected names: if one of them exists, the policy cannot be enforced either.
pub fn can_hold(policy: &Policy) -> Result<Vec<PathBuf>, BeyondLandlock> {
    if policy.network == Network::Enabled {
        return Err(BeyondLandlock::Network);
    }
    let rules = match &policy.files {
        FilePolicy::Unrestricted => return Err(BeyondLandlock::KernelFiles("/".into())),
        FilePolicy::Restricted(rules) => rules,
    };
    if rules.deny_globs().next().is_some() {
        return Err(BeyondLandlock::DeniedPattern);
    }
    if let Some(path) = rules.denied_paths().first() {
        return Err(BeyondLandlock::Denied(path.to_path_buf()));
    }
    if rules.full_disk() < Access::Read {
        return Err(BeyondLandlock::HiddenFiles);
    }
    let protected = rules.protected_names();
    let protected: Vec<PathBuf> = protected.iter().map(|it| it.root.join(it.name)).collect();
    let is_named = |path: &&Path| !protected.iter().any(|name| name == path);
    if let Some(path) = rules.read_only_carve_outs().into_iter().find(is_named) {
        return Err(BeyondLandlock::CarveOut(path.to_owned()));
    }
    let meets_the_kernel = |root: &&Path| {
        KERNEL_FILES.iter().any(|path| root.starts_with(path) || Path::new(path).starts_with(root))
    };
    match rules.writable_roots().into_iter().find(meets_the_kernel) {
        Some(root) => Err(BeyondLandlock::KernelFiles(root.to_owned())),
        None => Ok(protected),
    }
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::path_uri::NativePaths;
    use serde_json::{Value, json};

    use super::super::{HostFacts, PROTECTED_NAMES, compile};
    use super::*;

    fn special(kind: &str, access: &str) -> Value {
        json!({"path": {"type": "special", "value": {"kind": kind}}, "access": access})
    }

    fn at(path: &str, access: &str) -> Value {
        json!({"path": {"type": "path", "path": format!("file://{path}")}, "access": access})
    }

    fn judged(network: &str, files: Value) -> Result<Vec<PathBuf>, BeyondLandlock> {
        let sandbox = json!({
            "permissions": {"type": "managed", "network": network, "file_system": files},
            "windowsSandboxLevel": "disabled",
        });
        let facts = HostFacts {
            tmpdir: None,
            has_slash_tmp: true,
            home: None,
            minimal: vec!["/usr".into()],
            native_paths: NativePaths::Reject,
        };
        can_hold(&compile(&serde_json::from_value(sandbox).unwrap(), &facts).unwrap())
    }

    fn with(entries: Vec<Value>) -> Result<Vec<PathBuf>, BeyondLandlock> {
        judged("restricted", json!({"type": "restricted", "entries": entries}))
    }

    /// A policy that reads everything, plus `more`.
    fn reading_and(more: Vec<Value>) -> Result<Vec<PathBuf>, BeyondLandlock> {
        with([vec![special("root", "read")], more].concat())
    }

    fn names_below(root: &str) -> Vec<PathBuf> {
        PROTECTED_NAMES.map(|name| Path::new(root).join(name)).into()
    }

    #[test]
    fn read_only_can_be_held() {
        assert_eq!(reading_and(vec![]), Ok(vec![]));
        assert_eq!(reading_and(vec![at("/etc", "read"), special("minimal", "read")]), Ok(vec![]));
    }

    #[test]
    fn a_workspace_can_be_held_while_its_protected_names_are_missing() {
        assert_eq!(reading_and(vec![at("/w", "write")]), Ok(names_below("/w")));
        let both = reading_and(vec![at("/w", "write"), special("slash_tmp", "write")]);
        assert_eq!(both, Ok([names_below("/tmp"), names_below("/w")].concat()));
        // A protected name that is writable may exist.
        let lifted = reading_and(vec![at("/w", "write"), at("/w/.git", "write")]).unwrap();
        assert!(!lifted.contains(&PathBuf::from("/w/.git")), "{lifted:?}");
    }

    #[test]
    fn nothing_can_be_taken_away_inside_of_a_workspace() {
        let carved = Err(BeyondLandlock::CarveOut("/w/docs".into()));
        assert_eq!(reading_and(vec![at("/w", "write"), at("/w/docs", "read")]), carved);
    }

    #[test]
    fn a_denial_cannot_be_held() {
        let denied = Err(BeyondLandlock::Denied("/etc/secret".into()));
        assert_eq!(reading_and(vec![at("/etc/secret", "deny")]), denied);
        let pattern =
            json!({"path": {"type": "glob_pattern", "pattern": "/**/*.env"}, "access": "deny"});
        assert_eq!(reading_and(vec![pattern]), Err(BeyondLandlock::DeniedPattern));
    }

    #[test]
    fn what_is_not_readable_cannot_be_hidden() {
        for entries in [vec![], vec![special("minimal", "read")], vec![at("/w", "write")]] {
            assert_eq!(with(entries), Err(BeyondLandlock::HiddenFiles));
        }
    }

    #[test]
    fn a_network_cannot_be_given() {
        let files = json!({"type": "restricted", "entries": [special("root", "read")]});
        assert_eq!(judged("enabled", files), Err(BeyondLandlock::Network));
    }

    #[test]
    fn the_kernels_own_files_are_never_writable() {
        let kernel = |path: &str| Err(BeyondLandlock::KernelFiles(path.into()));
        assert_eq!(judged("restricted", json!({"type": "unrestricted"})), kernel("/"));
        assert_eq!(with(vec![special("root", "write")]), kernel("/"));
        for root in ["/proc", "/dev/shm", "/sys/fs/cgroup"] {
            assert_eq!(reading_and(vec![at(root, "write")]), kernel(root));
        }
    }
}
