//! From a start request to a running child.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use exec_server_os::env_policy::{EnvRequest, child_environment};
use exec_server_os::limits::{self, LimitPlan};
use exec_server_os::sandbox::Policy;
use exec_server_os::spawn::{SpawnRequest, Spawned, StdinKind, Stdio};
use exec_server_os::{SandboxSetup, TreeTag};
use exec_server_protocol::limits::DEFAULT_RETAINED_OUTPUT_BYTES;
use exec_server_protocol::process::{
    LimitName, LimitsReport, ProcessId, ProcessLimits, ProcessStartParams, ProcessTerminateResponse,
};
use tokio::sync::mpsc;

use super::Command;
use super::owner::{Birth, BirthSandbox, Owner};
use crate::environment::host_path;
use crate::errors::{RequestError, cwd_error};
use crate::reply::Reply;
use crate::sandbox::{Confinement, Patience, in_time};
use crate::server::Server;
use crate::sessions::Session;
use crate::shell_snapshot;

/// A start request that has been checked and is ready to run.
#[derive(Debug)]
pub struct PreparedStart {
    params: ProcessStartParams,
    cwd: PathBuf,
    /// What the process may touch, if somebody confines it.
    policy: Option<Policy>,
    limits: LimitPlan,
    /// What the reply says about them.
    limits_report: LimitsReport,
    /// Recognises the same request when it comes again.
    pub digest: u64,
}

impl PreparedStart {
    /// The client's key.
    pub fn id(&self) -> &ProcessId {
        &self.params.process_id
    }
}

/// Checks everything that can be checked before the process id is taken.
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
    if params.argv.is_empty() {
        return Err(RequestError::InvalidParams("argv must not be empty".to_owned()));
    }
    let (limits, limits_report) = plan_limits(server, &params, policy.as_ref())?;
    let digest = digest(&params);
    Ok(PreparedStart { params, cwd: host_path(cwd), policy, limits, limits_report, digest })
}

/// What limits the process: what it asks for, at most what the operator allows.
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
    let sandbox = policy.map(|_| server.sandboxes.mechanism());
    Ok(limits::plan(&wanted, &server.spawner.limit_means(sandbox))?)
}

/// Refuses numbers that make no sense.
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

/// Starts the process and owns it until it is forgotten.
pub async fn run_process(
    server: Arc<Server>,
    session: Session,
    start: PreparedStart,
    tag: TreeTag,
    mut commands: mpsc::UnboundedReceiver<Command>,
    reply: Reply,
) {
    let id = start.id().clone();
    let starting = async {
        let (request, policy, mut birth) = plan(&server, &session, start, tag).await?;
        let Some(policy) = policy else {
            return Ok((server.spawner.spawn(request).await?, birth));
        };
        let (spawned, sandboxed) = start_confined(&server, &policy, &request).await?;
        if !sandboxed.placeholders.is_empty() {
            // They are removed by this event loop, which must not wait for the mounts over them.
            spawned.exit.release_mounts();
        }
        birth.sandbox = Some(sandboxed);
        Ok((spawned, birth))
    };
    let mut held = VecDeque::new();
    match watch(starting, &mut commands, &mut held).await {
        Ok(Started { spawned, birth, is_cancelled }) => {
            let mut owner = Owner::new(server.clone(), birth, spawned, session.attached());
            if is_cancelled {
                owner.abandon();
                reply.fail(&RequestError::StartCancelled(id.to_string()));
            } else {
                // The reply is queued before the owner can send its first event.
                reply.ok(&owner.start_response());
            }
            // A slow start made these wait; they come before anything newer.
            held.into_iter().for_each(|command| owner.handle_command(command));
            owner.run(&mut commands).await;
            session.forget_process(&id);
        }
        Err(error) => {
            session.forget_process(&id);
            tracing::debug!(process_id = %id, %error, "process did not start");
            reply.fail(&error);
        }
    }
    commands.close();
    // Whoever asked while this was ending gets the answer that a newcomer would get.
    while let Some(command) = commands.recv().await {
        crate::dispatch::answer_unknown(&id, command);
    }
}

async fn start_confined(
    server: &Arc<Server>,
    policy: &Policy,
    request: &SpawnRequest,
) -> Result<(Spawned, BirthSandbox), RequestError> {
    let mut patience = Patience::default();
    loop {
        let (planner, policy, request) = (server.clone(), policy.clone(), request.clone());
        // Looks at the disk on a thread that may wait for it, and goes on from there.
        let submit = move || {
            let (setup, sandboxed) = split(planner.sandboxes.confine(&policy)?, request.limits);
            let request = SpawnRequest { sandbox: Some(setup), ..request };
            Ok((planner.spawner.submit(request)?, sandboxed))
        };
        let (submitted, sandboxed) = in_time(server.config.timings.sandbox_set_up, submit).await?;
        match server.spawner.finish(submitted).await {
            Ok(spawned) => return Ok((spawned, sandboxed)),
            Err(error) if patience.allows_another_try(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn split(confinement: Confinement, limits: LimitPlan) -> (SandboxSetup, BirthSandbox) {
    let Confinement { mut setup, placeholders, network_user } = confinement;
    if let Some(bytes) = limits.tmpfs_bytes {
        setup.view.temp_bytes = bytes;
    }
    let report = setup.report();
    (setup, BirthSandbox { placeholders, network_user, report })
}

async fn plan(
    server: &Arc<Server>,
    session: &Session,
    start: PreparedStart,
    tag: TreeTag,
) -> Result<(SpawnRequest, Option<Policy>, Birth), RequestError> {
    let params = start.params;
    let env = child_environment(
        std::env::vars_os(),
        EnvRequest {
            policy: params.env_policy.as_ref(),
            env: &params.env,
            metadata: params.metadata.as_ref(),
        },
    );
    let stdio = if params.tty {
        Stdio::Terminal(params.size.unwrap_or_default())
    } else {
        let stdin = if params.pipe_stdin { StdinKind::Pipe } else { StdinKind::Null };
        Stdio::Pipes { stdin }
    };
    let restored = match &params.shell_snapshot {
        // Taking a snapshot runs what the request names, which must not happen outside of its sandbox.
        Some(_) if start.policy.is_none() => {
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
    let (sandbox, network) = (None, session.sandbox_network());
    let request =
        SpawnRequest { program, argv, env, cwd, stdio, tag, sandbox, network, extra_input, limits };
    let wanted = params.output_retention.map_or(DEFAULT_RETAINED_OUTPUT_BYTES, |bytes| {
        usize::try_from(bytes).unwrap_or(usize::MAX)
    });
    let timings = &server.config.timings;
    let retain_closed = params.closed_retention_ms.map_or(timings.closed_retention, |wanted| {
        let longest = timings.max_session_linger.max(timings.closed_retention);
        Duration::from_millis(wanted).min(longest)
    });
    let birth = Birth {
        id: params.process_id,
        argv: params.argv,
        cwd: params.cwd,
        is_terminal: params.tty,
        retain_bytes: wanted.min(server.config.limits.retained_output),
        retain_closed,
        waits_when_detached: params.wait_when_detached,
        timeout: params.timeout_ms.map(Duration::from_millis),
        idle_timeout: params.idle_timeout_ms.map(Duration::from_millis),
        client: session.client(),
        limits: start.limits_report,
        sandbox: None,
    };
    Ok((request, start.policy, birth))
}

struct Started {
    spawned: Spawned,
    birth: Birth,
    /// Somebody asked for its end before it was there.
    is_cancelled: bool,
}

/// Waits for a start, which a slow profile can make long, and meanwhile lets nobody wait who asks for its end.
async fn watch(
    starting: impl Future<Output = Result<(Spawned, Birth), RequestError>>,
    commands: &mut mpsc::UnboundedReceiver<Command>,
    held: &mut VecDeque<Command>,
) -> Result<Started, RequestError> {
    // Apart, so that a process that runs for long does not carry the room for its start around.
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
                // What is not there yet is not listed, and nobody waits for it.
                Command::Summarise(_) => {}
                command => held.push_back(command),
            },
        }
    };
    let (spawned, birth) = result?;
    Ok(Started { spawned, birth, is_cancelled })
}
