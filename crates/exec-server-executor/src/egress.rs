//! `http/*`: HTTP exchanges with other servers, made from the executor's network.
//!
//! Each exchange is its own task, so a slow one delays no other. Exchanges are cancelled with their connection.

use std::sync::{Arc, Mutex, MutexGuard};

use exec_server_protocol::http::{
    HttpCancelParams, HttpCancelResponse, HttpRequestBodyParams, HttpRequestBodyResponse,
    HttpRequestParams,
};
use exec_server_protocol::methods::EgressMethod;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::audit;
use crate::dispatch::{Caller, read};
use crate::errors::RequestError;
use crate::reply::Reply;
use crate::reply_memory::Account;
use crate::sandbox::check_network;
use crate::server::Server;

mod allowed_host;
mod budget;
mod byte_stream;
mod connection;
mod dial;
mod dns_limit;
mod error;
mod exchange;
mod idle_waker;
mod metadata;
mod origin;
mod policy;
mod pool;
mod redirect;
mod request;
mod response;
mod setup;
mod table;
mod target;
mod upload;

pub use allowed_host::{AllowedHost, AllowedHostError};
use budget::Budget;
use dns_limit::DnsLimit;
pub use error::HttpError;
use exchange::Exchange;
pub use policy::EgressPolicy;
use pool::Pool;
use request::{Announced, Outgoing, OutgoingBody};
pub use setup::HttpSetup;
use table::{Table, Ticket};
use target::LastTarget;
use upload::{Chunk, upload};

/// An HTTP request with decoded params.
#[derive(Debug)]
pub enum HttpCall {
    /// `http/request`.
    Request(Box<HttpRequestParams>),
    /// `http/requestBody`.
    RequestBody(HttpRequestBodyParams),
    /// `http/cancel`.
    Cancel(HttpCancelParams),
}

impl HttpCall {
    /// What the audit log says about the call; `None` for a call that is not recorded.
    pub fn audit_details(&self) -> Option<audit::Details> {
        match self {
            Self::Request(params) => Some(audit::Details {
                http_method: Some(params.method.clone()),
                url: Some(audit::without_secrets(&params.url)),
                sandboxed: Some(params.sandbox.is_some()),
                ..audit::Details::default()
            }),
            Self::RequestBody(_) | Self::Cancel(_) => None,
        }
    }
}

/// Counted per body chunk in addition to its bytes; bounds the number of tiny chunks.
const AROUND_CHUNK_BYTES: usize = 1024;

/// Decodes the params of an `http/*` method.
pub fn decode(method: EgressMethod, raw: &str) -> Result<HttpCall, RequestError> {
    Ok(match method {
        EgressMethod::HttpRequest => HttpCall::Request(Box::new(read(raw)?)),
        EgressMethod::HttpRequestBody => HttpCall::RequestBody(
            HttpRequestBodyParams::decode(raw).map_err(RequestError::InvalidParams)?,
        ),
        EgressMethod::HttpCancel => HttpCall::Cancel(read(raw)?),
    })
}

/// The exchanges of one connection; dropping it cancels them.
#[derive(Debug)]
pub struct Http {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

/// State shared by the exchanges of one connection.
#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    targets: LastTarget,
    pool: Pool,
    dns_limit: DnsLimit,
    budget: Budget,
    /// Memory account of buffered responses, bounded per server and per connection.
    answers: Arc<Account>,
    /// Notified when the last exchange has ended.
    idle: Notify,
}

impl Http {
    /// Creates the state of a connection without exchanges.
    pub fn new(server: &Server) -> Self {
        let shared = Shared {
            table: Mutex::default(),
            targets: LastTarget::default(),
            pool: Pool::new(server.config.timings.http_idle_connection),
            dns_limit: server.http.dns_limit.of_client(),
            budget: Budget::default(),
            answers: server.reply_memory.open_account(),
            idle: Notify::new(),
        };
        Self { shared: Arc::new(shared), tasks: Mutex::default() }
    }

    /// Handles an `http/*` request.
    pub fn run(&self, caller: &Caller, call: HttpCall, reply: Reply) {
        match call {
            HttpCall::Request(params) => self.request(caller, *params, reply),
            HttpCall::RequestBody(params) => self.request_body(params, reply),
            HttpCall::Cancel(params) => {
                let cancelled = self.shared.table().cancel(&params.request_id);
                reply.ok(&HttpCancelResponse { cancelled });
            }
        }
    }

    /// Whether no exchange is active.
    pub fn is_idle(&self) -> bool {
        self.shared.table().is_empty()
    }

    /// Waits until no exchange is active.
    pub async fn idle(&self) {
        loop {
            let idle = self.shared.idle.notified();
            if self.is_idle() {
                return;
            }
            idle.await;
        }
    }

    fn request(&self, caller: &Caller, params: HttpRequestParams, reply: Reply) {
        match self.begin(caller, params) {
            Ok(begun) => {
                let mut tasks = self.tasks.lock().expect("no holder panics");
                while tasks.try_join_next().is_some() {}
                if tasks.is_empty() {
                    tasks.spawn(self.shared.pool.clone().run_sweeper());
                }
                // Boxed because the future is large and spawning moves it several times.
                tasks.spawn(Box::pin(begun(reply).run()));
            }
            Err(error) => reply.fail(&error),
        }
    }

    /// Validates a request and registers the exchange; nothing is sent yet.
    fn begin(
        &self,
        caller: &Caller,
        params: HttpRequestParams,
    ) -> Result<impl FnOnce(Reply) -> Exchange, RequestError> {
        check_network(&caller.server.sandboxes, params.sandbox.as_ref())?;
        let request_id = params.request_id.clone();
        let stream_as = params.stream_response.then(|| request_id.clone());
        let (mut request, announced) =
            Outgoing::new(params, &self.shared.targets, &self.shared.budget)?;
        let upload = match announced {
            Announced::Whole => None,
            Announced::Streamed(length) => {
                let (upload, chunks) = upload(length);
                request.body = OutgoingBody::Streamed(Some(chunks));
                Some(upload)
            }
        };
        let (ticket, cancelled) =
            self.shared.table().enter(&request_id, stream_as.is_some(), upload)?;
        let timer = caller.server.metrics.http_exchange();
        let (server, shared) = (caller.server.clone(), self.shared.clone());
        Ok(move |reply| Exchange {
            server,
            shared,
            ticket,
            cancelled,
            request,
            stream_as,
            timer,
            reply,
        })
    }

    fn request_body(&self, params: HttpRequestBodyParams, reply: Reply) {
        let HttpRequestBodyParams { request_id, seq, chunk, done } = params;
        let budget = &self.shared.budget;
        let Some((bytes, held)) = budget.hold(chunk.0).zip(budget.take(AROUND_CHUNK_BYTES)) else {
            return reply.fail(&RequestError::HttpOverloaded);
        };
        match self.shared.table().upload(&request_id) {
            Some(upload) => upload.handle_chunk(Chunk { seq, bytes, is_last: done, held, reply }),
            // Not an error: the exchange may have ended before the client sent its whole body.
            None => reply.ok(&HttpRequestBodyResponse { accepted: false }),
        }
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no holder panics")
    }

    /// Removes an exchange. Called before the final message, so that the client can reuse the id at once.
    fn leave(&self, ticket: Ticket) {
        let mut table = self.table();
        table.leave(ticket);
        if table.is_empty() {
            self.idle.notify_waiters();
        }
    }
}
