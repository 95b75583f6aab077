//! Decodes requests and routes them to handlers.

#![warn(clippy::wildcard_enum_match_arm)]

use std::sync::Arc;
use std::time::Duration;

use exec_server_core::attachment::ConnectionId;
use exec_server_protocol::environment::{
    CapabilitiesParams, CapabilityRootsParams, EnvironmentConfigReadParams, EnvironmentStatus,
    EnvironmentStatusResponse,
};
use exec_server_protocol::methods::{Handler, Method, ServerMethod};
use exec_server_protocol::params::{self, NoParams};
use exec_server_protocol::process::{
    Empty, ProcessCloseStdinParams, ProcessReadParams, ProcessResizeParams, ProcessSignalParams,
    ProcessTerminateParams, ProcessTerminateResponse, ProcessWriteParams, ProcessWriteResponse,
    WriteStatus,
};
use exec_server_protocol::session::{SessionSetLingerParams, SessionSetLingerResponse};
use serde::de::DeserializeOwned;

use crate::audit;
use crate::egress::{self, Http, HttpCall};
use crate::errors::RequestError;
use crate::files::{self, FileCall, Files};
use crate::process::{self, Command, PreparedStart};
use crate::reply::Reply;
use crate::server::Server;
use crate::session_list;
use crate::sessions::Session;

/// A request with decoded params.
#[derive(Debug)]
pub enum Call {
    /// `environment/info`.
    EnvironmentInfo,
    /// `environment/status`.
    EnvironmentStatus,
    /// `environmentConfig/read`.
    ConfigRead(Box<EnvironmentConfigReadParams>),
    /// `capabilityRoots/discoverV1`.
    DiscoverRoots(CapabilityRootsParams),
    /// `capabilities/discoverV2`.
    Discover(Box<CapabilitiesParams>),
    /// `process/start`.
    Start(Box<PreparedStart>),
    /// `process/read`.
    Read(ProcessReadParams),
    /// `process/write`.
    Write(ProcessWriteParams),
    /// `process/signal`.
    Signal(ProcessSignalParams),
    /// `process/terminate`.
    Terminate(ProcessTerminateParams),
    /// `process/resize`.
    Resize(ProcessResizeParams),
    /// `process/closeStdin`.
    CloseStdin(ProcessCloseStdinParams),
    /// `process/list`.
    List,
    /// `session/list`.
    Sessions,
    /// `session/setLinger`.
    SetLinger(SessionSetLingerParams),
    /// `fs/*`.
    File(FileCall),
    /// `http/*`.
    Http(HttpCall),
}

impl Call {
    /// What the audit log says about the call, in addition to its method; `None` for a call that is not recorded.
    pub fn audit_details(&self, with_input: bool) -> Option<audit::Details> {
        match self {
            Self::Signal(params) => Some(audit::Details {
                of_session: params.session_id.clone(),
                signal: Some(params.signal),
                ..audit::Details::of_process(&params.process_id)
            }),
            Self::Terminate(params) => Some(audit::Details {
                of_session: params.session_id.clone(),
                ..audit::Details::of_process(&params.process_id)
            }),
            Self::Write(params) if with_input => {
                Some(audit::Details::of_process(&params.process_id))
            }
            Self::File(call) => call.audit_details(),
            Self::Http(call) => call.audit_details(),
            // `process/start` has records of its own.
            Self::Start(_)
            | Self::Write(_)
            | Self::EnvironmentInfo
            | Self::EnvironmentStatus
            | Self::ConfigRead(_)
            | Self::DiscoverRoots(_)
            | Self::Discover(_)
            | Self::Read(_)
            | Self::Resize(_)
            | Self::CloseStdin(_)
            | Self::List
            | Self::Sessions
            | Self::SetLinger(_) => None,
        }
    }
}

/// The context of a request.
pub struct Caller<'a> {
    /// The server that received the request.
    pub server: &'a Arc<Server>,
    /// The session that the connection is attached to.
    pub session: &'a Session,
    /// The connection that sent the request.
    pub connection: ConnectionId,
    /// File handles of this connection.
    pub files: &'a Files,
    /// HTTP exchanges of this connection.
    pub http: &'a Http,
}

/// Decodes the params of a request; runs before the lifecycle and admission checks, as clients expect.
pub fn decode(server: &Server, method: Method, raw: &str) -> Result<Call, RequestError> {
    check_sandbox(method, raw)?;
    check_user(method, raw)?;
    match method.handler() {
        Handler::Server(method) => decode_own(server, method, raw),
        Handler::Path(method) => files::decode_path(server, method, raw).map(Call::File),
        Handler::File(method) => files::decode(server, method, raw).map(Call::File),
        Handler::Egress(method) => egress::decode(method, raw).map(Call::Http),
    }
}

fn decode_own(server: &Server, method: ServerMethod, raw: &str) -> Result<Call, RequestError> {
    Ok(match method {
        ServerMethod::Initialize => unreachable!("initialize is handled by the connection itself"),
        ServerMethod::EnvironmentInfo => read::<NoParams>(raw).map(|_| Call::EnvironmentInfo)?,
        ServerMethod::EnvironmentStatus => {
            read::<NoParams>(raw).map(|_| Call::EnvironmentStatus)?
        }
        ServerMethod::EnvironmentConfigRead => Call::ConfigRead(read(raw)?),
        ServerMethod::CapabilityRootsV1 => Call::DiscoverRoots(read(raw)?),
        ServerMethod::CapabilitiesV2 => Call::Discover(read(raw)?),
        ServerMethod::ProcessStart => Call::Start(Box::new(process::prepare(server, read(raw)?)?)),
        ServerMethod::ProcessRead => Call::Read(read(raw)?),
        ServerMethod::ProcessWrite => {
            let params = ProcessWriteParams::decode(raw).map_err(RequestError::InvalidParams)?;
            if params.write_id.as_deref() == Some("") {
                return Err(RequestError::InvalidParams("writeId must not be empty".to_owned()));
            }
            Call::Write(params)
        }
        ServerMethod::ProcessSignal => Call::Signal(read(raw)?),
        ServerMethod::ProcessTerminate => Call::Terminate(read(raw)?),
        ServerMethod::ProcessResize => Call::Resize(read(raw)?),
        ServerMethod::ProcessCloseStdin => Call::CloseStdin(read(raw)?),
        ServerMethod::ProcessList => read::<NoParams>(raw).map(|_| Call::List)?,
        ServerMethod::SessionList => read::<NoParams>(raw).map(|_| Call::Sessions)?,
        ServerMethod::SessionSetLinger => Call::SetLinger(read(raw)?),
    })
}

/// Puts the bytes of a binary message in the place of the empty `chunk` of its header.
pub fn with_chunk(
    method: Method,
    mut call: Call,
    bytes: Option<&[u8]>,
) -> Result<Call, RequestError> {
    let Some(bytes) = bytes else { return Ok(call) };
    let chunk = if let Call::Write(params) = &mut call {
        &mut params.chunk
    } else if let Call::File(FileCall::WriteBlock(params)) = &mut call {
        &mut params.chunk
    } else {
        return Err(no_binary(method));
    };
    if !chunk.0.is_empty() {
        let reason = "`chunk` must be empty in the header of a binary message";
        return Err(RequestError::InvalidParams(reason.to_owned()));
    }
    chunk.0 = bytes.to_vec();
    Ok(call)
}

/// The answer to a binary message of a method that has no bytes.
pub fn no_binary(method: Method) -> RequestError {
    let reason = format!("{} takes no binary message; send it as JSON", method.name());
    RequestError::InvalidParams(reason)
}

/// Rejects a `sandbox` member where the method does not enforce one.
pub fn check_sandbox(method: Method, raw: &str) -> Result<(), RequestError> {
    if method.takes_sandbox() || !params::has_member(raw, "sandbox") {
        return Ok(());
    }
    let is_of_handle =
        matches!(method, Method::FsReadBlock | Method::FsWriteBlock | Method::FsClose);
    let hint = match () {
        () if method == Method::FsBatch => "; give each of its requests a sandbox of its own",
        () if is_of_handle => "; the sandbox of fs/open holds for the handle",
        () => "",
    };
    let reason = format!("{} cannot enforce a sandbox{hint}", method.name());
    Err(RequestError::InvalidParams(reason))
}

/// Rejects a `user` member where the method does not honour one.
pub fn check_user(method: Method, raw: &str) -> Result<(), RequestError> {
    if method.takes_user() || !params::has_member(raw, "user") {
        return Ok(());
    }
    let is_of_handle =
        matches!(method, Method::FsReadBlock | Method::FsWriteBlock | Method::FsClose);
    let hint = match () {
        () if method == Method::FsBatch => "; give each of its requests a user of its own",
        () if is_of_handle => "; the user of fs/open holds for the handle",
        () => "",
    };
    let reason = format!("{} cannot run as another user{hint}", method.name());
    Err(RequestError::InvalidParams(reason))
}

/// Decodes params; the error texts are part of the protocol.
pub fn read<T: DeserializeOwned>(raw: &str) -> Result<T, RequestError> {
    params::decode(raw).map_err(RequestError::InvalidParams)
}

/// Answers a request or forwards it to its handler.
pub fn run(caller: &Caller, call: Call, reply: Reply) {
    if let Err(error) = caller.session.check_holder(caller.connection) {
        return reply.fail(&error);
    }
    match call {
        Call::EnvironmentInfo => reply.ok(&caller.server.environment),
        Call::EnvironmentStatus => {
            reply.ok(&EnvironmentStatusResponse { status: EnvironmentStatus::Ready });
        }
        Call::ConfigRead(params) => crate::codex::handlers::read_config(caller, *params, reply),
        Call::DiscoverRoots(params) => {
            crate::codex::handlers::discover_roots(caller, params, reply)
        }
        Call::Discover(params) => crate::codex::handlers::discover(caller, *params, reply),
        Call::Start(start) => {
            caller.session.start_process(caller.server, caller.connection, *start, reply);
        }
        Call::List => session_list::list_processes(caller, reply),
        Call::Sessions => session_list::list_sessions(caller, reply),
        Call::SetLinger(params) => {
            let wanted = Duration::from_millis(params.linger_ms);
            let session_linger_ms = caller.session.set_linger(caller.server, wanted);
            reply.ok(&SessionSetLingerResponse { session_linger_ms });
        }
        Call::File(call) => caller.files.run(caller, call, reply),
        Call::Http(call) => caller.http.run(caller, call, reply),
        Call::Read(params) => {
            let id = params.process_id.clone();
            let session_id = params.session_id.clone();
            send_to_any(caller, session_id.as_deref(), &id, Command::Read(params, reply));
        }
        Call::Write(params) => {
            let command = Command::Write { id: params.write_id, bytes: params.chunk.0, reply };
            send_to_own(caller, &params.process_id, command);
        }
        Call::CloseStdin(params) => {
            send_to_own(caller, &params.process_id, Command::CloseStdin(reply))
        }
        Call::Signal(params) => {
            let command = Command::Signal(params.signal, reply);
            send_to_any(caller, params.session_id.as_deref(), &params.process_id, command);
        }
        Call::Resize(params) => {
            send_to_own(caller, &params.process_id, Command::Resize(params.size, reply))
        }
        Call::Terminate(params) => {
            let grace = params.grace_ms.map(Duration::from_millis);
            let command = Command::Terminate { grace, reply };
            send_to_any(caller, params.session_id.as_deref(), &params.process_id, command);
        }
    }
}

fn send_to_own(caller: &Caller, process_id: &str, command: Command) {
    send_in(caller.session, process_id, command);
}

/// Sends a command to a process of the caller's session, or of another session of the same principal.
fn send_to_any(caller: &Caller, session_id: Option<&str>, process_id: &str, command: Command) {
    let Some(session_id) = session_id else { return send_to_own(caller, process_id, command) };
    match caller.server.sessions.find(session_id, caller.session.principal()) {
        Ok(session) => send_in(&session, process_id, command),
        Err(error) => match command {
            Command::Read(_, reply)
            | Command::Signal(_, reply)
            | Command::Terminate { reply, .. } => reply.fail(&error),
            Command::StartAgain(_)
            | Command::Write { .. }
            | Command::CloseStdin(_)
            | Command::Resize(..)
            | Command::Forget
            | Command::Summarise(_)
            | Command::End { .. } => unreachable!("these commands name no session"),
        },
    }
}

fn send_in(session: &Session, process_id: &str, command: Command) {
    let refused = match session.process(process_id) {
        Some(process) => process.send(command).err(),
        None => Some(command),
    };
    if let Some(command) = refused {
        answer_unknown(process_id, command);
    }
}

/// Answers a command for a process that does not exist or has been removed.
pub fn answer_unknown(process_id: &str, command: Command) {
    let unknown = || RequestError::UnknownProcess(process_id.to_owned());
    match command {
        Command::StartAgain(reply) => {
            reply.fail(&RequestError::DuplicateProcess(process_id.to_owned()));
        }
        Command::Read(_, reply) | Command::Resize(_, reply) => reply.fail(&unknown()),
        Command::Write { reply, .. } | Command::CloseStdin(reply) => {
            reply.ok(&ProcessWriteResponse { status: WriteStatus::UnknownProcess });
        }
        Command::Signal(_, reply) => reply.ok(&Empty {}),
        Command::Terminate { reply, .. } => reply.ok(&ProcessTerminateResponse { running: false }),
        // These commands carry no reply.
        Command::Summarise(_) | Command::Forget | Command::End { .. } => {}
    }
}
