//! Builds commands that run on the server, with the interface of `std::process::Command`.

use std::collections::BTreeMap;
use std::time::Duration;

use exec_server_core::event_order::ProcessEvent;
use exec_server_protocol::duration::millis;
use exec_server_protocol::path_uri::PathUri;
use exec_server_protocol::process::{
    EnvInherit, EnvPolicy, OutputSpool, OutputStream, ProcessId, ProcessLimits, ProcessStartParams,
    TerminalSize,
};
use exec_server_protocol::sandbox::SandboxParams;
use exec_server_protocol::user::UserName;

use crate::caller::Caller;
use crate::child::{Child, ExitStatus, Output};
use crate::error::ExecServerError;
use crate::events::ProcessEvents;
use crate::process::ProcessSession;
use crate::remote_path::RemotePath;

/// A command to run on the server; made by [`ExecServerClient::command`](crate::ExecServerClient::command).
///
/// The command inherits the server's environment variables, except those whose names suggest a secret
/// (`DB_PASSWORD`, `API_KEY`); see [`Command::env_policy`].
#[derive(Clone)]
pub struct Command {
    caller: Caller,
    argv: Vec<String>,
    process_id: Option<ProcessId>,
    arg0: Option<String>,
    cwd: Option<RemotePath>,
    env: BTreeMap<String, String>,
    policy: EnvPolicy,
    stdin: Stdin,
    terminal: Option<TerminalSize>,
    sandbox: Option<serde_json::Value>,
    timeout: Option<Duration>,
    idle_timeout: Option<Duration>,
    retention: Option<u64>,
    limits: Option<ProcessLimits>,
    user: Option<UserName>,
    spool: Option<OutputSpool>,
    kill_on_drop: bool,
}

/// The source of a command's stdin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Stdin {
    /// Empty input: the first read returns end-of-file.
    #[default]
    Null,
    /// A pipe that is written through [`Child::stdin`].
    Piped,
}

impl Command {
    pub(crate) fn new(caller: Caller, program: impl Into<String>) -> Self {
        Self {
            caller,
            argv: vec![program.into()],
            process_id: None,
            arg0: None,
            cwd: None,
            env: BTreeMap::new(),
            policy: EnvPolicy::without_secrets(EnvInherit::All),
            stdin: Stdin::Null,
            terminal: None,
            sandbox: None,
            timeout: None,
            idle_timeout: None,
            retention: None,
            limits: None,
            user: None,
            spool: None,
            kill_on_drop: false,
        }
    }

    /// Appends an argument.
    pub fn arg(&mut self, arg: impl Into<String>) -> &mut Self {
        self.argv.push(arg.into());
        self
    }

    /// Appends several arguments.
    pub fn args(&mut self, args: impl IntoIterator<Item = impl Into<String>>) -> &mut Self {
        self.argv.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets `argv[0]` as the program sees it.
    pub fn arg0(&mut self, name: impl Into<String>) -> &mut Self {
        self.arg0 = Some(name.into());
        self
    }

    /// Sets the working directory; the default is the server's working directory.
    pub fn current_dir(&mut self, directory: impl Into<RemotePath>) -> &mut Self {
        self.cwd = Some(directory.into());
        self
    }

    /// Sets resource limits for the command and its descendants; a limit that the server cannot enforce is an error.
    pub fn limits(&mut self, limits: ProcessLimits) -> &mut Self {
        self.limits = Some(limits);
        self
    }

    /// Runs the command as this user of the server's machine, a name or a number, with its groups. The inherited `HOME`,
    /// `USER`, `LOGNAME` and `SHELL` are those of the user.
    pub fn user(&mut self, user: impl Into<UserName>) -> &mut Self {
        self.user = Some(user.into());
        self
    }

    /// Sets a variable, which overrides an inherited one.
    pub fn env(&mut self, name: impl Into<String>, value: impl Into<String>) -> &mut Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Sets several variables.
    pub fn envs(
        &mut self,
        variables: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>,
    ) -> &mut Self {
        self.env.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Removes a variable, also an inherited one.
    pub fn env_remove(&mut self, name: impl Into<String>) -> &mut Self {
        let name = name.into();
        self.env.remove(&name);
        self.policy.exclude.push(name);
        self
    }

    /// Removes the variables that were set so far and inherits none.
    pub fn env_clear(&mut self) -> &mut Self {
        self.env.clear();
        self.policy.inherit = EnvInherit::None;
        self
    }

    /// Replaces the policy that selects the inherited variables.
    pub fn env_policy(&mut self, policy: EnvPolicy) -> &mut Self {
        self.policy = policy;
        self
    }

    /// Sets the source of stdin; the default is [`Stdin::Null`].
    pub fn stdin(&mut self, stdin: Stdin) -> &mut Self {
        self.stdin = stdin;
        self
    }

    /// Runs the command in a terminal of this size instead of with pipes; stdout then carries both outputs.
    pub fn tty(&mut self, size: TerminalSize) -> &mut Self {
        self.terminal = Some(size);
        self
    }

    /// Runs the command in a sandbox with this policy.
    pub fn sandbox(&mut self, sandbox: &SandboxParams) -> &mut Self {
        self.sandbox = Some(serde_json::to_value(sandbox).expect("a policy is plain data"));
        self
    }

    /// Limits the run time; the server terminates the command after it.
    pub fn timeout(&mut self, timeout: Duration) -> &mut Self {
        self.timeout = Some(timeout);
        self
    }

    /// Limits the time without output; the server terminates the command after it.
    pub fn idle_timeout(&mut self, timeout: Duration) -> &mut Self {
        self.idle_timeout = Some(timeout);
        self
    }

    /// Sets how many bytes of output the server retains for readers that reconnect.
    pub fn output_retention(&mut self, bytes: u64) -> &mut Self {
        self.retention = Some(bytes);
        self
    }

    /// Keeps all output in a file of the server, up to its limit or `max_bytes`, so that a reader that was away for long
    /// misses nothing.
    pub fn output_spool(&mut self, max_bytes: Option<u64>) -> &mut Self {
        self.spool = Some(OutputSpool { max_bytes });
        self
    }

    /// Sets the process id within the session; the default is a random UUID.
    pub fn process_id(&mut self, id: impl Into<ProcessId>) -> &mut Self {
        self.process_id = Some(id.into());
        self
    }

    /// Sets whether dropping the [`Child`] terminates the command; the default is `false`.
    pub fn kill_on_drop(&mut self, kill: bool) -> &mut Self {
        self.kill_on_drop = kill;
        self
    }

    /// Starts the command and returns after the server has started it.
    pub async fn spawn(&self) -> Result<Child, ExecServerError> {
        let session = self.start(self.stdin == Stdin::Piped).await?;
        session.process().unpin();
        let has_stdin = self.terminal.is_some() || self.stdin == Stdin::Piped;
        Ok(Child::new(session, has_stdin, self.terminal.is_some(), self.kill_on_drop))
    }

    /// Runs the command with empty stdin until it exits, and collects its output.
    ///
    /// Dropping the future terminates the command.
    pub async fn output(&self) -> Result<Output, ExecServerError> {
        let session = self.start(false).await?;
        let mut running = EndOnDrop(Some(session.clone()));
        let output = collect_output(&session).await?;
        running.0 = None;
        Ok(output)
    }

    /// Runs the command with empty stdin until it exits, and returns its exit status.
    ///
    /// Dropping the future terminates the command.
    pub async fn status(&self) -> Result<ExitStatus, ExecServerError> {
        let session = self.start(false).await?;
        session.process().unpin();
        let mut running = EndOnDrop(Some(session.clone()));
        let exit = session.wait().await?;
        running.0 = None;
        Ok(exit.into())
    }

    async fn start(&self, pipe_stdin: bool) -> Result<ProcessSession, ExecServerError> {
        let process_id = match &self.process_id {
            Some(id) => id.clone(),
            None => uuid::Uuid::new_v4().to_string().into(),
        };
        let params = ProcessStartParams {
            process_id,
            argv: self.argv.clone(),
            cwd: self.resolve_cwd().await?,
            env: self.env.clone(),
            tty: self.terminal.is_some(),
            env_policy: Some(self.policy.clone()),
            pipe_stdin,
            arg0: self.arg0.clone(),
            sandbox: self.sandbox.clone(),
            enforce_managed_network: false,
            managed_network: None,
            network_proxy: None,
            shell_snapshot: None,
            metadata: None,
            size: self.terminal,
            timeout_ms: self.timeout.map(millis),
            idle_timeout_ms: self.idle_timeout.map(millis),
            output_retention: self.retention,
            limits: self.limits,
            closed_retention_ms: None,
            wait_when_detached: false,
            unique_id: false,
            output_spool: self.spool,
            user: self.user.clone(),
            detailed: self.caller.capabilities().await?.process_pid,
        };
        if self.limits.is_some() {
            self.caller.require(|can| can.process_limits, "limits of processes").await?;
        }
        if self.spool.is_some() {
            self.caller.require(|can| can.process_output_spool, "spools of output").await?;
        }
        if self.user.is_some() {
            self.caller.require(|can| can.process_user, "processes of other users").await?;
        }
        if self.timeout.is_some() || self.idle_timeout.is_some() {
            self.caller.require(|can| can.process_timeouts, "time limits of processes").await?;
        }
        self.caller.start(params).await
    }

    async fn resolve_cwd(&self) -> Result<PathUri, ExecServerError> {
        let connection = self.caller.connection().await?;
        let server_cwd = connection.environment_info().and_then(|info| info.cwd.as_ref());
        match &self.cwd {
            Some(path) => path.clone().resolve(server_cwd),
            None => Ok(server_cwd.cloned().unwrap_or_else(|| PathUri::from_posix(b"/"))),
        }
    }
}

/// Collects the output of a process until it is closed.
pub(crate) async fn collect_output(session: &ProcessSession) -> Result<Output, ExecServerError> {
    let mut events = ProcessEvents::collecting(session.clone());
    let (mut stdout, mut stderr, mut exit) = (Vec::new(), Vec::new(), None);
    while let Some(event) = events.next().await {
        match event {
            ProcessEvent::Output { stream: OutputStream::Stderr, bytes, .. } => {
                stderr.extend_from_slice(&bytes);
            }
            ProcessEvent::Output { bytes, .. } => stdout.extend_from_slice(&bytes),
            ProcessEvent::Exited { exit: how, .. } => exit = Some(how),
            ProcessEvent::Gap(gap) => {
                let process_id = session.id().clone();
                return Err(ExecServerError::OutputLost { process_id, gap });
            }
            ProcessEvent::Failed(reason) => {
                let process_id = session.id().clone();
                return Err(ExecServerError::ProcessFailed { process_id, reason });
            }
            ProcessEvent::Closed { .. } | ProcessEvent::ResyncRequired => {}
        }
    }
    match exit {
        Some(exit) => Ok(Output { status: exit.into(), stdout, stderr }),
        None => Err(ExecServerError::Protocol("a process closed without an exit".to_owned())),
    }
}

/// Terminates the process if the caller's future is dropped before the process has exited.
struct EndOnDrop(Option<ProcessSession>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if let Some(session) = &self.0 {
            session.terminate_later();
        }
    }
}
