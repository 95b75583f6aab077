//! The tag that all descendants of one child inherit.

/// Identifies the descendants of one child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TreeTag(pub(crate) u64);

/// 2^60 microseconds, which no program sets as a real limit.
pub(crate) const TAG_BASE: u64 = 1 << 60;
/// Bits of the server's pid in the tag, which separate the servers on one machine.
pub(crate) const SERVER_BITS: u32 = 28;

impl TreeTag {
    /// The tag of child number `child` of this server.
    pub fn new(child: u32) -> Self {
        let server = u64::from(std::process::id()) & ((1 << SERVER_BITS) - 1);
        Self(TAG_BASE | server << 32 | u64::from(child))
    }

    /// The child number in the tag.
    pub fn child(self) -> u32 {
        (self.0 & u64::from(u32::MAX)) as u32
    }
}
