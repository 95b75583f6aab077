//! Admin endpoints for tokens and environments; they need an admin token.

use std::collections::BTreeMap;

use exec_server_relay::switchboard::CloseReason;
use exec_server_transport::http_front::{Reply, json};
use hyper::{Method, StatusCode};

use super::{Asked, Refusal};
use crate::admin::{self, EnvironmentChange, NewToken};
use crate::presence;
use crate::store::TokenRole;

/// Lists tokens, or creates one.
pub async fn tokens(asked: Asked<'_>) -> Result<Reply, Refusal> {
    asked.only(&[Method::GET, Method::POST])?;
    asked.authenticate(TokenRole::Admin, None).await?;
    let storage = asked.rendezvous.storage.clone();
    if asked.request.method() == Method::GET {
        let tokens = storage.ask(|store| store.tokens()).await?;
        return Ok(json(StatusCode::OK, &serde_json::json!({ "tokens": tokens })));
    }
    let now = asked.rendezvous.config.clock.now();
    let new: NewToken = asked.body().await?;
    let made = storage.ask(move |store| Ok(admin::create_token(store, &new, now)));
    let made = made.await??;
    tracing::info!(token = %made.token.id, role = made.token.role.name(), environment = made.token.environment, "token created");
    Ok(json(StatusCode::CREATED, &made))
}

/// Revokes a token.
pub async fn token(asked: Asked<'_>, id: String) -> Result<Reply, Refusal> {
    asked.only(&[Method::DELETE])?;
    asked.authenticate(TokenRole::Admin, None).await?;
    let rendezvous = asked.rendezvous;
    let (revoked, now) = (id.clone(), rendezvous.config.clock.now());
    let is_there = rendezvous.storage.ask(move |store| store.revoke_token(&revoked, now));
    if !is_there.await? {
        return Err(Refusal::NotFound);
    }
    rendezvous.bus.end_tokens(&BTreeMap::from([(id.clone(), CloseReason::Revoked)])).await;
    tracing::info!(token = %id, "token revoked");
    Ok(json(StatusCode::OK, &serde_json::json!({ "revoked": id })))
}

/// Lists environments, and whether their executors are attached.
pub async fn environments(asked: Asked<'_>) -> Result<Reply, Refusal> {
    asked.only(&[Method::GET])?;
    asked.authenticate(TokenRole::Admin, None).await?;
    Ok(json(StatusCode::OK, &presence::environments(asked.rendezvous).await?))
}

/// Changes an environment.
pub async fn environment(asked: Asked<'_>, id: String) -> Result<Reply, Refusal> {
    asked.only(&[Method::PATCH])?;
    asked.authenticate(TokenRole::Admin, None).await?;
    let storage = asked.rendezvous.storage.clone();
    let change: EnvironmentChange = asked.body().await?;
    let name = id.clone();
    if !storage.ask(move |store| store.set_policy(&name, change.policy)).await? {
        return Err(Refusal::NotFound);
    }
    Ok(json(StatusCode::OK, &serde_json::json!({ "id": id, "policy": change.policy })))
}
