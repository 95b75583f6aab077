//! Mock identity provider and a registry that verifies its signatures.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ED25519, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair, UnparsedPublicKey,
};
use exec_server_protocol::base64::{self, encode_url};
use serde_json::{Value, json};

use crate::http::request_with_body;
use crate::web::{Visit, Web, WebRequest, answer};

const AGENT: &str = "agent/1";
const KEY_ID: &str = "key-1";

/// A running identity provider. Its registry forwards requests with a valid assertion to a rendezvous.
pub struct MockIdp {
    web: Web,
    shared: Arc<Shared>,
}

struct Shared {
    issuer: RsaKeyPair,
    agent: Ed25519KeyPair,
    rendezvous: String,
    token: String,
    tasks: AtomicUsize,
    asserted: AtomicUsize,
    outages: AtomicUsize,
    task_form: Mutex<TaskForm>,
    headers: Mutex<Vec<Vec<(String, String)>>>,
}

/// Form of a task in the reply to the agent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TaskForm {
    /// Plain text.
    #[default]
    Plain,
    /// Plain text with a camelCase key.
    CamelCase,
    /// Encrypted for the agent; the first task only.
    Sealed,
    /// Encrypted, with a camelCase key.
    SealedCamelCase,
}

/// `task-1`, as libsodium seals it for the agent.
const SEALED_TASK: &str =
    "73sTYZi2wGs4UJ5r92LX8NE/5qP8inPIjgEKcy/P7DvYEsemlK6LiuQgccSrnNcbm4AyR2vv";

impl MockIdp {
    /// Forwards requests of verified agents to the rendezvous, with this executor's token.
    pub async fn start(rendezvous: &str, token: &str) -> Self {
        let shared = Arc::new(Shared {
            issuer: RsaKeyPair::generate(KeySize::Rsa2048).expect("a key can be made"),
            agent: Ed25519KeyPair::from_seed_unchecked(&std::array::from_fn::<u8, 32, _>(|at| {
                at as u8
            }))
            .expect("any seed will do"),
            rendezvous: rendezvous.to_owned(),
            token: token.to_owned(),
            tasks: AtomicUsize::new(0),
            asserted: AtomicUsize::new(0),
            outages: AtomicUsize::new(0),
            task_form: Mutex::default(),
            headers: Mutex::default(),
        });
        let serving = shared.clone();
        let web = Web::start(move |visit| serve(visit, serving.clone())).await;
        Self { web, shared }
    }

    /// Base URL of all routes.
    pub fn url(&self) -> String {
        self.web.url("")
    }

    /// Number of registered tasks, and of requests with a valid assertion.
    pub fn counts(&self) -> (usize, usize) {
        (self.shared.tasks.load(Ordering::SeqCst), self.shared.asserted.load(Ordering::SeqCst))
    }

    /// Sets the form of tasks from now on.
    pub fn set_task_form(&self, form: TaskForm) {
        *self.shared.task_form.lock().expect("no holder panics") = form;
    }

    /// Headers of every request with a valid assertion.
    pub fn headers(&self) -> Vec<Vec<(String, String)>> {
        self.shared.headers.lock().expect("no holder panics").clone()
    }

    /// Answers the next `requests` requests with 503.
    pub fn fail_next(&self, requests: usize) {
        self.shared.outages.store(requests, Ordering::SeqCst);
    }

    /// An identity document for the agent; `more` overrides claims.
    pub fn document(&self, more: &Value) -> String {
        let key = AsDer::<aws_lc_rs::encoding::Pkcs8V1Der>::as_der(&self.shared.agent);
        let mut claims = json!({
            "iss": "https://chatgpt.com/codex-backend/agent-identity",
            "aud": "codex-app-server",
            "iat": 1_700_000_000,
            "exp": 4_000_000_000_u64,
            "agent_runtime_id": AGENT,
            "agent_private_key": base64::encode(key.expect("it has a form").as_ref()),
            "account_id": "account-1",
            "chatgpt_user_id": "user-1",
            "plan_type": "team",
            "chatgpt_account_is_fedramp": false,
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            claims[name] = value.clone();
        }
        let header = json!({"alg": "RS256", "typ": "JWT", "kid": KEY_ID});
        let text = format!(
            "{}.{}",
            encode_url(header.to_string().as_bytes()),
            encode_url(claims.to_string().as_bytes())
        );
        let mut signature = vec![0; self.shared.issuer.public_modulus_len()];
        let signed = self.shared.issuer.sign(
            &RSA_PKCS1_SHA256,
            &SystemRandom::new(),
            text.as_bytes(),
            &mut signature,
        );
        signed.expect("it can be signed");
        format!("{text}.{}", encode_url(&signature))
    }
}

async fn serve(mut visit: Visit, shared: Arc<Shared>) {
    while let Some(request) = visit.request().await {
        let is_out = shared
            .outages
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        let (status, body) = match is_out {
            Ok(_) => (503, json!({})),
            Err(_) => shared.answer(&request).await,
        };
        visit.send(&answer(status, &[], body.to_string())).await;
    }
}

impl Shared {
    async fn answer(&self, request: &WebRequest) -> (u16, Value) {
        match request.target.as_str() {
            "/agent-identities/jwks" => (200, self.keys()),
            "/v1/agent/agent%2F1/task/register" => self.register(request),
            path if path.starts_with("/cloud/environment/") => self.pass_on(request).await,
            _ => (404, json!({})),
        }
    }

    fn keys(&self) -> Value {
        let public = self.issuer.public_key().as_ref();
        // DER sequence of two integers: 256 bytes after a zero, and 65537.
        let (modulus, exponent) = (&public[9..9 + 256], &public[public.len() - 3..]);
        let key = json!({"kty": "RSA", "use": "sig", "alg": "RS256", "kid": KEY_ID,
            "n": encode_url(modulus), "e": encode_url(exponent)});
        json!({"keys": [key]})
    }

    fn register(&self, request: &WebRequest) -> (u16, Value) {
        let body: Value = serde_json::from_slice(&request.body).expect("JSON");
        let said = format!("{AGENT}:{}", body["timestamp"].as_str().unwrap_or_default());
        if !self.is_signed(&said, &body["signature"]) {
            return (401, json!({}));
        }
        let number = self.tasks.fetch_add(1, Ordering::SeqCst) + 1;
        let answer = match *self.task_form.lock().expect("no holder panics") {
            TaskForm::Plain => json!({"task_id": format!("task-{number}")}),
            TaskForm::CamelCase => json!({"taskId": format!("task-{number}")}),
            TaskForm::Sealed => json!({"encrypted_task_id": SEALED_TASK}),
            TaskForm::SealedCamelCase => json!({"encryptedTaskId": SEALED_TASK}),
        };
        (200, answer)
    }

    async fn pass_on(&self, request: &WebRequest) -> (u16, Value) {
        if !self.is_asserted(request) {
            return (401, json!({"error": {"code": "invalid_token", "message": "no assertion"}}));
        }
        self.asserted.fetch_add(1, Ordering::SeqCst);
        self.headers.lock().expect("no holder panics").push(request.headers.clone());
        let bearer = format!("Bearer {}", self.token);
        let headers = [("Authorization", bearer.as_str()), ("Content-Type", "application/json")];
        let path = &request.target;
        let reply =
            request_with_body(&self.rendezvous, "POST", path, &headers, &request.body).await;
        (reply.status, serde_json::from_str(&reply.body).expect("JSON"))
    }

    fn is_asserted(&self, request: &WebRequest) -> bool {
        let header = request.header("authorization").unwrap_or_default();
        let Some(said) = header.strip_prefix("AgentAssertion ") else { return false };
        let Some(text) = base64::decode_url(said) else { return false };
        let text = String::from_utf8(text).expect("text");
        let claims: Value = serde_json::from_str(&text).expect("JSON");
        let task = claims["task_id"].as_str().unwrap_or_default();
        let said = format!("{AGENT}:{task}:{}", claims["timestamp"].as_str().unwrap_or_default());
        let compact = claims.to_string();
        text == compact
            && claims["agent_runtime_id"] == AGENT
            && task == format!("task-{}", self.tasks.load(Ordering::SeqCst))
            && request.header("chatgpt-account-id") == Some("account-1")
            && self.is_signed(&said, &claims["signature"])
    }

    fn is_signed(&self, said: &str, signature: &Value) -> bool {
        let signature = base64::decode(signature.as_str().unwrap_or_default());
        let key = UnparsedPublicKey::new(&ED25519, self.agent.public_key().as_ref());
        signature.is_ok_and(|signature| key.verify(said.as_bytes(), &signature).is_ok())
    }
}
