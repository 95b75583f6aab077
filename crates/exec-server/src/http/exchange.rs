//! One exchange from its request to the end of its answer.
//!
//! ```text
//!   head:  check host ─▶ idle connection, or dial ─▶ send ─▶ head of an answer ─redirect─▶ again
//!   body:  whole into the reply, or reply and then deltas
//! ```
//!
//! Owner: the task that runs it; it drives its connection itself. Ends early when cancelled, out of time, or with the
//! connection of its client.

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
use super::answer::{self, AnswerHead, Deltas};
use super::carrier::is_endless_head;
use super::dial::dial;
use super::error::HttpError;
use super::link::{AnswerBody, Link};
use super::place::Place;
use super::pool::Route;
use super::reach::Resolver;
use super::redirect;
use super::request::Outgoing;
use super::setup::{HttpSetup, Proxy};
use super::table::Ticket;
use crate::errors::RequestError;
use crate::metrics::HttpTimer;
use crate::reply::Reply;
use crate::server::Server;
use crate::timings::sleep_until;

/// An exchange that is about to begin.
pub struct Exchange {
    /// The server.
    pub server: Arc<Server>,
    /// What it shares with the other exchanges of its connection.
    pub shared: Arc<Shared>,
    /// Its place in the table.
    pub ticket: Ticket,
    /// Says when it is cancelled.
    pub cancelled: oneshot::Receiver<()>,
    /// What is asked.
    pub request: Outgoing,
    /// The name for the deltas, if the answer is streamed.
    pub stream_as: Option<String>,
    /// Counts the exchange.
    pub timer: HttpTimer,
    /// Who is answered.
    pub reply: Reply,
}

impl Exchange {
    /// Runs it to its end.
    pub async fn run(self) {
        let Self { server, shared, ticket, cancelled, mut request, stream_as, timer, reply } = self;
        let deadline = request.timeout.and_then(|timeout| {
            // What lies beyond the end of the clock is as good as no limit.
            Instant::now().checked_add(timeout).map(|at| (at, timeout))
        });
        let mut bounds = Bounds { deadline, cancelled };
        let head = bounds.keep(fetch(&server.http, &shared, &mut request)).await;
        let max_body_bytes = request.max_body_bytes;
        if request.is_repeatable() {
            drop(request);
        }
        let (head, mut body, route) = match head {
            Ok(head) => head,
            Err(error) => {
                timer.finish(Some(error.kind()));
                shared.leave(ticket);
                return reply.fail(&RequestError::Http(error));
            }
        };
        tracing::debug!(status = head.parts.status.as_u16(), "an http exchange was answered");
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
                    answer::buffer(&head, &mut body, max_body_bytes, &shared.budget, &reply);
                let whole = bounds.keep(whole).await;
                timer.finish(whole.as_ref().err().map(HttpError::kind));
                shared.leave(ticket);
                match whole {
                    Ok((text, held)) => {
                        reply.ok_text_holding(text, held);
                        Ok(())
                    }
                    Err(error) => return reply.fail(&RequestError::Http(error)),
                }
            }
        };
        if result.is_ok() {
            // The client is waiting for what was just queued, and nobody for the connection.
            let_others_first().await;
            shared.pool.put(route, body.into_link());
        }
    }
}

/// Lets the tasks run that are ready by now. Unlike tokio's yield it does not ask the system for news first.
async fn let_others_first() {
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

/// What ends an exchange early.
struct Bounds {
    deadline: Option<(Instant, Duration)>,
    cancelled: oneshot::Receiver<()>,
}

impl Bounds {
    async fn keep<T>(
        &mut self,
        work: impl Future<Output = Result<T, HttpError>>,
    ) -> Result<T, HttpError> {
        let (at, timeout) = self.deadline.unzip();
        let timeout = timeout.unwrap_or_default();
        // The clock of the event loop is too coarse for a deadline that has passed already.
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

/// Sends the request, and sends it on as often as the answers say so.
async fn fetch(
    setup: &HttpSetup,
    shared: &Shared,
    request: &mut Outgoing,
) -> Result<(AnswerHead, AnswerBody, Route), HttpError> {
    for hop in 0..=MAX_HTTP_REDIRECTS {
        let proxy = setup.proxy(&request.target.url)?;
        let resolver = if proxy.is_some() { Resolver::Proxy } else { Resolver::Here };
        setup.reach.check_host(&request.target.place, resolver)?;
        let route = request.route(proxy.as_ref());
        let (link, answer) = send(setup, shared, request, proxy.as_ref(), &route).await?;
        let (parts, incoming) = answer.into_parts();
        if let Some(reason) = impropriety(request, &parts) {
            return Err(HttpError::Improper { place: request.target.place.to_string(), reason });
        }
        let body = AnswerBody::new(link, incoming);
        let Some(to) = redirect::target(request, parts.status, &parts.headers) else {
            let final_url = (hop > 0).then(|| request.target.url.to_string());
            return Ok((AnswerHead { parts, final_url }, body, route));
        };
        if hop < MAX_HTTP_REDIRECTS {
            redirect::follow(request, parts.status, to)?;
        }
        // A body that nobody reads would have to be waited for.
        if body.is_at_end() {
            shared.pool.put(route, body.into_link());
        }
    }
    Err(HttpError::TooManyRedirects)
}

/// Sends the request to one place and waits for the head of the answer.
async fn send(
    setup: &HttpSetup,
    shared: &Shared,
    request: &mut Outgoing,
    proxy: Option<&Proxy>,
    route: &Route,
) -> Result<(Link, Response<hyper::body::Incoming>), HttpError> {
    let unsendable = || HttpError::Redirect(redirect::UNSENDABLE.to_owned());
    let mut ready = request.prepare(proxy).map_err(|()| unsendable())?;
    // The other side may have closed it in this moment; then the request is sent again, once if it may have arrived, and
    // not at all if that could do harm.
    while let Some(mut link) = shared.pool.take(route) {
        ready = match link.send(ready).await {
            Ok(answer) => return Ok((link, answer)),
            Err(mut error) => match error.take_message() {
                Some(unsent) => unsent,
                None if is_lost(error.error()) && is_safe_to_repeat(request) => {
                    ready = request.prepare(proxy).map_err(|()| unsendable())?;
                    break;
                }
                None => return Err(failed(&request.target.place, error.into_error())),
            },
        };
    }
    // Most requests find a connection, and none of them should carry the state of a handshake around.
    let carrier = Box::pin(dial(setup, &shared.lookups, &request.target.place, proxy)).await?;
    let mut link = match Link::open(carrier).await {
        Ok(link) => link,
        Err(error) => return Err(failed(&request.target.place, error)),
    };
    match link.send(ready).await {
        Ok(answer) => Ok((link, answer)),
        Err(error) => Err(failed(&request.target.place, error.into_error())),
    }
}

fn failed(place: &Place, error: hyper::Error) -> HttpError {
    HttpError::before_answer(place.to_string(), error)
}

fn is_lost(error: &hyper::Error) -> bool {
    !error.is_parse() && !error.is_user() && !is_endless_head(error)
}

/// What is wrong with the head of an answer although it can be read.
fn impropriety(request: &Outgoing, parts: &Parts) -> Option<&'static str> {
    // One of the two is a lie, and whoever stands in between may have believed the other one.
    if parts.headers.contains_key(TRANSFER_ENCODING) && parts.headers.contains_key(CONTENT_LENGTH) {
        return Some("it has both content-length and transfer-encoding");
    }
    let is_unasked = !request.headers.contains_key(UPGRADE);
    (parts.status == StatusCode::SWITCHING_PROTOCOLS && is_unasked)
        .then_some("it switches to another protocol unasked")
}

/// Whether a request that may have arrived can be sent a second time.
fn is_safe_to_repeat(request: &Outgoing) -> bool {
    let methods =
        [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS, Method::TRACE];
    request.is_repeatable() && methods.contains(&request.method)
}
