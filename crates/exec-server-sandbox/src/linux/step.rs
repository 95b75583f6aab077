//! The error type of the sandbox set-up.

use std::io;

/// A failed step; the sandbox must not be used.
#[derive(Debug, thiserror::Error)]
#[error("could not set up the sandbox ({step}): {cause}")]
pub struct StepError {
    /// The step as shown to the user, such as `seccomp`.
    pub step: &'static str,
    pub cause: io::Error,
}

/// Adds the name of a step to an error.
pub trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, StepError>;
}

impl<T, E: Into<io::Error>> Step<T> for Result<T, E> {
    fn step(self, step: &'static str) -> Result<T, StepError> {
        self.map_err(|cause| StepError { step, cause: cause.into() })
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
