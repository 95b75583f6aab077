//! Admin operations, used by the HTTP API and by commands on the data directory.

use serde::{Deserialize, Serialize};

use crate::bus::NodeView;
use crate::clock::Seconds;
use crate::membership::LEASE;
use crate::secrets::{new_id, new_secret, sha256};
use crate::store::{
    NodeRow, RegistrationPolicy, Store, StoreError, Token, TokenRole, is_environment_id,
};

/// Name of the stored value that holds the base URL.
pub const PUBLIC_URL: &str = "public_url";

/// Parameters of a new token.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewToken {
    /// Granted role.
    pub role: TokenRole,
    /// Environment; required for executors and harnesses, absent for admins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// Lifetime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u32>,
    /// Limit of concurrent streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_streams: Option<u32>,
    /// Label chosen by the administrator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// A created token with the only copy of its secret.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MadeToken {
    /// The bearer secret.
    pub secret: String,
    /// The stored token.
    #[serde(flatten)]
    pub token: Token,
}

/// An environment as an administrator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentStatus {
    /// Environment id.
    pub id: String,
    /// Registration policy.
    pub policy: RegistrationPolicy,
    /// Creation time.
    pub created_at: Seconds,
    /// Whether an executor is attached; `None` if the rendezvous was not asked.
    pub online: Option<bool>,
    /// Attach time of the executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub online_since: Option<Seconds>,
    /// Number of attached harnesses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<usize>,
    /// Current registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration: Option<String>,
    /// Time of the current registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered_at: Option<Seconds>,
}

/// A change to an environment.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvironmentChange {
    /// New registration policy.
    pub policy: RegistrationPolicy,
}

/// The nodes of a cluster.
#[derive(Debug, Serialize, Deserialize)]
pub struct Nodes {
    /// All nodes, by id.
    pub nodes: Vec<NodeStatus>,
}

/// A node as an administrator sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Node id.
    pub id: String,
    /// `ready`, `suspect`, `leaving`, `silent` or `dead`.
    pub state: String,
    /// Base URL of the node.
    pub url: String,
    /// Attached executors, as of the last heartbeat or renewal.
    pub executors: u64,
    /// Attached harnesses, as of the last heartbeat or renewal.
    pub streams: u64,
    /// Version of the program.
    pub version: String,
    /// Seconds since the lease was renewed.
    pub renewed_seconds_ago: u64,
}

impl From<NodeRow> for NodeStatus {
    fn from(row: NodeRow) -> Self {
        let state = match row.lease.is_leaving {
            _ if row.lease.age >= LEASE => "dead",
            true => "leaving",
            false => "ready",
        };
        Self {
            id: row.lease.node,
            state: state.to_owned(),
            url: row.lease.url.to_string(),
            executors: row.executors,
            streams: row.streams,
            version: row.version,
            renewed_seconds_ago: row.lease.age.as_secs(),
        }
    }
}

impl NodeStatus {
    /// Adds what the answering node has heard since the renewal.
    pub(crate) fn update(&mut self, view: &NodeView) {
        self.state = view.state.name().to_owned();
        if let Some(load) = &view.load {
            (self.executors, self.streams) = (load.executors, load.streams);
            self.version = load.version.to_string();
        }
    }
}

/// Why an admin operation failed.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The parameters are invalid.
    #[error("{0}")]
    Invalid(&'static str),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Creates a token.
pub async fn create_token(
    store: &dyn Store,
    new: &NewToken,
    now: Seconds,
) -> Result<MadeToken, AdminError> {
    let prefix = match (new.role, &new.environment) {
        (TokenRole::Admin, None) => "xs_admin_",
        (TokenRole::Admin, Some(_)) => {
            return Err(AdminError::Invalid("an admin token cannot have an environment"));
        }
        (_, None) => {
            return Err(AdminError::Invalid("an executor or harness token needs an environment"));
        }
        (_, Some(id)) if !is_environment_id(id) => {
            return Err(AdminError::Invalid(
                "an environment id has 1 to 128 bytes, no control characters, and none of / \\ ? # %",
            ));
        }
        (TokenRole::Executor, Some(_)) => "xs_exec_",
        (TokenRole::Harness, Some(_)) => "xs_harness_",
    };
    if new.max_streams.is_some() && new.role != TokenRole::Harness {
        return Err(AdminError::Invalid("a stream limit applies only to harness tokens"));
    }
    if new.label.as_deref().is_some_and(|label| !is_label(label)) {
        return Err(AdminError::Invalid(
            "a label has 1 to 100 characters, and no control characters",
        ));
    }
    let secret = new_secret(prefix);
    let token = Token {
        id: new_id("tok_"),
        role: new.role,
        environment: new.environment.clone(),
        created_at: now,
        expires_at: new.expires_in_seconds.map(|seconds| now + Seconds::from(seconds)),
        revoked_at: None,
        last_used_at: None,
        max_streams: new.max_streams,
        label: new.label.clone(),
    };
    store.add_token(token.clone(), sha256(secret.as_bytes())).await?;
    Ok(MadeToken { secret, token })
}

/// Creates the first admin token; without one no other token could be created.
pub async fn first_admin_token(
    store: &dyn Store,
    now: Seconds,
) -> Result<Option<String>, AdminError> {
    if store.tokens().await?.iter().any(|token| token.role == TokenRole::Admin) {
        return Ok(None);
    }
    let new = NewToken {
        role: TokenRole::Admin,
        environment: None,
        expires_in_seconds: None,
        max_streams: None,
        label: None,
    };
    Ok(Some(create_token(store, &new, now).await?.secret))
}

fn is_label(label: &str) -> bool {
    (1..=100).contains(&label.chars().count()) && !label.contains(char::is_control)
}

/// The stored state of all environments; the online status is not stored.
pub async fn stored_environments(store: &dyn Store) -> Result<Vec<EnvironmentStatus>, StoreError> {
    let environments = store.environments().await?;
    let status = environments.into_iter().map(|environment| EnvironmentStatus {
        id: environment.id,
        policy: environment.policy,
        created_at: environment.created_at,
        online: None,
        online_since: None,
        streams: None,
        registered_at: environment.registration.as_ref().map(|it| it.created_at),
        registration: environment.registration.map(|it| it.id),
    });
    Ok(status.collect())
}
