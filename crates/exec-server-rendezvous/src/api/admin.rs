//! Admin endpoints for tokens and environments; they need an admin token.

use std::collections::BTreeMap;

use exec_server_relay::switchboard::CloseReason;
use exec_server_transport::http_front::{Reply, json};
use hyper::{Method, StatusCode};

use super::{Asked, Refusal};
use crate::admin::{self, EnvironmentChange, NewToken};
use crate::presence;
use crate::server::Rendezvous;
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

/// Revokes a token; with `?delete=true` its record is deleted as well.
pub async fn token(asked: Asked<'_>, id: String) -> Result<Reply, Refusal> {
    asked.only(&[Method::DELETE])?;
    asked.authenticate(TokenRole::Admin, None).await?;
    let is_deleted = match asked.request.uri().query() {
        None => false,
        Some("delete=true") => true,
        Some(_) => return Err(Refusal::Invalid("the only query is delete=true".to_owned())),
    };
    let rendezvous = asked.rendezvous;
    let (ended, now) = (id.clone(), rendezvous.config.clock.now());
    let is_there = rendezvous.storage.ask(move |store| match is_deleted {
        true => store.delete_token(&ended, now),
        false => store.revoke_token(&ended, now),
    });
    if !is_there.await? {
        return Err(Refusal::NotFound);
    }
    rendezvous.bus.end_tokens(&BTreeMap::from([(id.clone(), CloseReason::Revoked)])).await;
    let done = if is_deleted { "deleted" } else { "revoked" };
    tracing::info!(token = %id, done, "token ended");
    Ok(json(StatusCode::OK, &serde_json::json!({ done: id })))
}

/// Lists environments, and whether their executors are attached.
pub async fn environments(asked: Asked<'_>) -> Result<Reply, Refusal> {
    asked.only(&[Method::GET])?;
    asked.authenticate(TokenRole::Admin, None).await?;
    Ok(json(StatusCode::OK, &presence::environments(asked.rendezvous).await?))
}

/// Changes or deletes an environment.
pub async fn environment(asked: Asked<'_>, id: String) -> Result<Reply, Refusal> {
    asked.only(&[Method::PATCH, Method::DELETE])?;
    asked.authenticate(TokenRole::Admin, None).await?;
    let storage = asked.rendezvous.storage.clone();
    if asked.request.method() == Method::DELETE {
        return delete_environment(asked.rendezvous, id).await;
    }
    let change: EnvironmentChange = asked.body().await?;
    let name = id.clone();
    if !storage.ask(move |store| store.set_policy(&name, change.policy)).await? {
        return Err(Refusal::NotFound);
    }
    Ok(json(StatusCode::OK, &serde_json::json!({ "id": id, "policy": change.policy })))
}

async fn delete_environment(rendezvous: &Rendezvous, id: String) -> Result<Reply, Refusal> {
    let (deleted, now) = (id.clone(), rendezvous.config.clock.now());
    let answer = rendezvous.storage.ask(move |store| {
        let tokens = store.tokens()?;
        Ok((store.delete_environment(&deleted, now)?, tokens))
    });
    let (is_there, tokens) = answer.await?;
    if !is_there {
        return Err(Refusal::NotFound);
    }
    // A token made in between is ended by the next search for ended tokens.
    let of_it = tokens.into_iter().filter(|token| token.environment.as_ref() == Some(&id));
    let ended = of_it.map(|token| (token.id, CloseReason::Revoked)).collect();
    rendezvous.bus.end_tokens(&ended).await;
    tracing::info!(environment = %id, "environment deleted");
    Ok(json(StatusCode::OK, &serde_json::json!({ "deleted": id })))
}
