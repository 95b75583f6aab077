//! One connection: reads what the peer sends, keeps to the lifecycle, and hands requests on.

use std::sync::Arc;
use std::time::Duration;

use exec_server_machines::admission::{Admission, Admitted};
use exec_server_machines::attachment::ConnectionId;
use exec_server_machines::phase::Phase;
use exec_server_protocol::envelope::{self, Incoming, MALFORMED_ID, RequestId};
use exec_server_protocol::initialize::{InitializeParams, InitializeResponse};
use exec_server_protocol::methods::{Family, INITIALIZED, Method};
use exec_server_protocol::params;
use exec_server_transport::connection::{Connection, Ended, Event, InMessage, WireError};
use exec_server_transport::outbox::Outbox;

use crate::auth::Principal;
use crate::close_codes;
use crate::dispatch::{self, Call, Caller};
use crate::errors::RequestError;
use crate::files::Files;
use crate::http::Http;
use crate::reply::Reply;
use crate::server::Server;
use crate::sessions::{Opener, Session, TakeOver};

/// Serves one peer until its connection ends; its session then waits for the next.
pub async fn run_connection(
    server: Arc<Server>,
    mut connection: Connection,
    principal: Principal,
) -> Ended {
    let id = match server.enter(connection.outbox()) {
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
    let limits = server.config.limits;
    let mut peer = Peer {
        id,
        principal,
        outbox: connection.outbox().clone(),
        parse_prefix: connection.describe(),
        phase: Phase::default(),
        session: None,
        files: Files::default(),
        http: Http::new(&server),
        admission: Admission::new(limits.concurrent_requests, limits.waiting_requests),
        server: server.clone(),
    };
    let ended = loop {
        match connection.next().await {
            Event::Message(message) => peer.handle_message(&message).await,
            Event::Finished(count) => peer.handle_finished(count),
            Event::EndOfInput => {
                let patience = server.config.timings.drain_at_end_of_input;
                let last = tokio::time::timeout(patience, peer.finish(&mut connection)).await;
                break last.unwrap_or(Ended::ByPeer);
            }
            Event::Closed(ended) => break ended,
        }
    };
    if let Some(session) = &peer.session {
        session.detach(id);
    }
    tracing::debug!(connection_id = id.0, ?ended, "connection closed");
    // Whoever is being asked on its behalf need not wait for a slow goodbye.
    drop(peer);
    drop(active);
    server.leave(id);
    if matches!(ended, Ended::ByUs(_) | Ended::Broken(WireError::Protocol(_))) {
        connection.linger(server.config.timings.linger_after_close).await;
    }
    ended
}

/// Smaller requests are bounded by their number.
const LARGE_REQUEST_BYTES: usize = 16 * 1024;

struct Peer {
    server: Arc<Server>,
    id: ConnectionId,
    principal: Principal,
    outbox: Outbox,
    parse_prefix: String,
    phase: Phase,
    session: Option<Session>,
    /// Dropped with the connection, and with it everything that was not finished.
    files: Files,
    http: Http,
    admission: Admission<(Call, Reply)>,
}

impl Peer {
    /// The peer has asked its last question: it still gets its answers.
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
            Ok(Incoming::Request { id, method, params }) => {
                self.handle_request(id, &method, params).await
            }
            Ok(Incoming::Notification { method, .. }) => self.handle_notification(&method),
            Ok(Incoming::Response { .. } | Incoming::Error { .. }) => {
                self.outbox
                    .close(close_codes::PROTOCOL_ERROR, "a reply to a request that was never sent");
            }
            Err(error) => {
                self.refuse(&RequestError::Malformed(format!("{}: {error}", self.parse_prefix)));
            }
        }
    }

    fn handle_notification(&mut self, method: &str) {
        if method != INITIALIZED {
            return self.refuse(&RequestError::UnknownNotification(method.to_owned()));
        }
        if let Err(error) = self.phase.handle_initialized() {
            self.outbox.close(close_codes::PROTOCOL_ERROR, error.to_string());
        }
    }

    /// Answers a message that has no id of its own.
    fn refuse(&self, error: &RequestError) {
        self.outbox.push_reply(envelope::error(&MALFORMED_ID, &error.to_rpc()));
    }

    async fn handle_request(&mut self, id: RequestId, name: &str, raw_params: &str) {
        let Some(method) = Method::by_name(name) else {
            let error = RequestError::UnknownMethod(name.to_owned()).to_rpc();
            return self.outbox.push_reply(envelope::error(&id, &error));
        };
        if method == Method::Initialize {
            let timer = self.server.metrics.request(method);
            let result = self.initialize(raw_params).await;
            timer.finish(result.is_ok());
            match result {
                Ok(response) => {
                    self.outbox.push_reply(envelope::response(&id, &response));
                    // Events may follow the answer, never precede it.
                    if let Some(session) = &self.session {
                        session.publish(self.outbox.clone());
                    }
                }
                // A session from an earlier success may by now belong to another connection.
                Err(error) => self.outbox.push_reply(envelope::error(&id, &error.to_rpc())),
            }
            return;
        }
        let timer = self.server.metrics.request(method);
        let mut reply = Reply::new(id, method, self.outbox.clone(), timer);
        // Stdin has bounds of its own, and a terminate must get past a process that takes none.
        if method.family() == Family::FileSystem && raw_params.len() >= LARGE_REQUEST_BYTES {
            reply.hold(raw_params.len());
        }
        let checked = dispatch::decode(&self.server, method, raw_params)
            .and_then(|call| self.phase.check(method.family()).map(|()| call).map_err(Into::into));
        match checked {
            Ok(call) => match self.admission.handle_request(method.lane(), (call, reply)) {
                Admitted::Run((call, reply)) => self.run(call, reply),
                Admitted::Waits => {}
                Admitted::Refused((_, reply)) => {
                    reply.fail_uncounted(&RequestError::TooManyRequests)
                }
            },
            Err(error) => reply.fail_uncounted(&error),
        }
    }

    fn handle_finished(&mut self, count: usize) {
        self.admission.handle_finished(count);
        while let Some((call, reply)) = self.admission.poll_next() {
            self.run(call, reply);
        }
    }

    fn run(&self, call: Call, reply: Reply) {
        let session =
            self.session.as_ref().expect("requests run only after initialize gave a session");
        let (server, files, http) = (&self.server, &self.files, &self.http);
        dispatch::run(&Caller { server, session, connection: self.id, files, http }, call, reply);
    }

    async fn initialize(&mut self, raw_params: &str) -> Result<InitializeResponse, RequestError> {
        let params: InitializeParams =
            params::decode(raw_params).map_err(RequestError::InvalidParams)?;
        self.phase.check_initialize()?;
        let linger = params.linger_ms.map(Duration::from_millis);
        let session = match params.resume_session_id {
            None => {
                let opener = Opener {
                    connection: self.id,
                    principal: self.principal.clone(),
                    client_name: params.client_name.clone(),
                    outbox: self.outbox.clone(),
                    linger,
                };
                self.server.sessions.open(&self.server, opener)?
            }
            Some(id) => {
                let session = self.server.sessions.find(&id, &self.principal)?;
                let take_over =
                    if params.take_over { TakeOver::Always } else { TakeOver::IfSilent };
                session.attach(self.id, self.outbox.clone(), take_over).await?;
                if let Some(linger) = linger {
                    session.set_linger(&self.server, linger);
                }
                session
            }
        };
        tracing::info!(
            connection_id = self.id.0,
            session_id = session.id(),
            client = params.client_name,
            "client connected"
        );
        let response = InitializeResponse {
            session_id: session.id().to_owned(),
            environment_info: self.server.environment.clone(),
            session_linger_ms: session.linger_ms(),
        };
        self.session = Some(session);
        self.phase.handle_initialize();
        Ok(response)
    }
}
