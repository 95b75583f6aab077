use exec_server_relay::registry_types::{MLKEM768_PUBLIC_KEY_BYTES, X25519_PUBLIC_KEY_BYTES};
use rusqlite::Connection;

use super::*;
use crate::store::{PublicKey, TokenRole};

const NOW: Seconds = 1_000_000;

#[tokio::test]
async fn a_failed_write_reports_that_nothing_was_written() {
    let (store, _dir) = store().await;
    let nothing_written = async |what: &str| {
        let refused = store.register(registration("r1"), NOW).await;
        assert!(matches!(refused, Err(StoreError::Unwritten(_))), "{what}: {refused:?}");
        assert_eq!(store.environment("env".into()).await.unwrap().unwrap().generation, 0);
        // A valid token is still recognised.
        assert!(store.authenticate([0; 32], NOW).await.unwrap().is_some(), "{what}");
    };
    let pragma = async |name: &'static str, value: i64| {
        store.raw(move |connection| connection.pragma_update(None, name, value)).await;
    };
    pragma("query_only", 1).await;
    nothing_written("read only").await;
    pragma("query_only", 0).await;
    // The page limit simulates a full disk.
    pragma("max_page_count", 1).await;
    let filler = "x".repeat(1 << 16);
    let filled = store.set_note("filler", filler.clone()).await;
    assert!(matches!(filled, Err(StoreError::Unwritten(_))), "{filled:?}");
    assert_eq!(store.note("filler").await.unwrap(), None);
    pragma("max_page_count", 1 << 20).await;
    store.set_note("filler", filler).await.unwrap();
    assert_eq!(store.register(registration("r1"), NOW).await.unwrap(), Ok(1));
}

#[tokio::test]
async fn a_write_that_fails_does_not_fail_those_that_are_committed_with_it() {
    let (store, dir) = store().await;
    let other = lock(&dir);
    // While another process writes, all of these queue up for one transaction.
    let twice = || store.add_token(token("twice"), [9; 32]);
    let note = store.set_note("note", "kept".into());
    let (first, second, note, ()) = tokio::join!(twice(), twice(), note, async {
        while store.worker.waiting() < 3 {
            tokio::task::yield_now().await;
        }
        other.execute_batch("ROLLBACK").unwrap();
    });
    assert!(first.is_ok() && note.is_ok());
    assert!(matches!(second, Err(StoreError::Unwritten(_))), "{second:?}");
    assert_eq!(store.note("note").await.unwrap().as_deref(), Some("kept"));
    assert_eq!(store.tokens().await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_long_write_of_another_process_does_not_block_reads() {
    let (store, dir) = store_with(Duration::from_millis(50)).await;
    let other = lock(&dir);
    let refused = store.register(registration("r1"), NOW).await;
    assert!(matches!(refused, Err(StoreError::Unwritten(_))), "{refused:?}");
    drop(store);
    // A write waits; a valid token is recognised meanwhile, and the write succeeds afterwards.
    let path = dir.path().join("db");
    other.execute_batch("ROLLBACK").unwrap();
    let store = SqliteStore::open_with(&path, Duration::from_secs(60)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut writing = store.register(registration("r1"), NOW);
    for _ in 0..100 {
        let reading = store.authenticate([0; 32], NOW);
        tokio::select! {
            biased;
            written = &mut writing => panic!("the database is locked: {written:?}"),
            found = reading => assert!(found.unwrap().is_some()),
        }
    }
    other.execute_batch("ROLLBACK").unwrap();
    assert_eq!(writing.await.unwrap(), Ok(1));
}

#[tokio::test]
async fn a_database_can_be_reopened_and_a_newer_schema_is_rejected() {
    let (store, dir) = store().await;
    store.set_policy("env".into(), RegistrationPolicy::FirstWins).await.unwrap();
    drop(store);
    let path = dir.path().join("db");
    let store = SqliteStore::open(&path).unwrap();
    let environment = store.environment("env".into()).await.unwrap().unwrap();
    assert_eq!(environment.policy, RegistrationPolicy::FirstWins);
    store.raw(|connection| connection.pragma_update(None, "user_version", 99)).await;
    drop(store);
    let newer = SqliteStore::open(&path).map(drop);
    assert!(matches!(newer, Err(StoreError::TooNew { found: 99, known: 3 })), "{newer:?}");
}

#[tokio::test]
async fn a_database_of_the_first_version_gets_labels() {
    let (store, dir) = store().await;
    let before = "ALTER TABLE tokens DROP COLUMN label; ALTER TABLE tokens DROP COLUMN deleted_at;
         PRAGMA user_version = 1;";
    store.raw(move |connection| connection.execute_batch(before)).await;
    drop(store);
    let store = SqliteStore::open(&dir.path().join("db")).unwrap();
    assert_eq!(store.tokens().await.unwrap()[0].label, None);
    let labelled = Token { label: Some("rack 4".into()), ..token("new") };
    store.add_token(labelled.clone(), [1; 32]).await.unwrap();
    assert_eq!(store.authenticate([1; 32], NOW).await.unwrap(), Some(labelled));
}

impl SqliteStore {
    /// Runs any statement outside of a transaction.
    async fn raw(&self, work: impl Fn(&Connection) -> rusqlite::Result<()> + Send + 'static) {
        self.ask("raw", Kind::Read, move |connection| Ok(work(connection)?)).await.unwrap();
    }
}

/// Another process that holds the write lock.
fn lock(dir: &tempfile::TempDir) -> Connection {
    let other = Connection::open(dir.path().join("db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    other
}

async fn store() -> (SqliteStore, tempfile::TempDir) {
    store_with(Duration::from_secs(60)).await
}

async fn store_with(patience: Duration) -> (SqliteStore, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open_with(&dir.path().join("db"), patience).unwrap();
    store.add_token(token("owner"), [0; 32]).await.unwrap();
    (store, dir)
}

fn token(id: &str) -> Token {
    Token {
        id: id.into(),
        role: TokenRole::Executor,
        environment: Some("env".into()),
        created_at: NOW,
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
        max_streams: None,
        label: None,
    }
}

fn registration(id: &str) -> NewRegistration {
    let executor_key = PublicKey {
        x25519: [1; X25519_PUBLIC_KEY_BYTES],
        mlkem768: Box::new([2; MLKEM768_PUBLIC_KEY_BYTES]),
    };
    let (id, environment) = (id.into(), "env".into());
    NewRegistration { id, environment, executor_key, attached: None }
}
