//! TLS: which certificates the server trusts.

use std::path::PathBuf;
use std::sync::Arc;

use exec_server_testkit::Web;
use exec_server_testkit::web::{WebRequest, answer};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::json;
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;

use super::{body, refusal, request, server, without_proxies};

/// A certificate authority that only a test trusts.
pub struct TestCa {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl TestCa {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("authority.pem"), issuer.pem()).unwrap();
        Self { folder, issuer }
    }

    /// Its certificate.
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("authority.pem")
    }

    /// A server named `localhost` or `far.test` with a certificate of this CA.
    pub async fn web(
        &self,
        answer: impl Fn(&WebRequest) -> Vec<u8> + Send + Sync + 'static,
    ) -> Web {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["localhost", "far.test"].map(str::to_owned)).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key.into())
            .unwrap();
        let answer = Arc::new(answer);
        Web::start_tls(TlsAcceptor::from(Arc::new(config)), move |mut visit| {
            let answer = answer.clone();
            async move {
                while let Some(request) = visit.request().await {
                    visit.send(answer(&request)).await;
                }
            }
        })
        .await
    }
}

#[tokio::test]
async fn an_authority_is_trusted_by_file() {
    let ca = TestCa::new();
    let web = ca.web(|_| answer(200, &[], "safe")).await;
    let server = without_proxies().env("SSL_CERT_FILE", ca.file()).start().await;
    let mut client = server.client().await;
    for _ in 0..3 {
        let answer = request(&mut client, &web.local_url("/"), json!({})).await.unwrap();
        assert_eq!(body(&answer), "safe");
    }
    assert_eq!(web.connections(), 1);
    // The certificate is for another name.
    let (code, kind, message) = refusal(&mut client, &web.url("/?token=1"), json!({})).await;
    assert_eq!((code, kind.as_str()), (-32603, "tls"), "{message}");
    assert!(message.contains("certificate") && !message.contains("token"), "{message}");
}

#[tokio::test]
async fn authorities_are_trusted_by_folder() {
    let ca = TestCa::new();
    let web = ca.web(|_| answer(200, &[], "safe")).await;
    let folder = ca.file().parent().unwrap().to_owned();
    let server = without_proxies().env("SSL_CERT_DIR", folder).start().await;
    let mut client = server.client().await;
    let answer = request(&mut client, &web.local_url("/"), json!({})).await.unwrap();
    assert_eq!(body(&answer), "safe");
}

#[tokio::test]
async fn other_certificate_authorities_are_not_trusted() {
    let ca = TestCa::new();
    let web = ca.web(|_| answer(200, &[], "unsafe")).await;
    let server = server().await;
    let mut client = server.client().await;
    let (_, kind, message) = refusal(&mut client, &web.local_url("/"), json!({})).await;
    assert_eq!(kind, "tls", "{message}");
    let other = TestCa::new();
    let server = without_proxies().env("SSL_CERT_FILE", other.file()).start().await;
    let mut client = server.client().await;
    let (_, kind, message) = refusal(&mut client, &web.local_url("/"), json!({})).await;
    assert_eq!(kind, "tls");
    assert!(message.contains("invalid peer certificate"), "{message}");
    let server = without_proxies().env("SSL_CERT_FILE", "/nowhere.pem").start().await;
    let mut client = server.client().await;
    let (_, kind, message) = refusal(&mut client, &web.local_url("/"), json!({})).await;
    assert_eq!(kind, "tls");
    assert!(message.contains("no trusted certificates"), "{message}");
    assert!(web.requests().is_empty());
}
