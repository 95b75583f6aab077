//! Options of the audit log.

use std::num::NonZeroUsize;

use clap::Args;
use exec_server::config::{AuditConfig, AuditOnFull, AuditTarget};

const AUDIT: &str = "Audit log";

/// Where and how requests are recorded.
#[derive(Debug, Args)]
pub struct AuditOptions {
    /// Record who starts what, changes files or makes HTTP requests, as JSON lines: a file, journald, or
    /// journald:SOCKET. See docs/audit.md.
    #[arg(long, value_name = "FILE|journald", help_heading = AUDIT)]
    audit: Option<AuditTarget>,
    /// Rotate the audit file at this size.
    #[arg(long, value_name = "BYTES", help_heading = AUDIT, requires = "audit", default_value = "67108864")]
    audit_max_bytes: u64,
    /// Number of rotated audit files to keep.
    #[arg(long, value_name = "COUNT", help_heading = AUDIT, requires = "audit", default_value = "8")]
    audit_keep: NonZeroUsize,
    /// While the audit log cannot be written: refuse requests that must be recorded (block), or serve them and count the
    /// records that are missing (drop-and-count).
    #[arg(
        long,
        value_name = "block|drop-and-count",
        help_heading = AUDIT,
        requires = "audit",
        default_value = "block",
        hide_possible_values = true
    )]
    audit_on_full: AuditOnFull,
    /// Record the parameters of requests, too, with environment values, stdin and file content.
    #[arg(long, help_heading = AUDIT, requires = "audit")]
    audit_payloads: bool,
}

impl AuditOptions {
    pub fn config(&self) -> Option<AuditConfig> {
        self.audit.as_ref().map(|target| AuditConfig {
            target: target.clone(),
            max_bytes: self.audit_max_bytes,
            keep: self.audit_keep.get(),
            on_full: self.audit_on_full,
            payloads: self.audit_payloads,
        })
    }
}
