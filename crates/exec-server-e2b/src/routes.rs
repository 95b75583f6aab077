//! From the path of a request to its handler.

use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::Value;

use crate::body::{self, Body};
use crate::connect::{self, Deadline};
use crate::files::Query;
use crate::refusal::{Code, Refusal};
use crate::{Shared, guard};

/// Answers a request.
pub async fn handle(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    for (prefix, service) in
        [("/process.Process/", Service::Process), ("/filesystem.Filesystem/", Service::Filesystem)]
    {
        if let Some(method) = path.strip_prefix(prefix) {
            return call(&shared, service, method, request).await;
        }
    }
    plain(&shared, &path, request)
        .await
        .unwrap_or_else(|refusal| body::json(refusal.code.status(), &refusal.to_http()))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Service {
    Process,
    Filesystem,
}

/// A call of the Connect protocol.
async fn call(
    shared: &Arc<Shared>,
    service: Service,
    method: &str,
    request: Request<Incoming>,
) -> Response<Body> {
    let sandbox = match check_call(shared, &request) {
        Ok(sandbox) => sandbox,
        Err(refusal) => return connect::answer(Err(refusal)),
    };
    match (service, method) {
        (Service::Process, "Start" | "Connect") => {
            let answer = shared.follow_process(method, sandbox, request).await;
            answer.unwrap_or_else(|refusal| connect::stream_answer(Err(refusal)))
        }
        (Service::Filesystem, "WatchDir") => {
            let answer = shared.watch_dir(request).await;
            answer.unwrap_or_else(|refusal| connect::stream_answer(Err(refusal)))
        }
        (Service::Process, "StreamInput") => {
            let deadline = Deadline::of(request.headers());
            let work = shared.stream_input(&sandbox, request);
            connect::stream_answer(within(deadline, work).await)
        }
        (Service::Process, method) => {
            let deadline = Deadline::of(request.headers());
            let work = shared.process_call(method, &sandbox, request);
            connect::answer(within(deadline, work).await)
        }
        (Service::Filesystem, method) => {
            let deadline = Deadline::of(request.headers());
            let work = shared.filesystem_call(method, &sandbox, request);
            connect::answer(within(deadline, work).await)
        }
    }
}

fn check_call(shared: &Shared, request: &Request<Incoming>) -> Result<String, Refusal> {
    guard::check(request.headers(), shared.token.as_deref(), &["x-access-token"])?;
    if request.method() != Method::POST {
        return Err(Refusal::unimplemented("calls are POST requests"));
    }
    shared.sandbox_of(request.headers())
}

async fn within(
    deadline: Result<Deadline, Refusal>,
    work: impl Future<Output = Result<Value, Refusal>>,
) -> Result<Value, Refusal> {
    let deadline = deadline?;
    tokio::select! {
        biased;
        result = work => result,
        () = deadline.passed() => Err(Deadline::refusal()),
    }
}

/// A request that is no call.
async fn plain(
    shared: &Arc<Shared>,
    path: &str,
    request: Request<Incoming>,
) -> Result<Response<Body>, Refusal> {
    let token = shared.token.as_deref();
    let control = path.strip_prefix("/v2").unwrap_or(path);
    if let Some(rest) = control.strip_prefix("/sandboxes")
        && (rest.is_empty() || rest.starts_with('/'))
    {
        guard::check(request.headers(), token, &["x-api-key"])?;
        return shared.control(rest, request).await;
    }
    match (request.method(), path) {
        (&Method::GET, "/health") => {
            guard::check(request.headers(), None, &[])
                .or_else(|_| guard::check(request.headers(), token, &["x-access-token"]))?;
            shared.sandbox_of(request.headers())?;
            shared.check_health().await?;
            Ok(body::empty(StatusCode::NO_CONTENT))
        }
        (method, "/files") => {
            guard::check(request.headers(), token, &["x-access-token"])?;
            shared.sandbox_of(request.headers())?;
            let query = Query::of(request.uri().query());
            match *method {
                Method::GET => shared.download(request.headers(), &query).await,
                Method::POST => shared.upload(request, &query).await,
                _ => Err(Refusal::unimplemented("files are read by GET and written by POST")),
            }
        }
        (method, path) => {
            Err(Refusal::new(Code::NotFound, format!("there is no {method} {path} here")))
        }
    }
}
