//! The registry endpoints register, connect and validate.

use std::time::Duration;

use exec_server_relay::registry_types::{
    ConnectRequest, ConnectResponse, MAX_AUTHORIZATION_BYTES, RegisterRequest, RegisterResponse,
    SECURITY_PROFILE, ValidateRequest, ValidateResponse,
};
use exec_server_transport::http_front::{Reply, json};
use hyper::{Method, StatusCode};

use super::{Asked, Refusal};
use crate::clock::Seconds;
use crate::secrets::{key_digest, new_id, new_secret, sha256};
use crate::signed_url::{Claims, SocketRole};
use crate::store::{
    Authorization, NewAuthorization, NewRegistration, NotAuthorized, NotGranted, NotRegistered,
    TokenRole,
};

/// Registers an executor and returns its websocket URL.
pub async fn register(asked: Asked<'_>, environment: String) -> Result<Reply, Refusal> {
    asked.only(&[Method::POST])?;
    let token = asked.authenticate(TokenRole::Executor, Some(&environment)).await?;
    let (rendezvous, request_id) = (asked.rendezvous, asked.request_id());
    let request: RegisterRequest = asked.body().await?;
    if request.security_profile != SECURITY_PROFILE {
        return Err(Refusal::Invalid(format!("the security profile must be {SECURITY_PROFILE}")));
    }
    let presences = rendezvous.bus.presences(std::slice::from_ref(&environment)).await;
    let presence = presences.map_err(|error| Refusal::unwritten(&error))?.remove(&environment);
    let new = NewRegistration {
        id: new_id("reg_"),
        environment: environment.clone(),
        executor_key: request.executor_public_key,
        attached: presence.map(|presence| presence.registration),
    };
    let registration = new.id.clone();
    let now = rendezvous.config.clock.now();
    let generation = match rendezvous.store.register(new, now).await? {
        Ok(generation) => generation,
        Err(NotRegistered::UnknownEnvironment) => return Err(Refusal::NotFound),
        Err(NotRegistered::Taken) => return Err(Refusal::Taken),
    };
    rendezvous.bus.supersede(&environment, generation).await;
    let claims = Claims {
        environment: environment.clone(),
        registration: registration.clone(),
        token: token.id.clone(),
        expires: now + seconds(rendezvous.config.timings.executor_url),
        role: SocketRole::Executor,
    };
    tracing::info!(%environment, %registration, token = %token.id, request_id, "executor registered");
    Ok(json(
        StatusCode::OK,
        &RegisterResponse {
            environment_id: environment,
            url: rendezvous.keys.current().sign(&rendezvous.base.websocket, &claims),
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_registration_id: registration,
        },
    ))
}

/// Gives a harness a websocket URL and an authorization for an executor.
pub async fn connect(asked: Asked<'_>, environment: String) -> Result<Reply, Refusal> {
    asked.only(&[Method::POST])?;
    let token = asked.authenticate(TokenRole::Harness, Some(&environment)).await?;
    let (rendezvous, request_id) = (asked.rendezvous, asked.request_id());
    let stream_id = asked.stream_id();
    let request: ConnectRequest = asked.body().await?;
    let arrival = rendezvous.config.timings.arrival;
    let presence = tokio::select! {
        presence = rendezvous.bus.await_presence(&environment, arrival) => presence,
        () = rendezvous.wait_for_draining() => return Err(Refusal::Draining),
    };
    let presence = presence?.ok_or(Refusal::Offline)?;
    if presence.is_full {
        return Err(Refusal::Busy);
    }
    let secret = new_secret("xs_auth_");
    let now = rendezvous.config.clock.now();
    let expires = now + seconds(rendezvous.config.timings.harness_bundle);
    // The authorization must not outlive its token.
    let expires = token.expires_at.map_or(expires, |end| end.min(expires));
    let (hash, harness_key) = (sha256(secret.as_bytes()), key_digest(&request.harness_public_key));
    let base = rendezvous.base_of(presence.home.as_deref());
    let (id, registration) = (environment.clone(), presence.registration);
    let new = NewAuthorization {
        authorization: Authorization { hash, environment: id, registration, harness_key },
        token: token.id.clone(),
        expires,
        max_unused: rendezvous.config.limits.unused_authorizations,
    };
    let current = match rendezvous.store.authorize(new).await? {
        Ok(current) => current,
        Err(NotGranted::UnknownEnvironment) => return Err(Refusal::NotFound),
        // The attached executor has been replaced, and the new one is not there yet.
        Err(NotGranted::OldRegistration) => return Err(Refusal::Offline),
        Err(NotGranted::TooMany) => return Err(Refusal::TooMany),
    };
    let claims = Claims {
        environment: environment.clone(),
        registration: current.id.clone(),
        token: token.id.clone(),
        expires,
        role: SocketRole::Harness { nonce: new_id("") },
    };
    let connect_id = claims.role.connect_id();
    tracing::info!(%environment, registration = %current.id, token = %token.id, connect_id, request_id, stream_id, "harness connect authorized");
    Ok(json(
        StatusCode::OK,
        &ConnectResponse {
            environment_id: environment,
            url: rendezvous.keys.current().sign(&base, &claims),
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_registration_id: current.id,
            executor_public_key: current.executor_key,
            harness_key_authorization: secret,
        },
    ))
}

/// Tells an executor whether a harness is authorized.
pub async fn validate(asked: Asked<'_>, environment: String) -> Result<Reply, Refusal> {
    asked.only(&[Method::POST])?;
    asked.authenticate(TokenRole::Executor, Some(&environment)).await?;
    let (rendezvous, stream_id) = (asked.rendezvous, asked.stream_id());
    let request_id = asked.request_id();
    let request: ValidateRequest = asked.body().await?;
    let registration = request.executor_registration_id.clone();
    let allowed = if request.harness_key_authorization.len() > MAX_AUTHORIZATION_BYTES {
        Err(NotAuthorized::Unknown)
    } else {
        let authorization = Authorization {
            hash: sha256(request.harness_key_authorization.as_bytes()),
            environment: environment.clone(),
            registration: request.executor_registration_id,
            harness_key: key_digest(&request.harness_public_key),
        };
        let now = rendezvous.config.clock.now();
        rendezvous.store.use_authorization(authorization, now).await?
    };
    let (valid, reason) = (allowed.is_ok(), allowed.err().map(NotAuthorized::name));
    rendezvous.metrics.handshake(valid);
    if let Some(reason) = reason {
        rendezvous.metrics.refusal("validate", reason);
    }
    tracing::info!(%environment, %registration, stream_id, request_id, valid, reason, "harness validated");
    Ok(json(StatusCode::OK, &ValidateResponse { valid }))
}

fn seconds(duration: Duration) -> Seconds {
    Seconds::try_from(duration.as_secs()).unwrap_or(Seconds::MAX / 2)
}
