//! The file system that a sandboxed command sees, and how it is mounted.
//!
//! Owner: pid 1 of a sandbox, before it starts the command. It has its own user, mount and pid namespaces, all
//! capabilities in them, and one thread.
//!
//! ```text
//! clone / or make an empty root ──> /dev, /proc ══> resolve every path ──> plan ──> mounts, outer first ──> seal ──> pivot
//!          (new_root)             (dev, proc)    (walk, resolved_rules)   (plan)        (apply)           (new_root)
//!                 [`BaseRootfs`], may be made ahead ══> the policy
//! ```
//!
//! Invariant: every path is resolved on the host before the first mount, and a mount never follows a link: its source is
//! a descriptor, and its target is resolved below the new root without links.

mod apply;
mod base_rootfs;
mod dev;
mod kernel_mounts;
mod masks;
mod mounts;
mod new_root;
mod old_root;
mod plan;
mod proc;
mod resolved_rules;
mod terminals;
mod walk;
mod writable_root;

pub use self::base_rootfs::{BaseRootfs, RootfsProfile};
pub use self::old_root::OldRoot;
pub use self::proc::remember_names;
pub use self::writable_root::check_writable_root;
pub use crate::setup::{Base, DEFAULT_TEMP_BYTES, MountAccess, MountRule, RootfsSpec};

#[cfg(test)]
mod tests;
