//! Checks a start request, spawns the child and runs the process task.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use exec_server_fs::byte_fields::path_from_bytes;
use exec_server_os::TreeTag;
use exec_server_os::env_policy::{EnvRequest, child_environment};
use exec_server_os::limits::{self, LimitPlan};
use exec_server_os::spawn::{SpawnError, SpawnRequest, Spawned, StdinKind, Stdio};
use exec_server_protocol::escape_untrusted::escape_untrusted;
use exec_server_protocol::limits::{
    DEFAULT_RETAINED_OUTPUT_BYTES, MAX_OUTPUT_CHUNK_BYTES, MAX_PROCESS_ID_BYTES,
};
use exec_server_protocol::process::{
    LimitName, LimitsReport, ProcessId, ProcessLimits, ProcessStartParams, ProcessTerminateResponse,
};
use exec_server_protocol::trace_context::TraceContext;
use exec_server_sandbox::plan::{Confinement, RetryBudget};
use exec_server_sandbox::policy::Policy;
use exec_server_sandbox::{SandboxNetwork, SandboxedChild};
use tokio::sync::mpsc;

use super::config::{ProcessConfig, ProcessSandbox};
use super::task::ProcessTask;
use super::{ClosedMark, Command};
use crate::audit::StartNote;
use crate::errors::{RequestError, check_length, cwd_error};
use crate::reply::Reply;
use crate::sandbox::in_time;
use crate::server::Server;
use crate::sessions::Session;
use crate::shell_snapshot;
use crate::spool::Spool;
use crate::user::RequestUser;

/// A start request that has been checked and is ready to run.
#[derive(Debug)]
pub struct PreparedStart {
    params: ProcessStartParams,
    cwd: PathBuf,
    /// None if the process is not sandboxed.
    policy: Option<Policy>,
    limits: LimitPlan,
    limits_report: LimitsReport,
    /// Recognises a repeated request.
    pub digest: u64,
    /// Shared with the handles of the process; set when it exits.
    pub exit_note: Arc<AtomicBool>,
    /// Records the start, if the server has an audit log.
    pub audit: Option<Box<StartNote>>,
    /// The span of the request, if spans are made.
    pub trace: Option<TraceContext>,
}

impl PreparedStart {
    /// The id that the client chose.
    pub fn id(&self) -> &ProcessId {
        &self.params.process_id
    }

    /// The length of the arguments and the working directory.
    pub fn described_bytes(&self) -> usize {
        let arguments: usize = self.params.argv.iter().map(String::len).sum();
        arguments + self.params.cwd.as_str().len()
    }

    /// Whether no other live process of the same credential may have this id.
    pub fn is_unique(&self) -> bool {
        self.params.unique_id
    }
}

/// Checks everything that can be checked before the process id is reserved.
pub fn prepare(server: &Server, params: ProcessStartParams) -> Result<PreparedStart, RequestError> {
    let cwd = params
        .cwd
        .to_posix(server.config.native_paths)
        .map_err(|error| cwd_error(&params.cwd, error))?;
    if params.network_proxy.is_some() {
        return Err(RequestError::Unsupported(
            "networkProxy is not supported by this server (capability networkProxyLaunch)",
        ));
    }
    let policy = server.sandboxes.for_process(params.sandbox.as_ref(), &params.cwd)?;
    if let Some(snapshot) = &params.shell_snapshot {
        shell_snapshot::validate(snapshot)
            .map_err(|error| RequestError::InvalidParams(error.to_string()))?;
    }
    check_length("processId", &params.process_id, MAX_PROCESS_ID_BYTES)?;
    if params.argv.is_empty() {
        return Err(RequestError::InvalidParams("argv must not be empty".to_owned()));
    }
    let (limits, limits_report) = plan_limits(server, &params, policy.as_ref())?;
    let digest = digest(&params);
    let exit_note = Arc::default();
    let cwd = path_from_bytes(cwd);
    let (audit, trace) = (None, None);
    Ok(PreparedStart {
        params,
        cwd,
        policy,
        limits,
        limits_report,
        digest,
        exit_note,
        audit,
        trace,
    })
}

/// Caps the requested limits at the limits of the operator, and plans how they are enforced.
fn plan_limits(
    server: &Server,
    params: &ProcessStartParams,
    policy: Option<&Policy>,
) -> Result<(LimitPlan, LimitsReport), RequestError> {
    let mut wanted = params.limits.unwrap_or_default();
    check_limits(&wanted)?;
    for name in LimitName::ALL {
        if let Some(most) = server.config.process_limits.get(name) {
            wanted.set(name, wanted.get(name).map_or(most, |value| value.min(most)));
        }
    }
    let means = match policy {
        Some(_) => server.sandbox_spawner.limit_means(server.sandboxes.mechanism()),
        None => server.spawner.limit_means(),
    };
    Ok(limits::plan(&wanted, &means)?)
}

/// Rejects limits that are out of range.
fn check_limits(limits: &ProcessLimits) -> Result<(), RequestError> {
    let Some(name) = limits.out_of_range() else { return Ok(()) };
    let (range, name) = (name.range(), name.name());
    let text = format!("limits.{name} must be between {} and {}", range.start(), range.end());
    Err(RequestError::InvalidParams(text))
}

fn digest(params: &ProcessStartParams) -> u64 {
    static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let text = serde_json::to_string(params).expect("was decoded from JSON");
    KEYS.hash_one(text)
}

/// Starts the process and runs its task until the record expires.
pub async fn run_process(
    server: Arc<Server>,
    session: Session,
    start: PreparedStart,
    tag: TreeTag,
    (closed, mut commands): (ClosedMark, mpsc::UnboundedReceiver<Command>),
    reply: Reply,
) {
    let id = start.id().clone();
    let cwd = start.cwd.clone();
    let audit = start.audit.clone();
    let trace = start.trace.clone();
    let starting = async {
        if let Some(audit) = &start.audit {
            audit.starting(&start.params, &start.cwd).await?;
        }
        let (request, policy, mut config, spool) = plan(&server, &session, start, tag).await?;
        let Some(policy) = policy else {
            return Ok((server.spawner.spawn(request).await?, config, spool));
        };
        // A network belongs to the user that has made it.
        let network = match &request.user {
            None => session.sandbox_network(),
            Some(_) => SandboxNetwork::default(),
        };
        let (spawned, sandboxed) = start_confined(&server, &network, &policy, &request).await?;
        if !sandboxed.placeholders.is_empty() {
            // This event loop removes the placeholders, and must not wait for the mounts over them.
            spawned.exit.release_mounts();
        }
        config.sandbox = Some(sandboxed);
        Ok((spawned, config, spool))
    };
    let mut held = VecDeque::new();
    match watch(starting, &mut commands, &mut held).await {
        Ok(Started { spawned, config, spool, is_cancelled }) => {
            let mut task = ProcessTask::new(
                server.clone(),
                config,
                spawned,
                spool,
                session.attached(),
                closed.clone(),
                trace.as_ref(),
            );
            if is_cancelled {
                task.abandon();
                reply.fail(&RequestError::StartCancelled(id.to_string()));
            } else {
                // The reply is queued before the task can send its first event.
                reply.ok(&task.start_response());
            }
            // These arrived during a slow start, so they come before the commands in the queue.
            held.into_iter().for_each(|command| task.handle_command(command));
            task.run(&mut commands).await;
            session.forget_process(&id, &closed);
        }
        Err(error) => {
            let error = with_cwd(error, &cwd);
            session.forget_process(&id, &closed);
            tracing::debug!(process_id = %id, %error, "process did not start");
            if let Some(audit) = audit {
                audit.failed(&id, &error);
            }
            reply.fail(&error);
        }
    }
    commands.close();
    // A request that arrived during the last steps gets the answer for an unknown process.
    while let Some(command) = commands.recv().await {
        crate::dispatch::answer_unknown(&id, command);
    }
}

/// Adds the path to the error about a working directory that cannot be entered.
fn with_cwd(error: RequestError, cwd: &Path) -> RequestError {
    match error {
        RequestError::Spawn(SpawnError::Cwd(source)) => {
            let path = escape_untrusted(&cwd.to_string_lossy(), MAX_SHOWN_CHARS);
            RequestError::CwdUnusable { path, cause: source }
        }
        error => error,
    }
}

/// Bounds the part of a path that an error message repeats.
const MAX_SHOWN_CHARS: usize = 200;

async fn start_confined(
    server: &Arc<Server>,
    network: &SandboxNetwork,
    policy: &Policy,
    request: &SpawnRequest,
) -> Result<(Spawned, ProcessSandbox), RequestError> {
    let mut retries = RetryBudget::default();
    loop {
        let (planner, policy, request) = (server.clone(), policy.clone(), request.clone());
        let network = network.clone();
        // Reads the disk, so it runs on a thread that may block.
        let submit = move || {
            let Confinement { mut setup, placeholders } = planner.sandboxes.confine(&policy)?;
            if let Some(bytes) = request.limits.tmpfs_bytes {
                setup.view.temp_bytes = bytes;
            }
            let report = setup.report();
            let pending = planner.sandbox_spawner.submit(request, setup, network)?;
            Ok::<_, RequestError>((pending, placeholders, report))
        };
        let submitted = in_time(server.config.timings.sandbox_set_up, submit).await?;
        let (pending, placeholders, report) = submitted;
        match server.sandbox_spawner.finish(pending).await {
            Ok(SandboxedChild { spawned, refused }) => {
                return Ok((spawned, ProcessSandbox { placeholders, report, refused }));
            }
            Err(error) if retries.allows_another_try(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

async fn plan(
    server: &Arc<Server>,
    session: &Session,
    start: PreparedStart,
    tag: TreeTag,
) -> Result<(SpawnRequest, Option<Policy>, ProcessConfig, Option<Spool>), RequestError> {
    let params = start.params;
    let user = match &params.user {
        Some(user) => Some(RequestUser::find(user).await?),
        None => None,
    };
    let env = child_environment(
        std::env::vars_os(),
        EnvRequest {
            policy: params.env_policy.as_ref(),
            env: &params.env,
            metadata: params.metadata.as_ref(),
            user: user.as_ref().map(|user| &user.account),
        },
    );
    let stdio = if params.tty {
        Stdio::Terminal(params.size.unwrap_or_default())
    } else {
        let stdin = if params.pipe_stdin { StdinKind::Pipe } else { StdinKind::Null };
        Stdio::Pipes { stdin }
    };
    let restored = match &params.shell_snapshot {
        // A capture runs the shell that the request names, which must not happen outside of its sandbox or as the
        // server's user.
        Some(_) if start.policy.is_none() && user.is_none() => {
            let capture = session.tag_child(server);
            session.snapshots().restore(server, &params, &start.cwd, &env, capture).await
        }
        _ => None,
    };
    let (argv, extra_input) = match restored {
        Some(restored) => (restored.argv, Some(restored.input)),
        None => (params.argv.clone(), None),
    };
    let mut argv: Vec<OsString> = argv.into_iter().map(OsString::from).collect();
    let program = argv[0].clone();
    if let Some(arg0) = &params.arg0 {
        argv[0] = arg0.into();
    }
    let limits = start.limits;
    let cwd = start.cwd;
    let (user_name, user) = match user {
        Some(RequestUser { account, credentials }) => (Some(account.name), credentials),
        None => (None, None),
    };
    let request = SpawnRequest { program, argv, env, cwd, stdio, tag, extra_input, limits, user };
    let wanted = params.output_retention.map_or(DEFAULT_RETAINED_OUTPUT_BYTES, |bytes| {
        usize::try_from(bytes).unwrap_or(usize::MAX)
    });
    // Output that waits for its client stays in the log, which must have room for one chunk at least.
    let least = if params.wait_when_detached { MAX_OUTPUT_CHUNK_BYTES } else { 0 };
    let retain_bytes = wanted.min(server.config.limits.retained_output).max(least);
    let timings = &server.config.timings;
    let retain_closed = params.closed_retention_ms.map_or(timings.closed_retention, |wanted| {
        let longest = timings.max_session_linger.max(timings.closed_retention);
        Duration::from_millis(wanted).min(longest)
    });
    let spool = match params.output_spool {
        Some(wanted) => Some(server.spools.open(wanted).await?),
        None => None,
    };
    let config = ProcessConfig {
        id: params.process_id,
        argv: params.argv,
        cwd: params.cwd,
        is_terminal: params.tty,
        is_detailed: params.detailed,
        retain_bytes,
        retain_closed,
        waits_when_detached: params.wait_when_detached,
        timeout: params.timeout_ms.map(Duration::from_millis),
        idle_timeout: params.idle_timeout_ms.map(Duration::from_millis),
        client: session.client(),
        has_exited: start.exit_note,
        limits: start.limits_report,
        user: user_name,
        sandbox: None,
        spool_bytes: spool.as_ref().map(Spool::max_bytes),
        audit: start.audit,
    };
    Ok((request, start.policy, config, spool))
}

struct Started {
    spawned: Spawned,
    config: ProcessConfig,
    spool: Option<Spool>,
    /// Termination was requested before the spawn had finished.
    is_cancelled: bool,
}

/// Waits for the spawn and answers `terminate` meanwhile; a slow shell profile can delay it.
async fn watch(
    starting: impl Future<Output = Result<(Spawned, ProcessConfig, Option<Spool>), RequestError>>,
    commands: &mut mpsc::UnboundedReceiver<Command>,
    held: &mut VecDeque<Command>,
) -> Result<Started, RequestError> {
    // Boxed, so that the future of a long-running process does not contain the space for its start.
    let mut starting = Box::pin(starting);
    let mut is_cancelled = false;
    let result = loop {
        tokio::select! {
            biased;
            result = &mut starting => break result,
            Some(command) = commands.recv() => match command {
                Command::Terminate { reply, .. } => {
                    is_cancelled = true;
                    reply.ok(&ProcessTerminateResponse { running: true });
                }
                Command::End { .. } => is_cancelled = true,
                // A process that has not started is not listed.
                Command::Summarise(_) => {}
                command => held.push_back(command),
            },
        }
    };
    let (spawned, config, spool) = result?;
    Ok(Started { spawned, config, spool, is_cancelled })
}
