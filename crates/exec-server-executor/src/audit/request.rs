//! Which requests are recorded, and with which details.

use std::path::Path;
use std::sync::Arc;

use exec_server_protocol::methods::Method;
use exec_server_protocol::process::{ExitReason, ProcessSignal, ProcessStartParams};
use exec_server_protocol::user::UserName;
use exec_server_protocol::{base64, binary};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Audit, Who};
use crate::dispatch::Call;
use crate::environment::path_uri;
use crate::errors::RequestError;

/// Longer params are recorded by their length only.
const MAX_PARAMS_BYTES: usize = 1024 * 1024;

/// The record of a request that is running; written with its result.
#[derive(Debug)]
pub struct Pending {
    audit: Arc<Audit>,
    method: Method,
    who: Arc<Who>,
    details: Details,
    params: Option<Params>,
}

/// What a start needs for its records.
#[derive(Debug, Clone)]
pub struct StartNote {
    pub audit: Arc<Audit>,
    pub who: Arc<Who>,
    params: Option<Params>,
}

/// What the record of a request says about it.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<ProcessSignal>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandboxed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<UserName>,
}

impl Details {
    /// The details of a request about a process.
    pub fn of_process(process_id: &str) -> Self {
        Self { process_id: Some(process_id.to_owned()), ..Self::default() }
    }
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
enum Params {
    Params(Box<RawValue>),
    /// The length of params that are too long for a record.
    ParamsBytes(usize),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Finished<'a> {
    #[serde(flatten)]
    details: &'a Details,
    #[serde(flatten)]
    params: Option<&'a Params>,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Pending {
    /// Writes the record of a request with its result.
    pub fn finish(self, result: Result<(), &RequestError>) {
        let kind = |error: &RequestError| error.to_rpc().data.map(|data| data.kind);
        let (result, error) = match result {
            Ok(()) => ("ok", None),
            Err(error) => ("error", kind(error)),
        };
        let params = self.params.as_ref();
        let finished = Finished { details: &self.details, params, result, error };
        self.audit.record(self.method.name(), Some(&self.who), finished);
    }
}

/// Prepares the record of a request, if the request is one that is recorded; fails if it must be refused.
pub fn begin(
    audit: &Arc<Audit>,
    who: &Arc<Who>,
    method: Method,
    (raw_params, chunk): (&str, Option<&[u8]>),
    call: &mut Call,
) -> Result<Option<Pending>, RequestError> {
    let params = || audit.has_payloads().then(|| Params::of(raw_params, chunk));
    if let Call::Start(start) = call {
        let (audit, who, params) = (audit.clone(), who.clone(), params());
        start.audit = Some(Box::new(StartNote { audit, who, params }));
        return Ok(None);
    }
    let Some(details) = call.audit_details(audit.has_payloads()) else { return Ok(None) };
    // Input and the end of a process are never refused: they need no room on a disk.
    if details.process_id.is_none() {
        audit.check()?;
    }
    let params = params();
    Ok(Some(Pending { audit: audit.clone(), method, who: who.clone(), details, params }))
}

/// A path as text; one that is not UTF-8 as a URI.
pub fn shown(path: &Path) -> String {
    path.to_str().map_or_else(|| path_uri(path).as_str().to_owned(), str::to_owned)
}

/// A URL without user, password, query and fragment, which often carry secrets.
pub fn without_secrets(url: &str) -> String {
    let Ok(mut url) = url::Url::parse(url) else { return String::new() };
    url.set_query(None);
    url.set_fragment(None);
    // Fails only for URLs without a host, which have no user either.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    url.into()
}

impl Params {
    /// The bytes of a binary message are recorded as the base64 that its JSON form has.
    fn of(raw: &str, chunk: Option<&[u8]>) -> Self {
        let bytes = raw.len() + chunk.map_or(0, |chunk| base64::encoded_len(chunk.len()));
        if bytes > MAX_PARAMS_BYTES {
            return Self::ParamsBytes(bytes);
        }
        let filled = chunk.and_then(|chunk| binary::fill(raw, chunk).ok());
        let text = filled.and_then(|text| String::from_utf8(text).ok());
        match RawValue::from_string(text.unwrap_or_else(|| raw.to_owned())) {
            Ok(params) => Self::Params(params),
            Err(_) => Self::ParamsBytes(bytes),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Start<'a> {
    process_id: &'a str,
    argv: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    arg0: Option<&'a str>,
    cwd: String,
    tty: bool,
    sandbox: Option<&'a serde_json::Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a UserName>,
    #[serde(flatten)]
    params: Option<&'a Params>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NotStarted<'a> {
    process_id: &'a str,
    error: String,
}

/// How a process ended.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Exited<'a> {
    pub process_id: &'a str,
    pub pid: u32,
    pub exit_code: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<ExitReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    pub sandbox_denied: bool,
}

impl StartNote {
    /// Records a start before it happens; with `block`, a start without a record is refused.
    pub async fn starting(
        &self,
        params: &ProcessStartParams,
        cwd: &Path,
    ) -> Result<(), RequestError> {
        let start = Start {
            process_id: &params.process_id,
            argv: &params.argv,
            arg0: params.arg0.as_deref(),
            cwd: shown(cwd),
            tty: params.tty,
            sandbox: params.sandbox.as_ref(),
            user: params.user.as_ref(),
            params: self.params.as_ref(),
        };
        self.audit.record_first(Method::ProcessStart.name(), &self.who, start).await
    }

    /// Records that the process did not start.
    pub fn failed(&self, process_id: &str, error: &RequestError) {
        // A start without a record has no second one.
        if !matches!(error, RequestError::AuditUnavailable(_)) {
            let details = NotStarted { process_id, error: error.to_string() };
            self.audit.record("process/failed", Some(&self.who), details);
        }
    }

    /// Records the exit of the process.
    pub fn exited(&self, exited: &Exited) {
        self.audit.record("process/exited", Some(&self.who), exited);
    }
}
