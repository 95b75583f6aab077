//! Whether a sandboxed process failed because of its sandbox, as far as the kernel, its exit and its words tell.

use exec_server_protocol::process::ProcessReadResponse;

/// What programs say when the kernel refuses them something; clients rely on this very list.
const WORDS: [&str; 7] = [
    "operation not permitted",
    "permission denied",
    "read-only file system",
    "seccomp",
    "sandbox",
    "landlock",
    "failed to write file",
];

/// The exit of a process that a filter has killed.
const KILLED_BY_FILTER: i32 = 128 + 31;

/// Judges a failed process by how many calls the kernel is known to have refused, its exit code and its retained output.
pub fn looks_denied(exit_code: i32, refused: u64, retained: &ProcessReadResponse) -> bool {
    if exit_code == 0 {
        return false;
    }
    if refused > 0 || exit_code == KILLED_BY_FILTER {
        return true;
    }
    let mut said: Vec<u8> =
        retained.chunks.iter().flat_map(|chunk| chunk.chunk.0.iter().copied()).collect();
    said.make_ascii_lowercase();
    let said = String::from_utf8_lossy(&said);
    WORDS.iter().any(|word| said.contains(word))
}

#[cfg(test)]
mod tests {
    use exec_server_machines::process_log::ProcessLog;
    use exec_server_protocol::process::OutputStream;
    use std::time::Duration;

    use super::*;

    fn judged(exit_code: i32, output: &[&str]) -> bool {
        judged_with(exit_code, 0, output)
    }

    fn judged_with(exit_code: i32, refused: u64, output: &[&str]) -> bool {
        let mut log = ProcessLog::new(1 << 20, Duration::ZERO);
        for text in output {
            log.handle_output(OutputStream::Stderr, text.as_bytes());
        }
        looks_denied(exit_code, refused, &log.read(0, None))
    }

    #[test]
    fn a_failure_with_the_words_of_a_refusal_is_a_denial() {
        assert!(judged(1, &["touch: /x: Read-only file system"]));
        assert!(judged(2, &["Perm", "ission DENIED"]));
        assert!(judged(127, &["my sandbox game"]));
        assert!(judged(159, &[]));
    }

    #[test]
    fn a_failure_after_a_refusal_is_a_denial_whatever_is_said() {
        assert!(judged_with(6, 1, &["could not resolve host"]));
        assert!(!judged_with(0, 7, &[]));
    }

    #[test]
    fn a_success_or_another_failure_is_none() {
        assert!(!judged(0, &["Permission denied"]));
        assert!(!judged(1, &["No such file or directory"]));
    }
}
