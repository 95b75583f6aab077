//! The store in one SQLite database, on a thread of its own.
//!
//! | module | contains |
//! |---|---|
//! | `worker` | the thread: reads at once, writes committed together |
//! | `database` | opening, recovery from a full disk, classification of errors |
//! | `schema` | tables and migrations |
//! | `statements` | one function per operation |

mod database;
mod schema;
mod statements;
mod worker;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Authorization, Denial, Environment, NewAuthorization, NewRegistration, NotAuthorized,
    NotGranted, NotRegistered, Query, Registration, RegistrationPolicy, Store, StoreTimes, Token,
    TokenEnd, is_use_noted,
};
use crate::clock::Seconds;
use crate::secrets::Digest;
use crate::signed_url::Claims;
use crate::store::StoreError;
use database::Database;
use worker::{Kind, Worker};

/// How long a write retries while another process writes; admin commands take far less.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A store in one SQLite database.
pub struct SqliteStore {
    worker: Arc<Worker>,
    times: StoreTimes,
}

impl SqliteStore {
    /// Opens a database and migrates it.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with(path, BUSY_TIMEOUT)
    }

    fn open_with(path: &Path, patience: Duration) -> Result<Self, StoreError> {
        let worker = Worker::spawn(Database::open(path)?, patience)?;
        Ok(Self { worker: Arc::new(worker), times: StoreTimes::default() })
    }

    fn ask<T: Send + 'static>(
        &self,
        operation: &'static str,
        kind: Kind,
        work: impl Fn(&rusqlite::Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Query<'_, T> {
        Box::pin(self.times.of(operation, self.worker.ask(kind, work)))
    }
}

impl Store for SqliteStore {
    fn authenticate(&self, hash: Digest, now: Seconds) -> Query<'_, Option<Token>> {
        Box::pin(async move {
            let find = move |connection: &_| statements::token_by_hash(connection, &hash);
            let token = self.ask("authenticate", Kind::Read, find).await?;
            if let Some(token) = token.as_ref().filter(|token| !is_use_noted(token, now)) {
                let (worker, id) = (self.worker.clone(), token.id.clone());
                tokio::spawn(async move {
                    let used = id.clone();
                    let note = move |connection: &_| statements::note_use(connection, &used, now);
                    // A full disk or a long write of another process must not reject a valid token.
                    if let Err(error) = worker.ask(Kind::Write, note).await {
                        tracing::debug!(%error, token = id, "could not record the use of a token");
                    }
                });
            }
            Ok(token)
        })
    }

    fn tokens(&self) -> Query<'_, Vec<Token>> {
        self.ask("tokens", Kind::Read, statements::tokens)
    }

    fn add_token(&self, token: Token, hash: Digest) -> Query<'_, ()> {
        self.ask("add_token", Kind::DurableWrite, move |it| {
            statements::add_token(it, &token, &hash)
        })
    }

    fn revoke_token(&self, id: String, now: Seconds) -> Query<'_, bool> {
        self.ask("revoke_token", Kind::DurableWrite, move |it| {
            statements::revoke_token(it, &id, now)
        })
    }

    fn delete_token(&self, id: String, now: Seconds) -> Query<'_, bool> {
        self.ask("delete_token", Kind::DurableWrite, move |it| {
            statements::delete_token(it, &id, now)
        })
    }

    fn ended_since(&self, since: Seconds, now: Seconds) -> Query<'_, Vec<(String, TokenEnd)>> {
        self.ask("ended_since", Kind::Read, move |it| statements::ended_since(it, since, now))
    }

    fn environment(&self, id: String) -> Query<'_, Option<Environment>> {
        self.ask("environment", Kind::Read, move |it| statements::environment(it, &id))
    }

    fn environments(&self) -> Query<'_, Vec<Environment>> {
        self.ask("environments", Kind::Read, statements::environments)
    }

    fn set_policy(&self, id: String, policy: RegistrationPolicy) -> Query<'_, bool> {
        self.ask("set_policy", Kind::DurableWrite, move |it| {
            statements::set_policy(it, &id, policy)
        })
    }

    fn delete_environment(&self, id: String, now: Seconds) -> Query<'_, Option<Vec<String>>> {
        self.ask("delete_environment", Kind::DurableWrite, move |it| {
            statements::delete_environment(it, &id, now)
        })
    }

    fn register(
        &self,
        new: NewRegistration,
        now: Seconds,
    ) -> Query<'_, Result<u64, NotRegistered>> {
        self.ask("register", Kind::DurableWrite, move |it| statements::register(it, &new, now))
    }

    fn admit_executor(&self, claims: Claims, now: Seconds) -> Query<'_, Result<u64, Denial>> {
        self.ask("admit_executor", Kind::Read, move |it| {
            statements::admit_executor(it, &claims, now)
        })
    }

    fn admit_harness(
        &self,
        claims: Claims,
        nonce: String,
        now: Seconds,
    ) -> Query<'_, Result<Option<u32>, Denial>> {
        self.ask("admit_harness", Kind::Write, move |it| {
            statements::admit_harness(it, &claims, &nonce, now)
        })
    }

    fn authorize(&self, new: NewAuthorization) -> Query<'_, Result<Registration, NotGranted>> {
        self.ask("authorize", Kind::Write, move |it| statements::authorize(it, &new))
    }

    fn use_authorization(
        &self,
        asked: Authorization,
        now: Seconds,
    ) -> Query<'_, Result<(), NotAuthorized>> {
        self.ask("use_authorization", Kind::Write, move |it| {
            statements::use_authorization(it, &asked, now)
        })
    }

    fn note(&self, name: &'static str) -> Query<'_, Option<String>> {
        self.ask("note", Kind::Read, move |it| statements::note(it, name))
    }

    fn set_note(&self, name: &'static str, value: String) -> Query<'_, ()> {
        self.ask("set_note", Kind::DurableWrite, move |it| statements::set_note(it, name, &value))
    }

    fn is_cramped(&self) -> bool {
        self.worker.is_cramped()
    }

    fn recover(&self) -> Query<'_, bool> {
        Box::pin(self.worker.recover())
    }

    fn prune(&self, now: Seconds) -> Query<'_, ()> {
        self.ask("prune", Kind::Write, move |it| statements::prune(it, now))
    }

    fn times(&self) -> &StoreTimes {
        &self.times
    }
}

#[cfg(test)]
mod tests;
