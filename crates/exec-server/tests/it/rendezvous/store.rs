//! One suite for every store: each case runs on an empty store with the environment `env`.

use exec_server_relay::registry_types::PublicKey;
use exec_server_rendezvous::clock::Seconds;
use exec_server_rendezvous::signed_url::{Claims, SocketRole};
use exec_server_rendezvous::store::{
    Authorization, Denial, Environment, NewAuthorization, NewRegistration, NotAuthorized,
    NotGranted, NotRegistered, RegistrationPolicy, SqliteStore, Store, Token, TokenEnd, TokenRole,
};
use exec_server_testkit::rendezvous::public_key;
use futures_util::future::join_all;

const NOW: Seconds = 1_000_000;

/// Beyond the retention of everything.
const MUCH_LATER: Seconds = NOW + 60 * 24 * 3600;

/// Runs each case on each store.
macro_rules! suite {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $case() {
                let (store, _dir) = super::sqlite().await;
                super::$case(&store).await;
            })*
        }

        #[cfg(unix)]
        mod postgres {
            $(#[tokio::test]
            async fn $case() {
                let Some(store) = super::postgres().await else { return };
                super::$case(&store).await;
            })*
        }
    };
}

suite![
    a_registration_becomes_the_current_one,
    registrations_at_once_get_a_generation_each,
    the_first_wins_while_it_is_attached,
    the_number_of_kept_registrations_is_bounded,
    an_authorization_is_used_once_and_only_for_what_it_was_given,
    of_many_uses_at_once_one_succeeds,
    an_authorization_ends_with_its_registration_and_its_token,
    an_authorization_needs_the_current_registration,
    the_number_of_unused_authorizations_per_token_is_bounded,
    tokens_are_found_by_their_digest_and_their_use_is_noted,
    a_deleted_token_is_gone_and_its_end_is_noticed,
    a_deleted_environment_takes_everything_along,
    tokens_that_expire_are_found_when_they_do,
    an_executor_is_admitted_with_a_good_token_and_the_current_registration,
    a_harness_is_admitted_once,
    expired_rows_are_pruned,
    notes_are_kept,
    requests_at_once_are_answered_each_for_itself,
];

async fn sqlite() -> (SqliteStore, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&dir.path().join("db")).unwrap();
    prepare(&store).await;
    (store, dir)
}

#[cfg(unix)]
async fn postgres() -> Option<exec_server_rendezvous::store::PostgresStore> {
    use exec_server_rendezvous::store::PostgresStore;
    use exec_server_testkit::postgres::Postgres;

    let url = tokio::task::spawn_blocking(Postgres::shared_database).await.unwrap()?;
    PostgresStore::migrate(&url).await.unwrap();
    let store = PostgresStore::open(&url).await.unwrap();
    prepare(&store).await;
    Some(store)
}

async fn prepare(store: &dyn Store) {
    store.add_token(token("owner", TokenRole::Executor), [0; 32]).await.unwrap();
}

async fn a_registration_becomes_the_current_one(store: &dyn Store) {
    assert_eq!(register(store, "r1").await, Ok(1));
    assert_eq!(register(store, "r2").await, Ok(2));
    let environment = env(store).await;
    let current = environment.registration.unwrap();
    assert_eq!((environment.generation, current.generation, current.id.as_str()), (2, 2, "r2"));
    assert_eq!((current.executor_key, current.created_at), (key(1), NOW));
    let unknown = NewRegistration { environment: "other".into(), ..registration("r3") };
    let refused = store.register(unknown, NOW).await.unwrap();
    assert_eq!(refused, Err(NotRegistered::UnknownEnvironment));
}

async fn registrations_at_once_get_a_generation_each(store: &dyn Store) {
    let names: Vec<String> = (0..20).map(|number| format!("r{number}")).collect();
    let all = join_all(names.iter().map(|name| register(store, name))).await;
    let mut generations: Vec<u64> = all.into_iter().map(|one| one.unwrap()).collect();
    generations.sort_unstable();
    assert_eq!(generations, (1..=20).collect::<Vec<_>>());
    assert_eq!(env(store).await.generation, 20);
}

async fn the_first_wins_while_it_is_attached(store: &dyn Store) {
    assert!(store.set_policy("env".into(), RegistrationPolicy::FirstWins).await.unwrap());
    assert!(!store.set_policy("x".into(), RegistrationPolicy::FirstWins).await.unwrap());
    register(store, "r1").await.unwrap();
    let other = |id: &str, attached: Option<&str>| NewRegistration {
        executor_key: key(9),
        attached: attached.map(str::to_owned),
        ..registration(id)
    };
    let taken = store.register(other("r2", Some("r1")), NOW).await.unwrap();
    assert_eq!(taken, Err(NotRegistered::Taken));
    let same = NewRegistration { attached: Some("r1".into()), ..registration("r3") };
    assert_eq!(store.register(same, NOW).await.unwrap(), Ok(2));
    // Neither an executor of an older registration nor one that is away keeps the environment.
    assert_eq!(store.register(other("r4", Some("r1")), NOW).await.unwrap(), Ok(3));
    assert_eq!(store.register(registration("r5"), NOW).await.unwrap(), Ok(4));
}

async fn the_number_of_kept_registrations_is_bounded(store: &dyn Store) {
    // An id can be used again only after its row was dropped.
    for number in 0..40 {
        register(store, &format!("r{number}")).await.unwrap();
    }
    assert_eq!(register(store, "r0").await, Ok(41));
    assert!(store.register(registration("r39"), NOW).await.is_err());
    assert_eq!(env(store).await.registration.unwrap().id, "r0");
}

async fn an_authorization_is_used_once_and_only_for_what_it_was_given(store: &dyn Store) {
    register(store, "r1").await.unwrap();
    authorize(store, 1, "t", 10).await.unwrap();
    let good = authorization(1);
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
        assert_eq!(store.use_authorization(other, NOW).await.unwrap(), Err(why));
    }
    let used = async |now| store.use_authorization(good.clone(), now).await.unwrap();
    assert_eq!(used(NOW + 60).await, Err(NotAuthorized::Expired));
    assert_eq!(used(NOW + 59).await, Ok(()));
    assert_eq!(used(NOW + 59).await, Err(NotAuthorized::Used));
}

async fn of_many_uses_at_once_one_succeeds(store: &dyn Store) {
    register(store, "r1").await.unwrap();
    for number in 0..20 {
        authorize(store, number, "t", 100).await.unwrap();
        let all = (0..8).map(|_| store.use_authorization(authorization(number), NOW));
        let used = join_all(all).await.into_iter().map(|used| used.unwrap());
        let (good, bad): (Vec<_>, Vec<_>) = used.partition(Result::is_ok);
        assert_eq!((good.len(), bad.len()), (1, 7));
        assert!(bad.iter().all(|why| *why == Err(NotAuthorized::Used)), "{bad:?}");
    }
}

async fn an_authorization_ends_with_its_registration_and_its_token(store: &dyn Store) {
    register(store, "r1").await.unwrap();
    store.add_token(token("t", TokenRole::Harness), [1; 32]).await.unwrap();
    authorize(store, 2, "t", 10).await.unwrap();
    assert!(store.revoke_token("t".into(), NOW).await.unwrap());
    let used = async |number| store.use_authorization(authorization(number), NOW).await.unwrap();
    assert_eq!(used(2).await, Err(NotAuthorized::Unknown));
    authorize(store, 3, "u", 10).await.unwrap();
    register(store, "r2").await.unwrap();
    assert_eq!(used(3).await, Err(NotAuthorized::StaleRegistration));
}

async fn an_authorization_needs_the_current_registration(store: &dyn Store) {
    assert_eq!(authorize(store, 1, "t", 10).await, Err(NotGranted::OldRegistration));
    register(store, "r1").await.unwrap();
    assert_eq!(authorize(store, 1, "t", 10).await, Ok("r1".to_owned()));
    register(store, "r2").await.unwrap();
    assert_eq!(authorize(store, 2, "t", 10).await, Err(NotGranted::OldRegistration));
    store.delete_environment("env".into(), NOW).await.unwrap();
    assert_eq!(authorize(store, 3, "t", 10).await, Err(NotGranted::UnknownEnvironment));
}

async fn the_number_of_unused_authorizations_per_token_is_bounded(store: &dyn Store) {
    register(store, "r1").await.unwrap();
    authorize(store, 1, "t", 2).await.unwrap();
    authorize(store, 2, "t", 2).await.unwrap();
    assert_eq!(authorize(store, 3, "t", 2).await, Err(NotGranted::TooMany));
    authorize(store, 4, "u", 2).await.unwrap();
    store.use_authorization(authorization(1), NOW).await.unwrap().unwrap();
    authorize(store, 3, "t", 2).await.unwrap();
}

async fn tokens_are_found_by_their_digest_and_their_use_is_noted(store: &dyn Store) {
    let labelled = Token {
        label: Some("rack 4".into()),
        max_streams: Some(3),
        ..token("t", TokenRole::Harness)
    };
    store.add_token(labelled.clone(), [1; 32]).await.unwrap();
    assert_eq!(store.authenticate([2; 32], NOW).await.unwrap(), None);
    assert_eq!(store.authenticate([1; 32], NOW).await.unwrap(), Some(labelled));
    wait_for_use(store, NOW).await;
    store.authenticate([1; 32], NOW + 59).await.unwrap();
    store.authenticate([1; 32], NOW + 60).await.unwrap();
    wait_for_use(store, NOW + 60).await;
    assert!(store.revoke_token("t".into(), NOW + 1).await.unwrap());
    assert!(!store.revoke_token("x".into(), NOW).await.unwrap());
    let revoked = [("t".to_owned(), TokenEnd::Revoked)];
    assert_eq!(store.ended_since(NOW + 1, NOW + 1).await.unwrap(), revoked);
    assert!(store.ended_since(NOW + 2, NOW + 2).await.unwrap().is_empty());
    assert!(!find(store, "t").await.unwrap().is_good(NOW + 1));
}

/// The use is recorded in the background.
async fn wait_for_use(store: &dyn Store, at: Seconds) {
    let recorded = async {
        while find(store, "t").await.unwrap().last_used_at != Some(at) {
            tokio::task::yield_now().await;
        }
    };
    let recorded = tokio::time::timeout(exec_server_testkit::DEADLINE, recorded).await;
    recorded.expect("the use is recorded");
}

async fn a_deleted_token_is_gone_and_its_end_is_noticed(store: &dyn Store) {
    store.add_token(token("t", TokenRole::Harness), [1; 32]).await.unwrap();
    register(store, "r1").await.unwrap();
    authorize(store, 1, "t", 10).await.unwrap();
    assert!(store.delete_token("t".into(), NOW + 1).await.unwrap());
    assert_eq!(find(store, "t").await, None);
    assert_eq!(store.authenticate([1; 32], NOW).await.unwrap(), None);
    assert!(!store.delete_token("t".into(), NOW + 2).await.unwrap());
    assert!(!store.revoke_token("t".into(), NOW + 2).await.unwrap());
    let used = store.use_authorization(authorization(1), NOW + 1).await.unwrap();
    assert_eq!(used, Err(NotAuthorized::Unknown));
    let ended = [("t".to_owned(), TokenEnd::Revoked)];
    assert_eq!(store.ended_since(NOW + 1, NOW + 1).await.unwrap(), ended);
    store.prune(NOW + 3600).await.unwrap();
    assert!(store.ended_since(NOW, NOW + 1).await.unwrap().is_empty());
}

async fn a_deleted_environment_takes_everything_along(store: &dyn Store) {
    store.add_token(token("t", TokenRole::Harness), [1; 32]).await.unwrap();
    store.delete_token("t".into(), NOW).await.unwrap();
    register(store, "r1").await.unwrap();
    let ended = store.delete_environment("env".into(), NOW + 1).await.unwrap();
    assert_eq!(ended, Some(vec!["owner".to_owned()]));
    assert_eq!(store.delete_environment("env".into(), NOW + 1).await.unwrap(), None);
    assert!(store.environments().await.unwrap().is_empty());
    assert!(store.tokens().await.unwrap().is_empty());
    let ended = store.ended_since(NOW + 1, NOW + 1).await.unwrap();
    assert_eq!(ended, [("owner".to_owned(), TokenEnd::Revoked)]);
    // The name can be used again, from the start.
    store.add_token(token("new", TokenRole::Executor), [2; 32]).await.unwrap();
    assert_eq!(register(store, "r2").await, Ok(1));
}

async fn tokens_that_expire_are_found_when_they_do(store: &dyn Store) {
    let short = Token { expires_at: Some(NOW + 60), ..token("t", TokenRole::Harness) };
    store.add_token(short, [1; 32]).await.unwrap();
    let ended = async |since, now| store.ended_since(since, now).await.unwrap();
    assert!(ended(NOW, NOW + 59).await.is_empty());
    assert_eq!(ended(NOW, NOW + 60).await, [("t".to_owned(), TokenEnd::Expired)]);
    assert!(ended(NOW + 61, NOW + 100).await.is_empty());
}

async fn an_executor_is_admitted_with_a_good_token_and_the_current_registration(store: &dyn Store) {
    let short = Token { expires_at: Some(NOW + 60), ..token("short", TokenRole::Executor) };
    store.add_token(short, [1; 32]).await.unwrap();
    let admit = async |token: &str, registration: &str, now| {
        let claims = claims(token, registration, SocketRole::Executor);
        store.admit_executor(claims, now).await.unwrap()
    };
    assert_eq!(admit("owner", "r1", NOW).await, Err(Denial::OldRegistration));
    register(store, "r1").await.unwrap();
    assert_eq!(admit("owner", "r1", NOW).await, Ok(1));
    assert_eq!(admit("short", "r1", NOW + 59).await, Ok(1));
    assert_eq!(admit("short", "r1", NOW + 60).await, Err(Denial::EndedToken));
    assert_eq!(admit("nobody", "r1", NOW).await, Err(Denial::EndedToken));
    register(store, "r2").await.unwrap();
    assert_eq!(admit("owner", "r1", NOW).await, Err(Denial::OldRegistration));
    assert_eq!(admit("owner", "r2", NOW).await, Ok(2));
    store.revoke_token("owner".into(), NOW).await.unwrap();
    assert_eq!(admit("owner", "r2", NOW).await, Err(Denial::EndedToken));
}

async fn a_harness_is_admitted_once(store: &dyn Store) {
    let limited = Token { max_streams: Some(7), ..token("t", TokenRole::Harness) };
    store.add_token(limited, [1; 32]).await.unwrap();
    register(store, "r1").await.unwrap();
    let admit = async |token: &str, registration: &str, nonce: &str| {
        let role = SocketRole::Harness { nonce: nonce.to_owned() };
        let claims = claims(token, registration, role);
        store.admit_harness(claims, nonce.to_owned(), NOW).await.unwrap()
    };
    // A refused attempt uses up nothing.
    assert_eq!(admit("nobody", "r1", "n").await, Err(Denial::EndedToken));
    assert_eq!(admit("t", "r0", "n").await, Err(Denial::OldRegistration));
    assert_eq!(admit("t", "r1", "n").await, Ok(Some(7)));
    assert_eq!(admit("t", "r1", "n").await, Err(Denial::UsedNonce));
    assert_eq!(admit("owner", "r1", "m").await, Ok(None));
    let all = join_all((0..8).map(|_| admit("t", "r1", "one"))).await;
    assert_eq!(all.iter().filter(|admitted| admitted.is_ok()).count(), 1);
}

async fn expired_rows_are_pruned(store: &dyn Store) {
    register(store, "r1").await.unwrap();
    register(store, "r2").await.unwrap();
    let admit = async || {
        let role = SocketRole::Harness { nonce: "n".to_owned() };
        let claims = claims("owner", "r2", role);
        store.admit_harness(claims, "n".to_owned(), NOW).await.unwrap()
    };
    assert_eq!(admit().await, Ok(None));
    store.prune(NOW + 60).await.unwrap();
    assert_eq!(admit().await, Err(Denial::UsedNonce), "clocks differ a little");
    store.prune(NOW + 121).await.unwrap();
    assert_eq!(admit().await, Ok(None), "the nonce was dropped, and its URL has expired");
    store.revoke_token("owner".into(), NOW).await.unwrap();
    store.prune(NOW + 3600).await.unwrap();
    assert!(find(store, "owner").await.is_some(), "kept for inspection");
    store.prune(MUCH_LATER).await.unwrap();
    assert!(find(store, "owner").await.is_none());
    assert_eq!(env(store).await.registration.unwrap().id, "r2");
}

async fn notes_are_kept(store: &dyn Store) {
    assert_eq!(store.note("url").await.unwrap(), None);
    store.set_note("url", "one".into()).await.unwrap();
    store.set_note("url", "two".into()).await.unwrap();
    assert_eq!(store.note("url").await.unwrap().as_deref(), Some("two"));
    assert!(!store.is_cramped() && !store.recover().await.unwrap());
}

async fn requests_at_once_are_answered_each_for_itself(store: &dyn Store) {
    const COUNT: u8 = 100;
    let name = |number: u8| format!("env-{number}");
    let made = (1..=COUNT).map(|number| {
        let id = format!("t{number}");
        let token = Token { environment: Some(name(number)), ..token(&id, TokenRole::Executor) };
        store.add_token(token, [number; 32])
    });
    assert!(join_all(made).await.iter().all(Result::is_ok));
    // Every tenth is not known.
    let tokens = (1..=COUNT).map(|number| {
        let hash = if number % 10 == 0 { [255 - number; 32] } else { [number; 32] };
        store.authenticate(hash, NOW)
    });
    for (number, found) in (1..=COUNT).zip(join_all(tokens).await) {
        let wanted = (number % 10 != 0).then(|| format!("t{number}"));
        assert_eq!(found.unwrap().map(|token| token.id), wanted);
    }
    let registered = (1..=COUNT).map(|number| {
        let environment = if number % 10 == 0 { "other".to_owned() } else { name(number) };
        let id = format!("r{number}");
        let new = NewRegistration { environment, executor_key: key(number), ..registration(&id) };
        store.register(new, NOW)
    });
    for (number, registered) in (1..=COUNT).zip(join_all(registered).await) {
        let wanted = if number % 10 == 0 { Err(NotRegistered::UnknownEnvironment) } else { Ok(1) };
        assert_eq!(registered.unwrap(), wanted, "{number}");
    }
    let authorized = (1..=COUNT).map(|number| {
        let authorization = Authorization {
            environment: name(number),
            registration: format!("r{number}"),
            ..authorization(number)
        };
        let token = format!("t{number}");
        let new = NewAuthorization { authorization, token, expires: NOW + 60, max_unused: 1 };
        store.authorize(new)
    });
    for (number, authorized) in (1..=COUNT).zip(join_all(authorized).await) {
        let found = authorized.unwrap().map(|it| (it.id, it.executor_key));
        let wanted = match number % 10 {
            0 => Err(NotGranted::OldRegistration),
            _ => Ok((format!("r{number}"), key(number))),
        };
        assert_eq!(found, wanted, "{number}");
    }
    let admitted = (1..=COUNT).map(|number| {
        let role = SocketRole::Harness { nonce: format!("n{number}") };
        let claims = claims(&format!("t{number}"), &format!("r{number}"), role);
        let claims = Claims { environment: name(number), ..claims };
        store.admit_harness(claims, format!("n{number}"), NOW)
    });
    for (number, admitted) in (1..=COUNT).zip(join_all(admitted).await) {
        let wanted = if number % 10 == 0 { Err(Denial::OldRegistration) } else { Ok(None) };
        assert_eq!(admitted.unwrap(), wanted, "{number}");
    }
}

async fn env(store: &dyn Store) -> Environment {
    let environment = store.environment("env".into()).await.unwrap().unwrap();
    assert_eq!(store.environments().await.unwrap(), std::slice::from_ref(&environment));
    environment
}

async fn find(store: &dyn Store, id: &str) -> Option<Token> {
    store.tokens().await.unwrap().into_iter().find(|token| token.id == id)
}

async fn register(store: &dyn Store, id: &str) -> Result<u64, NotRegistered> {
    store.register(registration(id), NOW).await.unwrap()
}

async fn authorize(
    store: &dyn Store,
    number: u8,
    token: &str,
    max_unused: u32,
) -> Result<String, NotGranted> {
    let new = NewAuthorization {
        authorization: authorization(number),
        token: token.to_owned(),
        expires: NOW + 60,
        max_unused,
    };
    store.authorize(new).await.unwrap().map(|registration| registration.id)
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

fn key(number: u8) -> PublicKey {
    public_key(number)
}

fn registration(id: &str) -> NewRegistration {
    let (id, environment) = (id.into(), "env".into());
    NewRegistration { id, environment, executor_key: key(1), attached: None }
}

fn authorization(number: u8) -> Authorization {
    Authorization {
        hash: [number; 32],
        environment: "env".into(),
        registration: "r1".into(),
        harness_key: [5; 32],
    }
}

fn claims(token: &str, registration: &str, role: SocketRole) -> Claims {
    Claims {
        environment: "env".into(),
        registration: registration.into(),
        token: token.into(),
        expires: NOW + 60,
        role,
    }
}
