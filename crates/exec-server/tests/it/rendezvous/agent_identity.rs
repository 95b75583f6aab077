//! Executors that authenticate with an agent identity.

use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::executor::{ExecutorBuilder, TestExecutor};
use exec_server_testkit::mock_idp::{MockIdp, TaskForm};
use exec_server_testkit::remote::join;
use exec_server_testkit::{TestHarness, TestRendezvous};
use serde_json::{Value, json};

#[tokio::test]
async fn every_request_is_signed_for_one_task() {
    let fixture = Fixture::start().await;
    let mut executor = fixture.join(&json!({})).spawn();
    let token = fixture.rendezvous.token(TokenRole::Harness, "env").await;
    let harness = TestHarness::new(fixture.rendezvous.url(), "env", &token);
    for _ in 0..2 {
        let mut client = harness.client().await;
        client.initialize().await;
        let script = "echo ${CODEX_ACCESS_TOKEN-unknown}";
        assert_eq!(client.sh("p", script).await.text(), "unknown\n");
    }
    // One registration, and one validation for each harness.
    assert_eq!(fixture.idp.counts(), (1, 3));
    end(&mut executor).await;
}

#[tokio::test]
async fn a_task_may_be_encrypted_for_the_agent() {
    for form in [TaskForm::CamelCase, TaskForm::Sealed, TaskForm::SealedCamelCase] {
        let fixture = Fixture::start().await;
        fixture.idp.set_task_form(form);
        let mut executor = fixture.join(&json!({})).spawn();
        let token = fixture.rendezvous.token(TokenRole::Harness, "env").await;
        // The identity provider rejects a request that does not name the task.
        TestHarness::new(fixture.rendezvous.url(), "env", &token).client().await;
        assert_eq!(fixture.idp.counts().0, 1, "{form:?}");
        end(&mut executor).await;
    }
}

#[tokio::test]
async fn every_request_names_the_kind_of_account() {
    for is_fedramp in [true, false] {
        let fixture = Fixture::start().await;
        let claims = json!({"chatgpt_account_is_fedramp": is_fedramp});
        let mut executor = fixture.join(&claims).spawn();
        let token = fixture.rendezvous.token(TokenRole::Harness, "env").await;
        TestHarness::new(fixture.rendezvous.url(), "env", &token).client().await;
        let requests = fixture.idp.headers();
        assert_eq!(requests.len(), 2, "register and validate");
        for headers in requests {
            let said =
                headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("x-openai-fedramp"));
            assert_eq!(said.map(|(_, value)| value.as_str()), is_fedramp.then_some("true"));
        }
        end(&mut executor).await;
    }
}

#[tokio::test]
async fn an_authority_that_is_out_for_a_while_is_waited_for() {
    let fixture = Fixture::start().await;
    fixture.idp.fail_next(2);
    let mut executor = fixture.join(&json!({})).piped_stderr().spawn();
    while !executor.next_stderr_line().await.expect("it runs").contains("trying again") {}
    let token = fixture.rendezvous.token(TokenRole::Harness, "env").await;
    let harness = TestHarness::new(fixture.rendezvous.url(), "env", &token);
    harness.client().await.initialize().await;
    end(&mut executor).await;
}

#[tokio::test]
async fn an_invalid_identity_exits_with_1() {
    let fixture = Fixture::start().await;
    for (claims, answers) in [
        (json!({"exp": 1_000_000_000}), "the agent identity is not valid: ExpiredSignature"),
        (json!({"aud": "somebody else"}), "the agent identity is not valid: InvalidAudience"),
        (json!({"iss": "https://example.org"}), "the agent identity is not valid: InvalidIssuer"),
        (json!({"agent_private_key": "bm8="}), "the key of the agent identity is not usable"),
        (json!({"agent_runtime_id": "another"}), "no task was registered"),
    ] {
        let (code, stdout, stderr) = fixture.join(&claims).run().await;
        assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
        assert!(stderr.contains(answers) && stderr.lines().count() == 1, "{stderr}");
    }
    let other = MockIdp::start(fixture.rendezvous.url(), "t").await;
    let document = other.document(&json!({}));
    let forged = fixture.join(&json!({})).env("CODEX_ACCESS_TOKEN", &document);
    let (code, _, stderr) = forged.run().await;
    assert!(code == 1 && stderr.contains("InvalidSignature"), "{stderr}");
    assert!(!stderr.contains(&document), "{stderr}");
    let nothing = fixture.join(&json!({})).env("CODEX_ACCESS_TOKEN", "");
    let (code, _, stderr) = nothing.run().await;
    assert!(code == 1 && stderr.contains("CODEX_ACCESS_TOKEN"), "{stderr}");
    let both = fixture.join(&json!({})).args(&["--executor-credential-stdin"]);
    assert_eq!(both.run().await.0, 2);
}

struct Fixture {
    rendezvous: TestRendezvous,
    idp: MockIdp,
    state: tempfile::TempDir,
}

impl Fixture {
    async fn start() -> Self {
        let rendezvous = TestRendezvous::start().await;
        let token = rendezvous.token(TokenRole::Executor, "env").await;
        let idp = MockIdp::start(rendezvous.url(), &token).await;
        Self { rendezvous, idp, state: tempfile::tempdir().unwrap() }
    }

    /// An executor whose registry is the mock identity provider; the arguments override claims.
    fn join(&self, claims: &Value) -> ExecutorBuilder {
        let url = self.idp.url();
        join(&url, self.state.path(), "")
            .args(&["--use-agent-identity-auth"])
            .env("CODEX_ACCESS_TOKEN", self.idp.document(claims))
            .env("CODEX_AGENT_IDENTITY_JWKS_BASE_URL", &url)
            .env("CODEX_AGENT_IDENTITY_AUTHAPI_BASE_URL", format!("{url}/"))
    }
}

async fn end(executor: &mut TestExecutor) {
    executor.signal(exec_server_testkit::executor::Signal::TERM);
    assert_eq!(executor.wait().await.code(), Some(0));
}
