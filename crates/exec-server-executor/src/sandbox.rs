//! Sandboxes as requests see them: time limits and error codes around `exec_server_sandbox::plan`.

use std::time::Duration;

use exec_server_protocol::fs::SandboxText;
use exec_server_protocol::sandbox::Network;
use exec_server_sandbox::plan::{PlanError, Sandboxes};
use exec_server_sandbox::policy::timed_out;

use crate::errors::RequestError;

/// Runs `look` on a blocking thread, with a timeout.
pub async fn in_time<T, E>(
    time: Duration,
    look: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, RequestError>
where
    T: Send + 'static,
    E: Into<RequestError> + Send + 'static,
{
    let looking = tokio::task::spawn_blocking(look);
    match tokio::time::timeout(time, looking).await {
        Ok(Ok(looked)) => looked.map_err(Into::into),
        Ok(Err(_)) => Err(RequestError::Abandoned),
        Err(_) => {
            let step = "look up what the policy names";
            Err(RequestError::SandboxSetUp { step, cause: timed_out(time) })
        }
    }
}

/// Rejects a request that the server itself executes, if its policy denies the network.
pub fn check_network(
    sandboxes: &Sandboxes,
    sandbox: Option<&SandboxText>,
) -> Result<(), RequestError> {
    match sandboxes.network(sandbox)? {
        Network::Enabled => Ok(()),
        Network::Restricted => Err(RequestError::NetworkDenied),
    }
}

impl From<PlanError> for RequestError {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Params(text) => Self::InvalidParams(text),
            PlanError::Policy(error) => Self::Policy(error),
            PlanError::BeyondLandlock(why) => Self::BeyondLandlock(why),
            PlanError::PatternTooWide(text) => Self::PatternTooWide(text),
            PlanError::TooCostly => Self::PolicyTooCostly,
            PlanError::SetUp { step, source } => Self::SandboxSetUp { step, cause: source },
        }
    }
}
