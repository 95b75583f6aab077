//! Guesses whether a sandboxed process failed because of its sandbox, from denied calls, exit code and output.

use exec_server_protocol::process::ProcessReadResponse;

/// Messages that programs print after a denied call; clients depend on exactly this list.
const DENIAL_MESSAGES: [&str; 7] = [
    "operation not permitted",
    "permission denied",
    "read-only file system",
    "seccomp",
    "sandbox",
    "landlock",
    "failed to write file",
];

/// The exit code of a process that seccomp killed with SIGSYS.
const KILLED_BY_FILTER: i32 = 128 + 31;

/// `refused` is the number of calls that the sandbox is known to have denied; `retained` is the output in the log.
pub fn looks_denied(exit_code: i32, refused: u64, retained: &ProcessReadResponse) -> bool {
    if exit_code == 0 {
        return false;
    }
    if refused > 0 || exit_code == KILLED_BY_FILTER {
        return true;
    }
    let mut output: Vec<u8> =
        retained.chunks.iter().flat_map(|chunk| chunk.chunk.0.iter().copied()).collect();
    output.make_ascii_lowercase();
    let output = String::from_utf8_lossy(&output);
    DENIAL_MESSAGES.iter().any(|message| output.contains(message))
}

#[cfg(test)]
mod tests {
    use exec_server_core::process_log::ProcessLog;
    use exec_server_protocol::process::OutputStream;
    use std::time::Duration;

    use super::*;

    fn judged(exit_code: i32, output: &[&str]) -> bool {
        judged_with(exit_code, 0, output)
    }

    fn judged_with(exit_code: i32, refused: u64, output: &[&str]) -> bool {
        let mut log = ProcessLog::new(1 << 20, Duration::ZERO);
        for text in output {
            log.handle_output(OutputStream::Stderr, text.as_bytes(), 0);
        }
        looks_denied(exit_code, refused, &log.read(0, None))
    }

    #[test]
    fn a_failure_that_prints_a_denial_message_is_a_denial() {
        assert!(judged(1, &["touch: /x: Read-only file system"]));
        assert!(judged(2, &["Perm", "ission DENIED"]));
        assert!(judged(127, &["my sandbox game"]));
        assert!(judged(159, &[]));
    }

    #[test]
    fn a_failure_after_a_denied_call_is_a_denial_with_any_output() {
        assert!(judged_with(6, 1, &["could not resolve host"]));
        assert!(!judged_with(0, 7, &[]));
    }

    #[test]
    fn a_success_or_another_failure_is_not_a_denial() {
        assert!(!judged(0, &["Permission denied"]));
        assert!(!judged(1, &["No such file or directory"]));
    }
}
