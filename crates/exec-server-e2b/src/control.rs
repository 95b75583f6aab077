//! The control plane: sandboxes are created, listed, prolonged and ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::body::{self, Body};
use crate::files::Query;
use crate::refusal::{Code, Refusal};
use crate::sandboxes::{NewSandbox, Sandbox, time_passes};
use crate::{ENVD_VERSION, Shared, connect};

/// The body of a request for a sandbox. Members that only a cloud can honour are refused if they ask for something.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Create {
    #[serde(rename = "templateID")]
    template_id: String,
    timeout: Option<u64>,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
    #[serde(default)]
    env_vars: BTreeMap<String, String>,
    #[serde(default)]
    auto_pause: bool,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    auto_resume: Option<Value>,
    network: Option<Value>,
    mcp: Option<Value>,
    iam: Option<Value>,
    volume_mounts: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Prolong {
    timeout: Option<u64>,
    duration: Option<u64>,
}

impl Shared {
    /// Answers `/sandboxes` and everything below it; `rest` is the path behind it.
    pub async fn control(
        self: &Arc<Self>,
        rest: &str,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        let method = request.method().clone();
        let words: Vec<&str> = rest.split('/').filter(|word| !word.is_empty()).collect();
        match (&method, &words[..]) {
            (&Method::POST, []) => self.create_sandbox(request).await,
            (&Method::GET, []) => self.list_sandboxes(&Query::of(request.uri().query())),
            (&Method::GET, [id]) => {
                let sandbox = self.sandboxes.get(id)?;
                Ok(body::json(StatusCode::OK, &self.detail(&sandbox)))
            }
            (&Method::DELETE, [id]) => match self.end_sandbox(id).await {
                true => Ok(body::empty(StatusCode::NO_CONTENT)),
                false => Err(Refusal::new(Code::NotFound, format!("sandbox {id} not found"))),
            },
            (&Method::POST, [id, "timeout"]) => {
                let asked: Prolong = read(request).await?;
                let seconds =
                    asked.timeout.ok_or_else(|| Refusal::invalid("no timeout is given"))?;
                self.sandboxes.set_timeout(id, seconds, false)?;
                Ok(body::empty(StatusCode::NO_CONTENT))
            }
            (&Method::POST, [id, "refreshes"]) => {
                let asked: Prolong = read(request).await?;
                self.sandboxes.set_timeout(id, asked.duration.unwrap_or_default(), true)?;
                Ok(body::empty(StatusCode::NO_CONTENT))
            }
            (&Method::POST, [id, "connect"]) => {
                let asked: Prolong = read(request).await?;
                let sandbox = match asked.timeout {
                    Some(seconds) => self.sandboxes.set_timeout(id, seconds, true)?,
                    None => self.sandboxes.get(id)?,
                };
                Ok(body::json(StatusCode::OK, &self.created(&sandbox)))
            }
            (_, [id, action]) => {
                self.sandboxes.get(id)?;
                Err(Refusal::unimplemented(format!(
                    "{method} {action} is not possible on this machine"
                )))
            }
            _ => Err(Refusal::unimplemented(format!("{method} /sandboxes{rest} is not known"))),
        }
    }

    async fn create_sandbox(
        self: &Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        let idempotency_key = idempotency_key(request.headers());
        let asked: Create = read(request).await?;
        asked.check()?;
        let (sandbox, timer) = self.sandboxes.create(NewSandbox {
            template: asked.template_id,
            timeout: asked.timeout,
            metadata: asked.metadata,
            envs: asked.env_vars,
            idempotency_key,
        })?;
        if let Some(timer) = timer {
            let (shared, id) = (self.clone(), sandbox.id.clone());
            tokio::spawn(async move {
                if time_passes(timer).await {
                    shared.end_sandbox(&id).await;
                }
            });
        }
        Ok(body::json(StatusCode::CREATED, &self.created(&sandbox)))
    }

    fn list_sandboxes(&self, query: &Query) -> Result<Response<Body>, Refusal> {
        let number = |name| match query.get(name) {
            None => Ok(None),
            Some(text) => text
                .parse::<usize>()
                .map(Some)
                .map_err(|_| Refusal::invalid(format!("{name} is not a number"))),
        };
        let (limit, begin) = (number("limit")?.unwrap_or(100), number("nextToken")?.unwrap_or(0));
        let mut found = self.sandboxes.all();
        if query.get("order") == Some("desc") {
            found.reverse();
        }
        let wanted = Query::of(query.get("metadata"));
        found.retain(|sandbox| wanted.fits(&sandbox.metadata));
        if let Some(template) = query.get("template") {
            found.retain(|sandbox| sandbox.template == template);
        }
        if let Some(after) = query.get("startedAfter") {
            let after = OffsetDateTime::parse(after, &Rfc3339)
                .map_err(|_| Refusal::invalid("startedAfter is not a time"))?;
            found.retain(|sandbox| sandbox.started > after);
        }
        // None is ever paused.
        if query.get("state").is_some_and(|states| !states.split(',').any(|one| one == "running")) {
            found.clear();
        }
        let page: Vec<Value> =
            found.iter().skip(begin).take(limit).map(|sandbox| self.detail(sandbox)).collect();
        let next = begin + page.len();
        let mut response = body::json(StatusCode::OK, &Value::Array(page));
        if next < found.len() {
            response.headers_mut().insert("x-next-token", next.into());
        }
        Ok(response)
    }

    fn created(&self, sandbox: &Sandbox) -> Value {
        let mut told = json!({
            "sandboxID": sandbox.id,
            "templateID": sandbox.template,
            "clientID": "exec-server",
            "envdVersion": ENVD_VERSION,
        });
        if let Some(token) = &self.token {
            told["envdAccessToken"] = token.as_str().into();
        }
        told
    }

    fn detail(&self, sandbox: &Sandbox) -> Value {
        let host = self.info.host.clone().unwrap_or_default();
        let time = |time: OffsetDateTime| time.format(&Rfc3339).expect("times of this century");
        let mut told = self.created(sandbox);
        told["startedAt"] = time(sandbox.started).into();
        told["endAt"] = time(sandbox.ends).into();
        told["state"] = "running".into();
        told["metadata"] = json!(sandbox.metadata);
        told["cpuCount"] = host.cpus.unwrap_or(1).into();
        told["memoryMB"] = (host.memory_bytes.unwrap_or_default() >> 20).into();
        // The size of the machine's disk is not known.
        told["diskSizeMB"] = 0.into();
        told
    }
}

impl Create {
    /// Refuses what the machine cannot do.
    fn check(&self) -> Result<(), Refusal> {
        let is_set = |value: &Option<Value>| {
            value.as_ref().is_some_and(|value| match value {
                Value::Null => false,
                Value::Object(members) => !members.is_empty(),
                Value::Array(items) => !items.is_empty(),
                _ => true,
            })
        };
        let asked = [
            (self.auto_pause, "pausing"),
            (is_set(&self.auto_resume), "resuming"),
            (self.allow_internet_access == Some(false), "a sandbox without a network"),
            (is_set(&self.network), "a network policy"),
            (is_set(&self.mcp), "an MCP gateway"),
            (is_set(&self.iam), "workload identities"),
            (is_set(&self.volume_mounts), "volumes"),
        ];
        match asked.iter().find(|(is_asked, _)| *is_asked) {
            None => Ok(()),
            Some((_, what)) => {
                Err(Refusal::invalid(format!("{what} is not possible on this machine")))
            }
        }
    }
}

impl Query {
    /// Whether all pairs of the query are in the metadata.
    fn fits(&self, metadata: &BTreeMap<String, String>) -> bool {
        self.pairs().iter().all(|(key, value)| metadata.get(key) == Some(value))
    }
}

async fn read<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, Refusal> {
    connect::parse(&connect::whole_body(request.into_body()).await?)
}

fn idempotency_key(headers: &HeaderMap) -> Option<String> {
    headers.get("idempotency-key")?.to_str().ok().map(str::to_owned)
}
