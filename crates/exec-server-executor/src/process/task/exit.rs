//! Describes the exit of the root process.

use std::io;
use std::time::Duration;

use exec_server_core::process_log::Exit;
use exec_server_os::spawn::ExitStatus;
use exec_server_protocol::duration::millis;
use exec_server_protocol::process::{ExitDetails, ExitReason, ResourceUsage};

use super::ProcessTask;
use crate::audit::Exited;
use crate::process::denial;

impl ProcessTask {
    pub(super) fn describe_exit(&self, status: io::Result<ExitStatus>, duration: Duration) -> Exit {
        let status = match status {
            Ok(status) => status,
            // The child was reaped outside of this server, so its status is lost; -1 marks a lost status.
            Err(error) => {
                tracing::error!(%error, process_id = %self.config.id, "cannot read the exit status of a process");
                return Exit { code: -1, sandbox_denied: false, details: ExitDetails::default() };
            }
        };
        let details = ExitDetails {
            signal: status.signal.map(exec_server_os::signal_name),
            reason: Some(self.exit_reason(status.signal)),
            duration_ms: Some(millis(duration)),
            rusage: Some(ResourceUsage {
                user_ms: millis(status.user),
                system_ms: millis(status.system),
                max_rss_bytes: status.max_rss,
            }),
        };
        let sandbox_denied = self.config.sandbox.as_ref().is_some_and(|sandbox| {
            denial::looks_denied(status.code, sandbox.refused.count(), &self.log.read(0, None))
        });
        Exit { code: status.code, sandbox_denied, details }
    }

    /// Adds the exit to the audit log.
    pub(super) fn record_exit(&self, exit: &Exit) {
        let Some(audit) = &self.config.audit else { return };
        audit.exited(&Exited {
            process_id: &self.config.id,
            pid: self.child.pid,
            exit_code: exit.code,
            signal: exit.details.signal.as_deref(),
            reason: exit.details.reason,
            duration_ms: exit.details.duration_ms,
            sandbox_denied: exit.sandbox_denied,
        });
    }

    fn exit_reason(&self, signal: Option<i32>) -> ExitReason {
        match (self.termination.reason(), signal) {
            (Some(reason), _) => reason,
            (None, None) => ExitReason::Exited,
            (None, Some(exec_server_os::SIGKILL)) if self.was_oom_killed() => ExitReason::OomKilled,
            (None, Some(_)) => ExitReason::Signaled,
        }
    }

    /// A cgroup counts its own OOM kills; without one only the machine's counter is available.
    fn was_oom_killed(&self) -> bool {
        self.child.tree.had_oom_kill().unwrap_or_else(|| self.server.oom.take_kill())
    }
}
