//! Secrets of servers are denied inside every sandbox, whatever its policy.

use exec_server::protocol::sandbox::SandboxParams;
use exec_server::{ExecServerClient, RemoteExecServerConnectArgs};
use exec_server_rendezvous::store::TokenRole;
use exec_server_testkit::executor::ExecutorBuilder;
use exec_server_testkit::remote::{self, join, wait_for_presence};
use exec_server_testkit::{TestClient, TestExecutor, TestRendezvous};
use tempfile::TempDir;

use super::*;

const TOKEN: &str = "a-token-that-is-hard-to-guess";

struct SecretsFixture {
    dir: TempDir,
}

impl SecretsFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["work", "state", "work/keys"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(dir.path().join("state"), mode).unwrap();
        Self { dir }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    fn put(&self, name: &str) -> String {
        std::fs::write(self.path(name), TOKEN).unwrap();
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Policies that would expose them.
    fn policies(&self, files: &[&str]) -> Vec<Value> {
        let work = self.path("work");
        let minimal = ["read", "write"].map(|access| {
            let named = files.iter().map(|name| at(&self.path(name), access));
            let base = [special("minimal", "read"), special("project_roots", "write")];
            let entries: Vec<Value> = base.into_iter().chain(named).collect();
            with_entries(&[&work], "restricted", &entries)
        });
        let wide = [
            workspace_write(&[&work], "restricted"),
            workspace_write(&[&self.path("")], "restricted"),
            unrestricted("restricted"),
            unrestricted("enabled"),
            // Last: from here on, every link of the machine could come from a sandbox.
            with_entries(&[&work], "enabled", &[special("root", "write")]),
        ];
        minimal.into_iter().chain(wide).collect()
    }
}

async fn client_of(builder: ExecutorBuilder) -> (TestExecutor, TestClient) {
    let server = builder.start().await;
    let bearer = format!("Bearer {TOKEN}");
    let headers = [("Authorization", bearer.as_str())];
    let mut client = TestClient::try_connect(server.url(), &headers).await.unwrap();
    client.initialize().await;
    (server, client)
}

#[tokio::test]
async fn tokens_and_keys_of_the_server_cannot_be_read_inside() {
    let secrets = SecretsFixture::new();
    // One of them is a link into the workspace, as where files are replaced by exchanging a link.
    let token = secrets.put("work/keys/token");
    std::os::unix::fs::symlink("work/keys/token", secrets.path("link")).unwrap();
    let named = secrets.put("named");
    let builder = TestExecutor::builder()
        .args(&[
            "--ws-auth",
            "capability-token",
            "--ws-token-file",
            secrets.path("link").to_str().unwrap(),
        ])
        .args(&["--state-dir", secrets.path("state").to_str().unwrap()])
        .env("EXEC_SERVER_ADMIN_TOKEN_FILE", &named);
    let (_server, mut client) = client_of(builder).await;
    secrets.put("state/identity.json");
    secrets.put("state/another");
    let files = ["work/keys/token", "link", "named", "state/identity.json", "state/another"];
    let denied = ["work/keys/token", "link", "named", "state/identity.json", "state"];
    let script = format!(
        "cd {}; cat {} state/placeholders/* 2>/dev/null; ls state/ 2>/dev/null; mv work/keys/token away; \
         mv work/keys work/other; cat away work/other/token 2>/dev/null; echo evil > {token}; \
         ln {named} work/hard; cat work/hard 2>/dev/null; true",
        secrets.path("").display(),
        files.join(" "),
    );
    for (number, policy) in secrets.policies(&denied).into_iter().enumerate() {
        let id = format!("p{number}");
        let inside = run_in(&mut client, &id, policy.clone(), &secrets.path("work"), &script).await;
        assert!(
            !inside.text().contains(TOKEN) && !inside.text().contains("placeholders"),
            "{policy}: {inside:?}"
        );
        if policy["permissions"]["file_system"]["type"] == "restricted" {
            for name in denied.into_iter().filter(|name| *name != "state") {
                let read = json!({"path": uri(&secrets.path(name)), "sandbox": policy});
                let error = client.call("fs/readFile", read).await.expect_err(name);
                assert!(!error.to_string().contains("dataBase64"), "{error}");
            }
        }
        assert_eq!(std::fs::read_to_string(&token).unwrap(), TOKEN);
        let _ = std::fs::remove_file(secrets.path("work/hard"));
    }
    let free =
        run_in(&mut client, "free", Value::Null, &secrets.path("work"), &format!("cat {token}"))
            .await;
    assert_eq!(free.text(), TOKEN);
}

#[tokio::test]
async fn the_secret_that_tokens_are_signed_with_is_denied_too() {
    let secrets = SecretsFixture::new();
    let secret = secrets.path("secret");
    std::fs::write(&secret, crate::auth::SECRET).unwrap();
    let server = TestExecutor::builder()
        .args(&[
            "--ws-auth",
            "signed-bearer-token",
            "--ws-shared-secret-file",
            secret.to_str().unwrap(),
        ])
        .start()
        .await;
    let bearer = format!("Bearer {}", crate::auth::sign(&json!({"exp": 99_999_999_999_u64})));
    let headers = [("Authorization", bearer.as_str())];
    let mut client = TestClient::try_connect(server.url(), &headers).await.unwrap();
    client.initialize().await;
    for (number, policy) in secrets.policies(&["secret"]).into_iter().enumerate() {
        let script = format!("cat {}", secret.display());
        let id = format!("p{number}");
        let inside = run_in(&mut client, &id, policy, &secrets.path("work"), &script).await;
        assert_eq!(inside.text(), "", "{inside:?}");
    }
}

/// Asserts that each file is readable without a sandbox, and denied inside of every one.
async fn are_denied(secrets: &SecretsFixture, client: &ExecServerClient, names: &[&str]) {
    let work = secrets.path("work").display().to_string();
    for name in names {
        let mut free = client.command("cat");
        let free = free.arg(secrets.path(name).to_str().unwrap()).output().await.unwrap();
        assert!(!free.stdout_text().is_empty(), "{name}");
        for policy in secrets.policies(names) {
            let sandbox: SandboxParams = serde_json::from_value(policy.clone()).unwrap();
            let mut inside = client.command("cat");
            inside
                .arg(secrets.path(name).to_str().unwrap())
                .current_dir(work.as_str())
                .sandbox(&sandbox);
            let inside = inside.output().await.unwrap();
            assert_eq!(inside.stdout_text(), "", "{name}: {policy}");
        }
    }
}

#[tokio::test]
async fn the_key_of_a_certificate_and_the_headers_for_a_collector_are_denied_too() {
    let secrets = SecretsFixture::new();
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let certificate = secrets.path("certificate").display().to_string();
    std::fs::write(&certificate, certified.cert.pem()).unwrap();
    std::fs::write(secrets.path("key"), certified.signing_key.serialize_pem()).unwrap();
    std::fs::write(secrets.path("headers"), format!("Authorization: Bearer {TOKEN}\n")).unwrap();
    let (key, headers) = (secrets.path("key"), secrets.path("headers"));
    let server = TestExecutor::builder()
        .args(&["--tls-cert", &certificate, "--tls-key", key.to_str().unwrap()])
        .args(&["--otlp", "http://127.0.0.1:9", "--otlp-headers-file", headers.to_str().unwrap()])
        .start()
        .await;
    let args = RemoteExecServerConnectArgs::new(server.url()).ca_file(&certificate);
    let client = ExecServerClient::connect(args).await.unwrap();
    are_denied(&secrets, &client, &["key", "headers"]).await;
}

#[tokio::test]
async fn the_identity_and_the_credential_of_an_executor_are_denied_too() {
    let secrets = SecretsFixture::new();
    let rendezvous = TestRendezvous::start().await;
    let token = rendezvous.token(TokenRole::Executor, "env").await;
    std::fs::write(secrets.path("credential"), &token).unwrap();
    let (identity, credential) = (secrets.path("identity"), secrets.path("credential"));
    let _executor = join(rendezvous.url(), &secrets.path("state"), &token)
        .args(&["--identity", identity.to_str().unwrap()])
        .args(&["--remote-token-file", credential.to_str().unwrap()])
        .spawn();
    wait_for_presence(rendezvous.url(), rendezvous.admin_token(), true).await;
    let (harness, state) =
        (rendezvous.token(TokenRole::Harness, "env").await, tempfile::tempdir().unwrap());
    let args = remote::args(rendezvous.url(), &harness, state.path());
    let client = remote::connect(args).await;
    are_denied(&secrets, &client, &["identity", "credential"]).await;
}

#[tokio::test]
async fn a_workspace_in_the_state_directory_works() {
    let secrets = SecretsFixture::new();
    std::fs::create_dir(secrets.path("state/work")).unwrap();
    let builder =
        TestExecutor::builder().args(&["--state-dir", secrets.path("state").to_str().unwrap()]);
    let server = builder.start().await;
    let mut client = server.client().await;
    let policy = workspace_write(&[&secrets.path("state/work")], "restricted");
    let script = "echo mine > f; cat f; ls ../placeholders ..";
    let said = run_in(&mut client, "p", policy, &secrets.path("state/work"), script).await;
    assert_eq!(said.text(), "mine\n", "{said:?}");
}

#[tokio::test]
async fn the_audit_log_has_the_policy_and_cannot_be_read_inside() {
    let secrets = SecretsFixture::new();
    let log = secrets.path("work/audit.log");
    let arguments = ["--accept-native-paths", "--audit", log.to_str().unwrap()];
    let server = TestExecutor::start_with(&arguments).await;
    let mut client = server.client().await;
    let policy = workspace_write(&[&secrets.path("work")], "restricted");
    let script = format!("cat {0}; echo forged >> {0}; rm -f {0}", log.display());
    let more = json!({ "sandbox": policy, "cwd": secrets.path("work") });
    let tried = client.run("p", &["/bin/sh", "-c", &script], more).await;
    assert_eq!(tried.text(), "", "{tried:?}");
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(!text.contains("\nforged"), "{text}");
    let records: Vec<Value> = text.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    let start = records.iter().find(|record| record["event"] == "process/start").unwrap();
    assert_eq!(start["sandbox"], policy, "{start}");
}
