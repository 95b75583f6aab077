//! A certificate that is renewed while the rendezvous runs.

use std::path::Path;

use super::commands::{Program, run};

/// Writes a new certificate and key, and returns the certificate.
fn renew(certificate: &Path, key: &Path) -> String {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    std::fs::write(key, made.signing_key.serialize_pem()).unwrap();
    std::fs::write(certificate, made.cert.pem()).unwrap();
    made.cert.pem()
}

#[tokio::test]
async fn a_renewed_certificate_is_used_without_a_restart() {
    let data = tempfile::tempdir().unwrap();
    let file = |name: &str| data.path().join(name);
    let (certificate, key, trusted) = (file("cert.pem"), file("key.pem"), file("trusted.pem"));
    let first = renew(&certificate, &key);
    let text = |path: &Path| path.display().to_string();
    let options = ["--tls-cert".to_owned(), text(&certificate), "--tls-key".to_owned(), text(&key)];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut program = Program::start_with(&file("data"), "https://127.0.0.1:0", &options).await;
    let admin = program.admin_token.clone().unwrap();
    let admin = [("EXEC_SERVER_ADMIN_TOKEN", admin.as_str())];
    let (url, roots) = (program.url.clone(), text(&trusted));
    let list = ["token", "list", "--remote", &url, "--ca-file", &roots];
    std::fs::write(&trusted, &first).unwrap();
    assert_eq!(run(&list, &admin).await.0, 0);

    let second = renew(&certificate, &key);
    program.wait_for_log("loaded a new TLS certificate").await;
    let (code, _, stderr) = run(&list, &admin).await;
    assert!(code == 1 && stderr.contains("certificate"), "{stderr}");
    std::fs::write(&trusted, &second).unwrap();
    assert_eq!(run(&list, &admin).await.0, 0);

    std::fs::write(&key, "not a key").unwrap();
    program.wait_for_log("the old one stays in use").await;
    assert_eq!(run(&list, &admin).await.0, 0);
}
