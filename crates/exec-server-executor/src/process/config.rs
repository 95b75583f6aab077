//! The settings of a process, fixed at its start.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use exec_server_protocol::path_uri::PathUri;
use exec_server_protocol::process::{
    LimitsReport, OutputSpool, ProcessId, ProcessStartResponse, SandboxReport, SandboxType,
};
use exec_server_sandbox::RefusedCalls;
use exec_server_sandbox::plan::Placeholder;

use crate::audit::StartNote;
use crate::sessions::ClientKind;

/// The settings of one process, after defaults and limits were applied.
pub struct ProcessConfig {
    pub id: ProcessId,
    pub argv: Vec<String>,
    pub cwd: PathUri,
    pub is_terminal: bool,
    /// Whether the reply to the start has the process id.
    pub is_detailed: bool,
    pub retain_bytes: usize,
    pub retain_closed: Duration,
    pub waits_when_detached: bool,
    pub timeout: Option<Duration>,
    pub idle_timeout: Option<Duration>,
    pub client: ClientKind,
    /// Shared with the handles of the process; only the process task sets it.
    pub has_exited: Arc<AtomicBool>,
    pub limits: LimitsReport,
    /// The user, if the request names one.
    pub user: Option<String>,
    pub sandbox: Option<ProcessSandbox>,
    /// Size of the spool, if the request asks for one.
    pub spool_bytes: Option<u64>,
    /// Records the exit, if the server has an audit log.
    pub audit: Option<Box<StartNote>>,
}

/// The sandbox of one process.
pub struct ProcessSandbox {
    /// Held until the process tree is empty.
    pub placeholders: Vec<Placeholder>,
    pub report: SandboxReport,
    /// Calls that the sandbox has denied so far.
    pub refused: RefusedCalls,
}

impl ProcessConfig {
    /// The reply to the start request.
    pub fn start_response(&self, pid: u32) -> ProcessStartResponse {
        let sandbox = self.sandbox.as_ref().map(|sandbox| sandbox.report.clone());
        let sandbox_type =
            if sandbox.is_some() { SandboxType::LinuxSeccomp } else { SandboxType::None };
        let limits = Some(&self.limits).filter(|limits| !limits.is_empty()).cloned();
        let pid = self.is_detailed.then_some(pid);
        let output_spool = self.spool_bytes.map(|bytes| OutputSpool { max_bytes: Some(bytes) });
        let process_id = self.id.clone();
        ProcessStartResponse { process_id, sandbox_type, sandbox, limits, output_spool, pid }
    }
}
