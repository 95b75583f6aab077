//! Runs one exchange from its request to the end of the response.
//!
//! ```text
//!   head:  check host ─▶ idle connection, or dial ─▶ send ─▶ response head ─redirect─▶ again
//!   body:  buffered into the reply, or reply and then deltas
//! ```
//!
//! Owner: the exchange task, which drives its connection itself. An exchange ends early on cancel, timeout, or when the
//! client's connection closes.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use exec_server_protocol::limits::MAX_HTTP_REDIRECTS;
use hyper::header::{CONTENT_LENGTH, TRANSFER_ENCODING, UPGRADE};
use hyper::http::response::Parts;
use hyper::{Method, Response, StatusCode};
use tokio::sync::oneshot;

use super::Shared;
use super::byte_stream::is_endless_head;
use super::connection::{AnswerBody, Http1Connection};
use super::dial::dial;
use super::error::HttpError;
use super::origin::Origin;
use super::policy::Resolver;
use super::pool::PoolKey;
use super::redirect;
use super::request::Outgoing;
use super::response::{self, AnswerHead, Deltas};
use super::setup::{HttpSetup, Proxy};
use super::table::Ticket;
use crate::errors::RequestError;
use crate::metrics::HttpTimer;
use crate::reply::Reply;
use crate::server::Server;
use crate::timings::sleep_until;

/// An exchange that has not started yet.
pub struct Exchange {
    pub server: Arc<Server>,
    pub shared: Arc<Shared>,
    pub ticket: Ticket,
    /// Resolves on `http/cancel`.
    pub cancelled: oneshot::Receiver<()>,
    pub request: Outgoing,
    /// The request id of the deltas, if the response is streamed.
    pub stream_as: Option<String>,
    pub timer: HttpTimer,
    pub reply: Reply,
}

impl Exchange {
    /// Sends the request, and the response or the error to the client.
    pub async fn run(self) {
        let Self { server, shared, ticket, cancelled, mut request, stream_as, timer, mut reply } =
            self;
        let deadline = request.timeout.and_then(|timeout| {
            // A deadline that `Instant` cannot represent means no limit.
            Instant::now().checked_add(timeout).map(|at| (at, timeout))
        });
        let mut bounds = Bounds { deadline, cancelled };
        let mut room = None;
        let head = bounds
            .keep(async {
                if stream_as.is_none() {
                    response::make_room(&mut room, &shared, response::FIRST_BYTES, &reply).await?;
                }
                fetch(&server.http, &shared, &mut request).await
            })
            .await;
        let max_body_bytes = request.max_body_bytes;
        if request.is_repeatable() {
            drop(request);
        }
        let (head, mut body, pool_key) = match head {
            Ok(head) => head,
            Err(error) => {
                timer.finish(Some(error.kind()));
                shared.leave(ticket);
                return reply.fail(&RequestError::Http(error));
            }
        };
        tracing::debug!(status = head.parts.status.as_u16(), "received an http response");
        let result = match stream_as {
            Some(request_id) => {
                let outbox = reply.outbox().clone();
                reply.ok(&head.before_deltas());
                let mut deltas = Deltas::new(outbox, request_id);
                let result = bounds.keep(deltas.stream(&mut body, max_body_bytes)).await;
                timer.finish(result.as_ref().err().map(HttpError::kind));
                shared.leave(ticket);
                deltas.finish(&result);
                result
            }
            None => {
                let whole =
                    response::buffer(&head, &mut body, max_body_bytes, &shared, room, &reply);
                let whole = bounds.keep(whole).await;
                timer.finish(whole.as_ref().err().map(HttpError::kind));
                shared.leave(ticket);
                match whole {
                    Ok((text, held, room)) => {
                        reply.set_room(room);
                        reply.ok_text_holding(text, held);
                        Ok(())
                    }
                    Err(error) => return reply.fail(&RequestError::Http(error)),
                }
            }
        };
        if result.is_ok() {
            // The task that sends the reply runs first: `put` polls the connection, and the client does not need that.
            yield_local().await;
            shared.pool.put(pool_key, body.into_connection());
        }
    }
}

/// Lets the tasks run that are ready now. Unlike `tokio::task::yield_now` it does not poll the I/O driver first.
async fn yield_local() {
    let mut has_waited = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_waited, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The deadline and the cancel signal of an exchange.
struct Bounds {
    deadline: Option<(Instant, Duration)>,
    cancelled: oneshot::Receiver<()>,
}

impl Bounds {
    /// Runs `work` until it completes, the deadline passes, or the exchange is cancelled.
    async fn keep<T>(
        &mut self,
        work: impl Future<Output = Result<T, HttpError>>,
    ) -> Result<T, HttpError> {
        let (at, timeout) = self.deadline.unzip();
        let timeout = timeout.unwrap_or_default();
        // Timers have millisecond resolution, so for a deadline that has passed `work` could complete first.
        if at.is_some_and(|at| at <= Instant::now()) {
            return Err(HttpError::Timeout(timeout));
        }
        tokio::select! {
            biased;
            Ok(()) = &mut self.cancelled => Err(HttpError::Cancelled),
            () = sleep_until(at), if at.is_some() => {
                Err(HttpError::Timeout(timeout))
            }
            result = work => result,
        }
    }
}

/// Sends the request and follows redirects.
async fn fetch(
    setup: &HttpSetup,
    shared: &Shared,
    request: &mut Outgoing,
) -> Result<(AnswerHead, AnswerBody, PoolKey), HttpError> {
    for hop in 0..=MAX_HTTP_REDIRECTS {
        let proxy = setup.proxy(&request.target.url)?;
        let resolver = if proxy.is_some() { Resolver::Proxy } else { Resolver::Here };
        setup.policy.check_host(&request.target.origin, resolver)?;
        let pool_key = request.pool_key(proxy.as_ref());
        let (connection, answer) = send(setup, shared, request, proxy.as_ref(), &pool_key).await?;
        let (parts, incoming) = answer.into_parts();
        if let Some(reason) = impropriety(request, &parts) {
            return Err(HttpError::Improper { origin: request.target.origin.to_string(), reason });
        }
        let body = AnswerBody::new(connection, incoming);
        let Some(to) = redirect::target(request, parts.status, &parts.headers) else {
            let final_url = (hop > 0).then(|| request.target.url.to_string());
            return Ok((AnswerHead { parts, final_url }, body, pool_key));
        };
        if hop < MAX_HTTP_REDIRECTS {
            redirect::follow(request, parts.status, to)?;
        }
        // A redirect with a longer body costs its connection: draining the body would delay the next request.
        if body.is_at_end() {
            shared.pool.put(pool_key, body.into_connection());
        }
    }
    Err(HttpError::TooManyRedirects)
}

/// Sends the request to one origin and awaits the response head.
async fn send(
    setup: &HttpSetup,
    shared: &Shared,
    request: &mut Outgoing,
    proxy: Option<&Proxy>,
    pool_key: &PoolKey,
) -> Result<(Http1Connection, Response<hyper::body::Incoming>), HttpError> {
    let unsendable = || HttpError::Redirect(redirect::UNSENDABLE.to_owned());
    let mut ready = request.prepare(proxy).map_err(|()| unsendable())?;
    // The server may have just closed a pooled connection. A request that was not sent goes to the next connection;
    // one that may have arrived is retried once, on a new connection, and only if it is safe to repeat.
    while let Some(mut connection) = shared.pool.take(pool_key) {
        ready = match connection.send(ready).await {
            Ok(answer) => return Ok((connection, answer)),
            Err(mut error) => match error.take_message() {
                Some(unsent) => unsent,
                None if is_lost(error.error()) && is_safe_to_repeat(request) => {
                    ready = request.prepare(proxy).map_err(|()| unsendable())?;
                    break;
                }
                None => return Err(failed(&request.target.origin, error.into_error())),
            },
        };
    }
    // Boxed, so that requests on a pooled connection do not carry the state of a handshake.
    let stream = Box::pin(dial(setup, &shared.dns_limit, &request.target.origin, proxy)).await?;
    let mut connection = match Http1Connection::open(stream).await {
        Ok(connection) => connection,
        Err(error) => return Err(failed(&request.target.origin, error)),
    };
    match connection.send(ready).await {
        Ok(answer) => Ok((connection, answer)),
        Err(error) => Err(failed(&request.target.origin, error.into_error())),
    }
}

fn failed(origin: &Origin, error: hyper::Error) -> HttpError {
    HttpError::before_answer(origin.to_string(), error)
}

/// Whether the connection was lost, as opposed to an invalid response or an incomplete request body.
fn is_lost(error: &hyper::Error) -> bool {
    !error.is_parse() && !error.is_user() && !is_endless_head(error)
}

/// Returns why a response head that hyper accepts is rejected.
fn impropriety(request: &Outgoing, parts: &Parts) -> Option<&'static str> {
    // Response smuggling: an intermediary may have used the other header to find the end of the body.
    if parts.headers.contains_key(TRANSFER_ENCODING) && parts.headers.contains_key(CONTENT_LENGTH) {
        return Some("it has both content-length and transfer-encoding");
    }
    let is_unsolicited = !request.headers.contains_key(UPGRADE);
    (parts.status == StatusCode::SWITCHING_PROTOCOLS && is_unsolicited)
        .then_some("it switches to another protocol unasked")
}

/// Whether a request that may have arrived can be retried: its method is idempotent and its body is still here.
fn is_safe_to_repeat(request: &Outgoing) -> bool {
    let methods =
        [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS, Method::TRACE];
    request.is_repeatable() && methods.contains(&request.method)
}
