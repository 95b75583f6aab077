//! Admin endpoints for tokens and environments; they need an admin token.

use std::collections::BTreeMap;

use exec_server_relay::switchboard::CloseReason;
use exec_server_transport::http_front::{Reply, json};
use hyper::{Method, StatusCode};

use super::{Asked, Refusal};
use crate::admin::{self, EnvironmentChange, NewToken, NodeStatus, Nodes};
use crate::presence;
use crate::server::Rendezvous;
use crate::store::{NodeRow, TokenRole};

/// Lists tokens, or creates one.
pub async fn tokens(asked: Asked<'_>) -> Result<Reply, Refusal> {
    asked.only(&[Method::GET, Method::POST])?;
    asked.authenticate(TokenRole::Admin, None).await?;
    let store = asked.rendezvous.store.clone();
    if asked.request.method() == Method::GET {
        let tokens = store.tokens().await?;
        return Ok(json(StatusCode::OK, &serde_json::json!({ "tokens": tokens })));
    }
    let now = asked.rendezvous.config.clock.now();
    let new: NewToken = asked.body().await?;
    let made = admin::create_token(&*store, &new, now).await?;
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
    let now = rendezvous.config.clock.now();
    let ending = match is_deleted {
        true => rendezvous.store.delete_token(id.clone(), now),
        false => rendezvous.store.revoke_token(id.clone(), now),
    };
    if !ending.await? {
        return Err(Refusal::NotFound);
    }
    rendezvous.bus.revoke_tokens(&BTreeMap::from([(id.clone(), CloseReason::Revoked)])).await;
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

/// Lists the nodes of the cluster; a single node has none.
pub async fn nodes(asked: Asked<'_>) -> Result<Reply, Refusal> {
    asked.only(&[Method::GET])?;
    asked.authenticate(TokenRole::Admin, None).await?;
    let nodes = match &asked.rendezvous.cluster {
        Some(store) => {
            let members = asked.rendezvous.bus.members();
            let status = |row: NodeRow| {
                let (view, epoch) = (members.get(&row.lease.node).cloned(), row.lease.epoch);
                let mut status = NodeStatus::from(row);
                if let Some(view) = view.filter(|view| view.epoch == epoch) {
                    status.update(&view);
                }
                status
            };
            store.nodes().await?.into_iter().map(status).collect()
        }
        None => Vec::new(),
    };
    Ok(json(StatusCode::OK, &Nodes { nodes }))
}

/// Changes or deletes an environment.
pub async fn environment(asked: Asked<'_>, id: String) -> Result<Reply, Refusal> {
    asked.only(&[Method::PATCH, Method::DELETE])?;
    asked.authenticate(TokenRole::Admin, None).await?;
    let store = asked.rendezvous.store.clone();
    if asked.request.method() == Method::DELETE {
        return delete_environment(asked.rendezvous, id).await;
    }
    let change: EnvironmentChange = asked.body().await?;
    if !store.set_policy(id.clone(), change.policy).await? {
        return Err(Refusal::NotFound);
    }
    Ok(json(StatusCode::OK, &serde_json::json!({ "id": id, "policy": change.policy })))
}

async fn delete_environment(rendezvous: &Rendezvous, id: String) -> Result<Reply, Refusal> {
    let now = rendezvous.config.clock.now();
    let tokens = rendezvous.store.delete_environment(id.clone(), now).await?;
    let tokens = tokens.ok_or(Refusal::NotFound)?;
    let ended = tokens.into_iter().map(|token| (token, CloseReason::Revoked)).collect();
    rendezvous.bus.revoke_tokens(&ended).await;
    tracing::info!(environment = %id, "environment deleted");
    Ok(json(StatusCode::OK, &serde_json::json!({ "deleted": id })))
}
