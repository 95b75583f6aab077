//! What a step of setting up the sandbox says when it fails.

use std::io;

/// One step failed, so nothing may be started in this sandbox.
#[derive(Debug, thiserror::Error)]
#[error("could not set up the sandbox ({step}): {source}")]
pub struct StepError {
    /// Names the step for the user, such as `seccomp`.
    pub step: &'static str,
    /// What the kernel said.
    pub source: io::Error,
}

/// Gives a system call's error the name of its step.
pub trait Step<T> {
    /// The same result, its error named.
    fn step(self, step: &'static str) -> Result<T, StepError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: &'static str) -> Result<T, StepError> {
        self.map_err(|source| StepError { step, source: source.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_step_and_its_cause() {
        let failed: io::Result<()> = Err(io::Error::from_raw_os_error(libc::EPERM));
        let error = failed.step("seccomp").unwrap_err();
        assert_eq!(
            error.to_string(),
            "could not set up the sandbox (seccomp): Operation not permitted (os error 1)"
        );
    }
}
