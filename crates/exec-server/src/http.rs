//! `http/*`: exchanges with other servers, made from where this one stands.
//!
//! Each exchange is a task of its own, so a slow one delays nothing else. What a connection asked for ends with it.

use std::sync::{Arc, Mutex, MutexGuard};

use exec_server_protocol::http::{
    HttpCancelParams, HttpCancelResponse, HttpRequestBodyParams, HttpRequestBodyResponse,
    HttpRequestParams,
};
use exec_server_protocol::methods::Method;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::dispatch::{Caller, read};
use crate::errors::RequestError;
use crate::reply::Reply;
use crate::server::Server;

mod allowed_host;
mod answer;
mod bell;
mod budget;
mod carrier;
mod dial;
mod error;
mod exchange;
mod link;
mod lookups;
mod metadata;
mod place;
mod pool;
mod reach;
mod redirect;
mod request;
mod setup;
mod table;
mod target;
mod upload;

pub use allowed_host::{AllowedHost, AllowedHostError};
use budget::Budget;
pub use error::HttpError;
use exchange::Exchange;
use lookups::Lookups;
use pool::Pool;
pub use reach::Reach;
use request::{Announced, Outgoing, OutgoingBody};
pub use setup::HttpSetup;
use table::{Table, Ticket};
use target::LastTarget;
use upload::{Chunk, upload};

/// A request about HTTP whose params have been read.
#[derive(Debug)]
pub enum HttpCall {
    /// `http/request`.
    Request(Box<HttpRequestParams>),
    /// `http/requestBody`.
    RequestBody(HttpRequestBodyParams),
    /// `http/cancel`.
    Cancel(HttpCancelParams),
}

/// What a chunk of a body is counted with beside its bytes, so that tiny ones are bounded in number.
const AROUND_CHUNK_BYTES: usize = 1024;

/// Reads the params of a request of this family.
pub fn decode(method: Method, raw: &str) -> Result<HttpCall, RequestError> {
    Ok(match method {
        Method::HttpRequest => HttpCall::Request(Box::new(read(raw)?)),
        Method::HttpRequestBody => HttpCall::RequestBody(
            HttpRequestBodyParams::decode(raw).map_err(RequestError::InvalidParams)?,
        ),
        Method::HttpCancel => HttpCall::Cancel(read(raw)?),
        _ => unreachable!("the dispatcher knows the families"),
    })
}

/// The exchanges of one connection; they end when it is dropped.
#[derive(Debug)]
pub struct Http {
    shared: Arc<Shared>,
    tasks: Mutex<JoinSet<()>>,
}

/// What the exchanges of one connection share.
#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    targets: LastTarget,
    pool: Pool,
    lookups: Lookups,
    budget: Budget,
    /// Told when the last exchange has ended.
    idle: Notify,
}

impl Http {
    /// No exchange yet.
    pub fn new(server: &Server) -> Self {
        let shared = Shared {
            table: Mutex::default(),
            targets: LastTarget::default(),
            pool: Pool::new(server.config.timings.http_idle_connection),
            lookups: server.http.lookups.of_client(),
            budget: Budget::default(),
            idle: Notify::new(),
        };
        Self { shared: Arc::new(shared), tasks: Mutex::default() }
    }

    /// Answers a request, or begins what will.
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

    /// Whether no exchange is going on.
    pub fn is_idle(&self) -> bool {
        self.shared.table().is_empty()
    }

    /// Waits until no exchange is going on.
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
                // It is large, and a task moves what it is given several times before and after it runs.
                tasks.spawn(Box::pin(begun(reply).run()));
            }
            Err(error) => reply.fail(&error),
        }
    }

    /// Checks a request and gives it its place; nothing is sent yet.
    fn begin(
        &self,
        caller: &Caller,
        params: HttpRequestParams,
    ) -> Result<impl FnOnce(Reply) -> Exchange, RequestError> {
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
            // The other side may have answered without waiting for all of it.
            None => reply.ok(&HttpRequestBodyResponse { accepted: false }),
        }
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("no holder panics")
    }

    /// An exchange has ended; its name is free before the client hears of it.
    fn leave(&self, ticket: Ticket) {
        let mut table = self.table();
        table.leave(ticket);
        if table.is_empty() {
            self.idle.notify_waiters();
        }
    }
}
