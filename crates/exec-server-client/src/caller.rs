//! Sends calls through one connection, or through a client that reconnects and retries.

use std::sync::Arc;

use exec_server_protocol::answers::ProcessStartAnswer;
use exec_server_protocol::environment::{Capabilities, EnvironmentInfo};
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::{ProcessId, ProcessReadResponse, ProcessStartParams};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::client::RemoteExecServerClient;
use crate::connection::ExecServerConnection;
use crate::error::ExecServerError;
use crate::process::ProcessSession;
use crate::process_state::Process;

/// Whether a call may be retried if the connection breaks before the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replay {
    /// The call is idempotent.
    Safe,
    /// The server could execute the call twice, so the caller has to decide.
    Never,
}

/// The route of calls to the server.
#[derive(Clone)]
pub(crate) enum Caller {
    /// One connection, without reconnect.
    Connection(ExecServerConnection),
    /// A client that reconnects.
    Client(RemoteExecServerClient),
}

impl Caller {
    /// The live connection; a client waits for the next one.
    pub(crate) async fn connection(&self) -> Result<ExecServerConnection, ExecServerError> {
        match self {
            Self::Connection(connection) => Ok(connection.clone()),
            Self::Client(client) => client.session().connection().await,
        }
    }

    /// Makes a call that does not belong to a process; fails with `Unsupported` if the server lacks the method.
    pub(crate) async fn call<R: DeserializeOwned>(
        &self,
        method: Method,
        params: &impl Serialize,
        replay: Replay,
    ) -> Result<R, ExecServerError> {
        self.require_method(method).await?;
        self.call_for(None, method.name(), params, replay).await
    }

    /// Makes a call and retries it if `replay` allows; fails at once if the process has failed.
    pub(crate) async fn call_for<R: DeserializeOwned>(
        &self,
        process: Option<&Arc<Process>>,
        method: &'static str,
        params: &impl Serialize,
        replay: Replay,
    ) -> Result<R, ExecServerError> {
        let check = || match process.and_then(|process| process.failure()) {
            Some(failure) => Err(failure),
            None => Ok(()),
        };
        loop {
            check()?;
            let connection = match self.connection().await {
                Ok(connection) => connection,
                Err(error) => return Err(check().err().unwrap_or(error)),
            };
            check()?;
            let pending = match connection.request(method, params) {
                Ok(pending) => pending,
                // The request was not sent, so a retry cannot execute it twice.
                Err(ExecServerError::Disconnected { .. }) if self.recovers() => continue,
                Err(error) => return Err(error),
            };
            match pending.await {
                Ok(reply) => return reply.decode(),
                Err(ExecServerError::Ambiguous { .. })
                    if self.recovers() && replay == Replay::Safe => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Starts a process and follows it; the local log keeps every event until the caller unpins it.
    pub(crate) async fn start(
        &self,
        mut params: ProcessStartParams,
    ) -> Result<ProcessSession, ExecServerError> {
        let process = Arc::new(Process::new(params.process_id.clone(), params.output_retention));
        let mut starting = Starting { caller: self, process: &process, stage: Stage::Unsent };
        // The session that may have started the process, and why its answer is missing.
        let mut unanswered: Option<(String, ExecServerError)> = None;
        let (connection, reply) = loop {
            let connection = self.connection().await?;
            if let Some((_, lost)) =
                unanswered.take_if(|(session, _)| session != connection.session_id())
            {
                return Err(lost);
            }
            match self.track_new(&connection, &process) {
                Ok(()) => {}
                Err(ExecServerError::Disconnected { .. }) if self.recovers() => continue,
                Err(error) => return Err(error),
            }
            let capabilities = connection.capabilities();
            if let Some(policy) = &mut params.env_policy
                && !capabilities.env_exclude_secrets
            {
                policy.add_patterns();
                policy.exclude_secrets = false;
            }
            let pending = match connection.request(Method::ProcessStart.name(), &params) {
                Ok(pending) => pending,
                Err(ExecServerError::Disconnected { .. }) if self.recovers() => continue,
                Err(error) => return Err(error),
            };
            starting.stage = Stage::Sent;
            match pending.await {
                Ok(reply) => break (connection, reply),
                // The server answers a repeated start with the process that runs.
                Err(lost @ ExecServerError::Ambiguous { .. })
                    if self.recovers() && capabilities.process_start_retry =>
                {
                    unanswered = Some((connection.session_id().to_owned(), lost));
                }
                Err(error) => {
                    // An error answer means that no process was started; without an answer, one may run.
                    if !error.is_disconnected() {
                        starting.stage = Stage::Unsent;
                    }
                    return Err(error);
                }
            }
        };
        let answer: ProcessStartAnswer = reply.decode()?;
        if let Some(read) = process.handle_started(&answer) {
            connection.shared().spawn_repair(process.clone(), read);
        }
        // Events of an earlier connection are lost, and the driver recovers no process that is not started yet.
        if unanswered.is_some() || connection.is_closed() {
            self.follow_on(&process).await?;
        }
        starting.stage = Stage::Done;
        Ok(ProcessSession::new(process.clone(), self.clone(), answer))
    }

    /// Reads the events of a process whose connection ended during its start.
    async fn follow_on(&self, process: &Arc<Process>) -> Result<(), ExecServerError> {
        while self.recovers() {
            let connection = self.connection().await?;
            connection.shared().routes().add_process(process);
            match process.read_missing(connection.shared()).await {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => {}
                Err(error) if error.is_disconnected() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Follows a running process from the event after `seq`.
    pub(crate) async fn attach(
        &self,
        id: ProcessId,
        seq: u64,
    ) -> Result<ProcessSession, ExecServerError> {
        let process = Arc::new(Process::attached(id, seq));
        loop {
            let connection = self.connection().await?;
            match self.track_new(&connection, &process) {
                Ok(()) => {}
                Err(ExecServerError::Disconnected { .. }) if self.recovers() => continue,
                Err(error) => return Err(error),
            }
            // From here on, dropping the session frees the id.
            let session =
                ProcessSession::new(process.clone(), self.clone(), ProcessStartAnswer::default());
            let params = process.missing_params();
            let answer: ProcessReadResponse = self
                .call_for(Some(&process), Method::ProcessRead.name(), &params, Replay::Safe)
                .await?;
            if let Some(read) = process.handle_read(answer) {
                connection.shared().spawn_repair(process, read);
            }
            return Ok(session);
        }
    }

    /// Terminates a process in the background; while disconnected, after the session has been resumed.
    pub(crate) fn clean_up_process(&self, id: &ProcessId) {
        match self {
            Self::Connection(connection) => connection.shared().clean_up_process(id),
            Self::Client(client) => client.session().clean_up_process(id),
        }
    }

    /// Stops routing events to this process, and frees its id.
    pub(crate) fn untrack(&self, process: &Arc<Process>) {
        match self {
            Self::Connection(connection) => {
                let mut routes = connection.shared().routes();
                routes.remove_process(process.id(), Arc::as_ptr(process));
            }
            Self::Client(client) => client.session().untrack(process),
        }
    }

    /// The optional capabilities of the server.
    pub(crate) async fn capabilities(&self) -> Result<Capabilities, ExecServerError> {
        Ok(self.connection().await?.capabilities())
    }

    /// The server's description of its machine.
    pub(crate) async fn info(&self) -> Result<Option<EnvironmentInfo>, ExecServerError> {
        Ok(self.connection().await?.environment_info().cloned())
    }

    /// Fails with `Unsupported` if the server lacks a method.
    pub(crate) async fn require_method(&self, method: Method) -> Result<(), ExecServerError> {
        // Most methods are those of every server, which need no capabilities.
        if method.is_announced_by(&Capabilities::default()) {
            return Ok(());
        }
        self.require(|can| method.is_announced_by(can), method.name()).await
    }

    /// Fails with `Unsupported` if the server lacks a capability.
    pub(crate) async fn require(
        &self,
        has: impl Fn(&Capabilities) -> bool,
        what: &'static str,
    ) -> Result<(), ExecServerError> {
        let capabilities = self.capabilities().await?;
        if has(&capabilities) { Ok(()) } else { Err(ExecServerError::Unsupported(what)) }
    }

    fn recovers(&self) -> bool {
        matches!(self, Self::Client(_))
    }

    fn track_new(
        &self,
        connection: &ExecServerConnection,
        process: &Arc<Process>,
    ) -> Result<(), ExecServerError> {
        if let Self::Client(client) = self {
            client.session().track(process)?;
        }
        connection.shared().routes().add_new_process(process)
    }
}

/// A pending start: dropping it terminates the process if the server may have started it.
struct Starting<'a> {
    caller: &'a Caller,
    process: &'a Arc<Process>,
    stage: Stage,
}

/// The progress of a start.
#[derive(PartialEq)]
enum Stage {
    /// The request was not sent, or the server rejected it.
    Unsent,
    /// The request was sent, so the process may run.
    Sent,
    /// A `ProcessSession` follows the process.
    Done,
}

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        if self.stage != Stage::Done {
            self.caller.untrack(self.process);
        }
        if self.stage == Stage::Sent {
            self.caller.clean_up_process(self.process.id());
        }
    }
}
