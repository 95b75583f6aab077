//! Serves one connection: reads messages, enforces the lifecycle and admits requests.
//!
//! Owner: the connection task. The session outlives the connection and is detached at its end.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use exec_server_core::admission::{Admission, Admitted};
use exec_server_core::attachment::ConnectionId;
use exec_server_core::phase::Phase;
use exec_server_protocol::envelope::{self, Incoming, MALFORMED_ID, RequestId};
use exec_server_protocol::initialize::{InitializeParams, InitializeResponse};
use exec_server_protocol::limits::MAX_CLIENT_NAME_BYTES;
use exec_server_protocol::methods::{Family, INITIALIZED, Lane, Method, SESSION_MOVED};
use exec_server_protocol::params;
use exec_server_protocol::process::Empty;
use exec_server_transport::connection::{Connection, Ended, Event, InMessage, WireError};
use exec_server_transport::outbox::Outbox;

use crate::audit::{self, Who};
use crate::auth::{Authenticated, Principal};
use crate::close_codes;
use crate::dispatch::{self, Call, Caller};
use crate::egress::Http;
use crate::errors::{RequestError, check_length};
use crate::files::Files;
use crate::ignored;
use crate::reply::Reply;
use crate::reply_memory::Account;
use crate::request_spans::{fail_span, request_span};
use crate::server::Server;
use crate::sessions::{ClientKind, NewSession, ResumeRequest, Session, TakeOver};

/// Serves one peer until its connection ends, then detaches its session.
pub async fn run_connection(
    server: Arc<Server>,
    mut connection: Connection,
    authenticated: impl Into<Authenticated>,
) -> Ended {
    let Authenticated { principal, credential, origin } = authenticated.into();
    let id = match server.enter(connection.outbox(), credential) {
        Ok(id) => id,
        Err(error) => {
            connection.outbox().close(close_codes::GOING_AWAY, error.to_string());
            loop {
                if let Event::Closed(ended) = connection.next().await {
                    return ended;
                }
            }
        }
    };
    let active = server.metrics.connection();
    connection.set_held_limit(MAX_HELD_BYTES);
    connection.set_unpaid_limit(MAX_UNPAID_BYTES);
    let limits = server.config.limits;
    let mut peer = Peer {
        id,
        outbox: connection.outbox().clone(),
        parse_prefix: connection.describe(),
        phase: Phase::default(),
        has_version: false,
        reports_ignored: false,
        session: None,
        who: server.audit.is_some().then(|| Arc::new(Who::new(id.0, &principal, &origin))),
        account: server.reply_memory.open_account(),
        files: Files::default(),
        http: Http::new(&server),
        admission: Admission::new(limits.concurrent_requests, limits.waiting_requests),
        principal,
        server: server.clone(),
    };
    let ended = loop {
        match connection.next().await {
            Event::Message(message) => {
                peer.handle_message(&message).await;
                // Set before the next write, so that the reply already carries the version.
                if peer.has_version {
                    connection.enable_version();
                }
            }
            Event::Finished(count) => peer.handle_finished(count),
            Event::EndOfInput => {
                let limit = server.config.timings.drain_at_end_of_input;
                let last = tokio::time::timeout(limit, peer.finish(&mut connection)).await;
                break last.unwrap_or(Ended::ByPeer);
            }
            Event::Closed(ended) => break ended,
        }
    };
    if let Some(session) = &peer.session {
        session.detach(id);
        peer.record("connection/closed", ());
    }
    tracing::debug!(connection_id = id.0, ?ended, "connection closed");
    // Release the handlers now: the close handshake below can be slow.
    peer.account.close();
    drop(peer);
    drop(active);
    server.leave(id);
    if matches!(ended, Ended::ByUs(_) | Ended::Broken(WireError::Protocol(_))) {
        connection.linger(server.config.timings.linger_after_close).await;
    }
    ended
}

/// File requests below this size are bounded by their count only.
const LARGE_REQUEST_BYTES: usize = 4 * 1024;
/// Memory of a waiting request, apart from its params.
const WAITING_REQUEST_BYTES: usize = 512;
/// Bytes of waiting requests at which reading from the peer is paused.
const MAX_HELD_BYTES: usize = 12 * 1024 * 1024;
/// Bytes of unread small replies and events at which reading from the peer is paused.
const MAX_UNPAID_BYTES: usize = 4 * 1024 * 1024;

struct Peer {
    server: Arc<Server>,
    id: ConnectionId,
    principal: Principal,
    outbox: Outbox,
    parse_prefix: String,
    phase: Phase,
    /// Whether a request carried `"jsonrpc":"2.0"`.
    has_version: bool,
    /// Whether replies list the unknown members of their request.
    reports_ignored: bool,
    session: Option<Session>,
    /// Who requests are recorded for, if the server has an audit log.
    who: Option<Arc<Who>>,
    account: Arc<Account>,
    /// Dropped with the connection, which discards unfinished writes.
    files: Files,
    http: Http,
    admission: Admission<(Call, Reply)>,
}

impl Peer {
    /// Handles the end of input: pending requests are still answered, then the connection closes.
    async fn finish(&mut self, connection: &mut Connection) -> Ended {
        while !(self.admission.is_idle() && self.http.is_idle()) {
            let event = tokio::select! {
                event = connection.next() => event,
                () = self.http.idle(), if !self.http.is_idle() => continue,
            };
            match event {
                Event::Finished(count) => self.handle_finished(count),
                Event::Closed(ended) => return ended,
                Event::Message(_) | Event::EndOfInput => {}
            }
        }
        self.outbox.close_in_order(close_codes::NORMAL, "end of input");
        loop {
            if let Event::Closed(_) = connection.next().await {
                return Ended::ByPeer;
            }
        }
    }

    async fn handle_message(&mut self, message: &InMessage) {
        match message.decode() {
            Ok(Incoming::Request { id, method, params, has_version, trace }) => {
                self.has_version |= has_version;
                self.handle_request(id, &method, params, message.chunk(), trace).await
            }
            Ok(Incoming::Notification { method, .. }) => self.handle_notification(&method),
            Ok(Incoming::Response { .. } | Incoming::Error { .. }) => {
                self.outbox
                    .close(close_codes::PROTOCOL_ERROR, "a reply to a request that was never sent");
            }
            Err(error) => {
                self.reject(&RequestError::Malformed(format!("{}: {error}", self.parse_prefix)));
            }
        }
    }

    fn handle_notification(&mut self, method: &str) {
        if method != INITIALIZED {
            return self.reject(&RequestError::UnknownNotification(method.to_owned()));
        }
        if let Err(error) = self.phase.handle_initialized() {
            self.outbox.close(close_codes::PROTOCOL_ERROR, error.to_string());
        }
    }

    /// Rejects a message that carries no request id.
    fn reject(&self, error: &RequestError) {
        self.outbox.push_reply(envelope::error(&MALFORMED_ID, &error.to_rpc()));
    }

    /// `chunk` has the bytes of a binary message.
    async fn handle_request(
        &mut self,
        id: RequestId,
        name: &str,
        raw_params: &str,
        chunk: Option<&[u8]>,
        trace: Option<&str>,
    ) {
        let Some(method) = Method::by_name(name) else {
            let is_reference =
                self.session.as_ref().is_some_and(|it| it.client() == ClientKind::Reference);
            let error = if is_reference {
                RequestError::UnimplementedMethod(name.to_owned()).to_rpc()
            } else {
                RequestError::UnknownMethod(name.to_owned()).to_rpc()
            };
            return self.outbox.push_reply(envelope::error(&id, &error));
        };
        let mut span = request_span(&self.server.config.tracer, method, raw_params, trace);
        if method == Method::Initialize {
            let timer = self.server.metrics.request(method);
            let result = match chunk {
                None => self.initialize(id.clone(), raw_params).await,
                Some(_) => Err(dispatch::no_binary(method)),
            };
            timer.finish(result.is_ok());
            if let Err(error) = result {
                fail_span(&mut span, &error);
                self.outbox.push_reply(envelope::error(&id, &error.to_rpc()));
            }
            return;
        }
        let timer = self.server.metrics.request(method);
        let mut reply = Reply::new(id, method, self.outbox.clone(), self.account.clone(), timer);
        let position = span.context().cloned();
        reply.trace(span);
        // Stdin has its own bounds, and `process/terminate` must pass a process that does not read.
        let params_bytes = raw_params.len() + chunk.map_or(0, <[u8]>::len);
        if method.family() == Family::FileSystem && params_bytes >= LARGE_REQUEST_BYTES {
            reply.hold(params_bytes);
        }
        if self.reports_ignored {
            reply.report_ignored(ignored::members(method, raw_params));
        }
        let checked = dispatch::decode(&self.server, method, raw_params)
            .and_then(|call| dispatch::with_chunk(method, call, chunk))
            .and_then(|call| self.phase.check(method.family()).map(|()| call).map_err(Into::into));
        let checked =
            checked.and_then(|call| self.audit(method, raw_params, chunk, call, &mut reply));
        match checked {
            Ok(mut call) => {
                if let Call::Start(start) = &mut call {
                    start.trace = position;
                }
                match self.admit(method.lane(), params_bytes, call, reply) {
                    Admitted::Run((call, reply)) => self.run(call, reply),
                    Admitted::Waits => {}
                    Admitted::Refused((_, reply)) => {
                        reply.fail_uncounted(&RequestError::TooManyRequests)
                    }
                }
            }
            Err(error) => reply.fail_uncounted(&error),
        }
    }

    /// Prepares the audit record of a request; fails if the request must be refused.
    fn audit(
        &self,
        method: Method,
        raw_params: &str,
        chunk: Option<&[u8]>,
        mut call: Call,
        reply: &mut Reply,
    ) -> Result<Call, RequestError> {
        if let (Some(audit), Some(who)) = (&self.server.audit, &self.who)
            && let Some(record) = audit::begin(audit, who, method, (raw_params, chunk), &mut call)?
        {
            reply.audit(record);
        }
        Ok(call)
    }

    fn record(&self, event: &str, details: impl serde::Serialize) {
        if let Some(audit) = &self.server.audit {
            audit.record(event, self.who.as_deref(), details);
        }
    }

    /// Runs an ordinary request only while the outbox has room for its reply.
    fn admit(
        &mut self,
        lane: Lane,
        params_bytes: usize,
        call: Call,
        mut reply: Reply,
    ) -> Admitted<(Call, Reply)> {
        let may_run = lane == Lane::Control || self.outbox.has_room();
        if lane == Lane::Ordinary && !(may_run && self.admission.has_place()) {
            reply.hold(params_bytes + WAITING_REQUEST_BYTES);
        }
        self.admission.handle_request(lane, may_run, (call, reply))
    }

    fn handle_finished(&mut self, count: usize) {
        self.admission.handle_finished(count);
        while self.outbox.has_room()
            && let Some((call, reply)) = self.admission.poll_next()
        {
            self.run(call, reply);
        }
    }

    fn run(&self, call: Call, reply: Reply) {
        let session =
            self.session.as_ref().expect("requests run only after initialize gave a session");
        let (server, files, http) = (&self.server, &self.files, &self.http);
        dispatch::run(&Caller { server, session, connection: self.id, files, http }, call, reply);
    }

    /// Opens or resumes a session; on success the reply has been queued.
    async fn initialize(&mut self, id: RequestId, raw_params: &str) -> Result<(), RequestError> {
        dispatch::check_sandbox(Method::Initialize, raw_params)?;
        let params: InitializeParams =
            params::decode(raw_params).map_err(RequestError::InvalidParams)?;
        check_length("clientName", &params.client_name, MAX_CLIENT_NAME_BYTES)?;
        self.phase.check_initialize()?;
        // Before a resume, because the processes send at once.
        self.outbox.allow_binary(params.client_capabilities.binary_messages);
        let linger = params.linger_ms.map(Duration::from_millis);
        let environment_info = self.server.environment.clone();
        let build_reply = move |session_id: String, session_linger_ms| -> Bytes {
            let response = InitializeResponse { session_id, environment_info, session_linger_ms };
            envelope::response(&id, &response).into()
        };
        let is_resumed = params.resume_session_id.is_some();
        let session = match params.resume_session_id {
            None => {
                let new = NewSession {
                    connection: self.id,
                    principal: self.principal.clone(),
                    client_name: params.client_name.clone(),
                    outbox: self.outbox.clone(),
                    linger,
                };
                let session = self.server.sessions.open(&self.server, new)?;
                self.outbox.push_reply(build_reply(session.id().to_owned(), session.linger_ms()));
                session
            }
            Some(session_id) => {
                let session = self.server.sessions.find(&session_id, &self.principal)?;
                let take_over = match params.take_over {
                    Some(true) => TakeOver::Always,
                    Some(false) => TakeOver::IfProvenSilent,
                    None => TakeOver::IfSilent,
                };
                let request = ResumeRequest {
                    connection: self.id,
                    outbox: self.outbox.clone(),
                    take_over,
                    linger,
                    build_reply: Box::new(move |linger_ms| build_reply(session_id, linger_ms)),
                };
                session.attach(request).await?;
                session
            }
        };
        tracing::info!(
            connection_id = self.id.0,
            session_id = session.id(),
            client = params.client_name,
            "client connected"
        );
        if let Some(who) = &mut self.who {
            let who = Arc::make_mut(who);
            who.session = Some(session.id().to_owned());
            who.client = Some(params.client_name);
        }
        self.record("connection/opened", serde_json::json!({ "resumed": is_resumed }));
        self.session = Some(session);
        self.reports_ignored = params.client_capabilities.report_ignored;
        if params.client_capabilities.session_moved {
            self.outbox.set_notice(envelope::notification(SESSION_MOVED, &Empty {}));
        }
        self.phase.handle_initialize();
        Ok(())
    }
}
