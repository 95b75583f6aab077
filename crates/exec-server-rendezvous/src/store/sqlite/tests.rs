use exec_server_relay::registry_types::{MLKEM768_PUBLIC_KEY_BYTES, X25519_PUBLIC_KEY_BYTES};

use super::*;
use crate::secrets::sha256;

const NOW: Seconds = 1_000_000;

#[test]
fn a_registration_that_saw_an_older_one_writes_nothing() {
    let (store, _dir) = store();
    assert_eq!(store.register(&registration("r1", 0), NOW).unwrap(), 1);
    let late = store.register(&registration("r2", 0), NOW);
    assert!(matches!(late, Err(StoreError::Conflict)), "{late:?}");
    let environment = store.environment("env").unwrap().unwrap();
    assert_eq!(environment.generation, 1);
    assert_eq!(environment.registration.unwrap().id, "r1");
    assert_eq!(store.register(&registration("r3", 1), NOW).unwrap(), 2);
}

#[test]
fn the_number_of_kept_registrations_is_bounded() {
    let (store, _dir) = store();
    for after in 0..100 {
        store.register(&registration(&format!("r{after}"), after), NOW).unwrap();
    }
    let count = "SELECT count(*) FROM registrations";
    let kept: i64 = store.connection().query_row(count, [], |row| row.get(0)).unwrap();
    assert_eq!(u64::try_from(kept).unwrap(), KEPT_REGISTRATIONS);
    assert_eq!(store.environment("env").unwrap().unwrap().registration.unwrap().id, "r99");
}

#[test]
fn an_authorization_is_used_once_and_only_for_its_purpose() {
    let (store, _dir) = store();
    store.register(&registration("r1", 0), NOW).unwrap();
    let good = authorization(1);
    assert!(store.add_authorization(&good, "t", NOW + 60, 10).unwrap());
    for (other, why) in [
        (Authorization { hash: [9; 32], ..good.clone() }, NotAuthorized::Unknown),
        (
            Authorization { environment: "other".into(), ..good.clone() },
            NotAuthorized::OtherEnvironment,
        ),
        (
            Authorization { registration: "r2".into(), ..good.clone() },
            NotAuthorized::StaleRegistration,
        ),
        (Authorization { harness_key: [9; 32], ..good.clone() }, NotAuthorized::OtherKey),
    ] {
        assert_eq!(store.use_authorization(&other, NOW).unwrap(), Err(why), "{other:?}");
    }
    let used = |now| store.use_authorization(&good, now).unwrap();
    assert_eq!(used(NOW + 60), Err(NotAuthorized::Expired));
    assert_eq!(used(NOW + 59), Ok(()));
    assert_eq!(used(NOW + 59), Err(NotAuthorized::Used));
}

#[test]
fn an_authorization_ends_with_its_registration_and_its_token() {
    let (store, _dir) = store();
    store.register(&registration("r1", 0), NOW).unwrap();
    store.add_authorization(&authorization(1), "t", NOW + 60, 10).unwrap();
    store.add_token(&token("t", TokenRole::Harness), &[1; 32]).unwrap();
    store.add_authorization(&authorization(2), "t", NOW + 60, 10).unwrap();
    assert!(store.revoke_token("t", NOW).unwrap());
    let used = |number| store.use_authorization(&authorization(number), NOW).unwrap();
    assert_eq!(used(2), Err(NotAuthorized::Unknown));
    store.add_authorization(&authorization(3), "u", NOW + 60, 10).unwrap();
    store.register(&registration("r2", 1), NOW).unwrap();
    assert_eq!(used(3), Err(NotAuthorized::StaleRegistration));
}

#[test]
fn a_failed_write_reports_that_nothing_was_written() {
    let (store, _dir) = store();
    let nothing_written = |what: &str| {
        let refused = store.register(&registration("r1", 0), NOW);
        assert!(matches!(refused, Err(StoreError::Unwritten(_))), "{what}: {refused:?}");
        assert_eq!(store.environment("env").unwrap().unwrap().generation, 0);
        // A valid token is still recognised.
        assert!(store.use_token(&[0; 32], NOW).unwrap().is_some(), "{what}");
    };
    let pragma = |name: &str, value: i64| {
        let connection = store.connection();
        connection.pragma_update(None, name, value).unwrap();
    };
    pragma("query_only", 1);
    nothing_written("read only");
    pragma("query_only", 0);
    // The page limit simulates a full disk.
    pragma("max_page_count", 1);
    let filler = "x".repeat(1 << 16);
    let filled = store.set_note("filler", &filler);
    assert!(matches!(filled, Err(StoreError::Unwritten(_))), "{filled:?}");
    assert_eq!(store.note("filler").unwrap(), None);
    pragma("max_page_count", 1 << 20);
    store.set_note("filler", &filler).unwrap();
    assert_eq!(store.register(&registration("r1", 0), NOW).unwrap(), 1);
}

#[test]
fn a_long_write_of_another_process_does_not_block_reads() {
    let (mut store, dir) = store();
    let other = Connection::open(dir.path().join("db")).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    store.busy_timeout = Duration::from_millis(50);
    let refused = store.register(&registration("r1", 0), NOW);
    assert!(matches!(refused, Err(StoreError::Unwritten(_))), "{refused:?}");
    // Many writers wait; a valid token is recognised meanwhile, and the writes succeed afterwards.
    store.busy_timeout = Duration::from_secs(60);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8)
            .map(|number| {
                let store = &store;
                scope.spawn(move || store.use_nonce(&format!("n{number}"), NOW).unwrap())
            })
            .collect();
        for _ in 0..100 {
            assert!(store.use_token(&[0; 32], NOW).unwrap().is_some());
        }
        assert!(!writers.iter().any(std::thread::ScopedJoinHandle::is_finished));
        other.execute_batch("ROLLBACK").unwrap();
        assert!(writers.into_iter().all(|writer| writer.join().unwrap()));
    });
    assert_eq!(store.register(&registration("r1", 0), NOW).unwrap(), 1);
}

#[test]
fn the_number_of_unused_authorizations_per_token_is_bounded() {
    let (store, _dir) = store();
    store.register(&registration("r1", 0), NOW).unwrap();
    assert!(store.add_authorization(&authorization(1), "t", NOW + 60, 2).unwrap());
    assert!(store.add_authorization(&authorization(2), "t", NOW + 60, 2).unwrap());
    assert!(!store.add_authorization(&authorization(3), "t", NOW + 60, 2).unwrap());
    assert!(store.add_authorization(&authorization(4), "u", NOW + 60, 2).unwrap());
    store.use_authorization(&authorization(1), NOW).unwrap().unwrap();
    assert!(store.add_authorization(&authorization(3), "t", NOW + 60, 2).unwrap());
}

#[test]
fn tokens_are_found_by_their_digest_and_their_use_is_noted() {
    let (store, _dir) = store();
    store.add_token(&token("t", TokenRole::Harness), &sha256(b"secret")).unwrap();
    assert_eq!(store.use_token(&sha256(b"other"), NOW).unwrap(), None);
    let found = store.use_token(&sha256(b"secret"), NOW).unwrap().unwrap();
    assert_eq!((found.role, found.last_used_at), (TokenRole::Harness, None));
    assert_eq!(store.token("t").unwrap().unwrap().last_used_at, Some(NOW));
    store.use_token(&sha256(b"secret"), NOW + 59).unwrap();
    assert_eq!(store.token("t").unwrap().unwrap().last_used_at, Some(NOW));
    assert!(store.revoke_token("t", NOW + 1).unwrap() && !store.revoke_token("x", NOW).unwrap());
    let revoked = [("t".to_owned(), TokenEnd::Revoked)];
    assert_eq!(store.ended_since(NOW + 1, NOW + 1).unwrap(), revoked);
    assert!(store.ended_since(NOW + 2, NOW + 2).unwrap().is_empty());
    assert!(!store.token("t").unwrap().unwrap().is_good(NOW + 1));
}

#[test]
fn a_deleted_token_is_gone_and_its_end_is_noticed() {
    let (store, _dir) = store();
    let labelled = Token { label: Some("rack 4".into()), ..token("t", TokenRole::Harness) };
    store.add_token(&labelled, &[1; 32]).unwrap();
    store.register(&registration("r1", 0), NOW).unwrap();
    store.add_authorization(&authorization(1), "t", NOW + 60, 10).unwrap();
    assert!(store.delete_token("t", NOW + 1).unwrap());
    assert_eq!((store.token("t").unwrap(), store.use_token(&[1; 32], NOW).unwrap()), (None, None));
    assert_eq!(store.tokens().unwrap().len(), 1);
    assert!(
        !store.delete_token("t", NOW + 2).unwrap() && !store.revoke_token("t", NOW + 2).unwrap()
    );
    let unknown = Err(NotAuthorized::Unknown);
    assert_eq!(store.use_authorization(&authorization(1), NOW + 1).unwrap(), unknown);
    let ended = [("t".to_owned(), TokenEnd::Revoked)];
    assert_eq!(store.ended_since(NOW + 1, NOW + 1).unwrap(), ended);
    store.prune(NOW + 2 + KEPT_AFTER_DELETION).unwrap();
    assert!(store.ended_since(NOW, NOW + 1).unwrap().is_empty());
}

#[test]
fn a_deleted_environment_takes_everything_along() {
    let (store, _dir) = store();
    store.add_token(&token("t", TokenRole::Harness), &[1; 32]).unwrap();
    store.delete_token("t", NOW).unwrap();
    store.register(&registration("r1", 0), NOW).unwrap();
    assert!(store.delete_environment("env", NOW + 1).unwrap());
    assert!(!store.delete_environment("env", NOW + 1).unwrap());
    assert!(store.environments().unwrap().is_empty() && store.tokens().unwrap().is_empty());
    let ended: Vec<String> =
        store.ended_since(NOW + 1, NOW + 1).unwrap().into_iter().map(|it| it.0).collect();
    assert_eq!(ended, ["owner"]);
    // The name can be used again, from the start.
    store.add_token(&token("new", TokenRole::Executor), &[2; 32]).unwrap();
    assert_eq!(store.register(&registration("r2", 0), NOW).unwrap(), 1);
}

#[test]
fn tokens_that_expire_are_found_when_they_do() {
    let (store, _dir) = store();
    let short = Token { expires_at: Some(NOW + 60), ..token("t", TokenRole::Harness) };
    store.add_token(&short, &[1; 32]).unwrap();
    let ended = |since, now| store.ended_since(since, now).unwrap();
    assert!(ended(NOW, NOW + 59).is_empty());
    assert_eq!(ended(NOW, NOW + 60), [("t".to_owned(), TokenEnd::Expired)]);
    assert!(ended(NOW + 61, NOW + 100).is_empty());
}

#[test]
fn a_nonce_is_used_once_and_expired_rows_are_pruned() {
    let (store, _dir) = store();
    assert!(store.use_nonce("n", NOW + 60).unwrap());
    assert!(!store.use_nonce("n", NOW + 60).unwrap());
    store.register(&registration("r1", 0), NOW).unwrap();
    store.add_authorization(&authorization(1), "t", NOW + 60, 10).unwrap();
    store.prune(NOW + 60).unwrap();
    assert!(!store.use_nonce("n", NOW + 60).unwrap(), "clocks differ a little");
    store.prune(NOW + 121).unwrap();
    let rows = |table: &str| -> i64 {
        let count = format!("SELECT count(*) FROM {table}");
        store.connection().query_row(&count, [], |row| row.get(0)).unwrap()
    };
    assert_eq!((rows("nonces"), rows("authorizations"), rows("registrations")), (0, 0, 1));
}

#[test]
fn a_database_can_be_reopened_and_a_newer_schema_is_rejected() {
    let (store, dir) = store();
    store.set_policy("env", RegistrationPolicy::FirstWins).unwrap();
    drop(store);
    let path = dir.path().join("db");
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.environment("env").unwrap().unwrap().policy, RegistrationPolicy::FirstWins);
    store.connection().pragma_update(None, "user_version", 99).unwrap();
    drop(store);
    assert!(matches!(SqliteStore::open(&path), Err(StoreError::TooNew { found: 99, known: 3 })));
}

#[test]
fn a_database_of_the_first_version_gets_labels() {
    let (store, dir) = store();
    let before = "ALTER TABLE tokens DROP COLUMN label; ALTER TABLE tokens DROP COLUMN deleted_at;
         PRAGMA user_version = 1;";
    store.connection().execute_batch(before).unwrap();
    drop(store);
    let store = SqliteStore::open(&dir.path().join("db")).unwrap();
    assert_eq!(store.token("owner").unwrap().unwrap().label, None);
    let labelled = Token { label: Some("rack 4".into()), ..token("new", TokenRole::Harness) };
    store.add_token(&labelled, &[1; 32]).unwrap();
    assert_eq!(store.token("new").unwrap(), Some(labelled));
}

fn store() -> (SqliteStore, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&dir.path().join("db")).unwrap();
    store.add_token(&token("owner", TokenRole::Executor), &[0; 32]).unwrap();
    (store, dir)
}

fn token(id: &str, role: TokenRole) -> Token {
    Token {
        id: id.into(),
        role,
        environment: Some("env".into()),
        created_at: NOW,
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
        max_streams: None,
        label: None,
    }
}

fn registration(id: &str, after: u64) -> NewRegistration {
    let executor_key = PublicKey {
        x25519: [1; X25519_PUBLIC_KEY_BYTES],
        mlkem768: Box::new([2; MLKEM768_PUBLIC_KEY_BYTES]),
    };
    NewRegistration { id: id.into(), environment: "env".into(), executor_key, after }
}

fn authorization(number: u8) -> Authorization {
    Authorization {
        hash: [number; 32],
        environment: "env".into(),
        registration: "r1".into(),
        harness_key: [5; 32],
    }
}
