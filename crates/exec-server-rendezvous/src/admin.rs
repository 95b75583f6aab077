//! What an administrator can do, whether by HTTP or on the data itself.

use serde::{Deserialize, Serialize};

use crate::clock::Seconds;
use crate::secrets::{new_id, new_secret, sha256};
use crate::store::{RegistrationPolicy, Store, StoreError, Token, TokenRole, is_environment_id};

/// The note that says under which URL the rendezvous is reached.
pub const PUBLIC_URL: &str = "public_url";

/// A token that is wanted.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewToken {
    /// What its bearer may be.
    pub role: TokenRole,
    /// Where; an executor or a harness needs one, an admin has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// How long it is good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u32>,
    /// How many streams it may have at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_streams: Option<u32>,
}

/// A token that was made, with the only copy of its secret.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MadeToken {
    /// What its bearer shows.
    pub secret: String,
    /// Everything else about it.
    #[serde(flatten)]
    pub token: Token,
}

/// An environment as an administrator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvironmentStatus {
    /// Its id.
    pub id: String,
    /// Who wins when two executors register.
    pub policy: RegistrationPolicy,
    /// Since when it exists.
    pub created_at: Seconds,
    /// Whether an executor is attached; nothing if nobody was asked who would know.
    pub online: Option<bool>,
    /// Since when, if one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub online_since: Option<Seconds>,
    /// How many harnesses it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub streams: Option<usize>,
    /// The registration that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration: Option<String>,
    /// Since when that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered_at: Option<Seconds>,
}

/// A change to an environment.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvironmentChange {
    /// Who wins from now on.
    pub policy: RegistrationPolicy,
}

/// Why something is not done.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// It makes no sense.
    #[error("{0}")]
    Invalid(&'static str),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Makes a token.
pub fn create_token(
    store: &dyn Store,
    new: &NewToken,
    now: Seconds,
) -> Result<MadeToken, AdminError> {
    let prefix = match (new.role, &new.environment) {
        (TokenRole::Admin, None) => "xs_admin_",
        (TokenRole::Admin, Some(_)) => {
            return Err(AdminError::Invalid("an admin token is bound to no environment"));
        }
        (_, None) => return Err(AdminError::Invalid("which environment is the token for?")),
        (_, Some(id)) if !is_environment_id(id) => {
            return Err(AdminError::Invalid(
                "an environment id has 1 to 128 bytes, no control characters, and none of / \\ ? # %",
            ));
        }
        (TokenRole::Executor, Some(_)) => "xs_exec_",
        (TokenRole::Harness, Some(_)) => "xs_harness_",
    };
    if new.max_streams.is_some() && new.role != TokenRole::Harness {
        return Err(AdminError::Invalid("only a harness has streams that could be limited"));
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
    };
    store.add_token(&token, &sha256(secret.as_bytes()))?;
    Ok(MadeToken { secret, token })
}

/// Everything that is stored about environments; whether their executors are attached is not.
pub fn stored_environments(store: &dyn Store) -> Result<Vec<EnvironmentStatus>, StoreError> {
    let environments = store.environments()?;
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
