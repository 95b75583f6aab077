//! TLS acceptors and connectors from PEM files and the system's root certificates.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file has no PEM certificate.
    #[error("could not read a certificate from {}", path.display())]
    Certificate {
        /// The certificate file.
        path: PathBuf,
        /// The parse or read error.
        source: rustls::pki_types::pem::Error,
    },
    /// The file has no PEM private key.
    #[error("could not read a private key from {}", path.display())]
    Key {
        /// The key file.
        path: PathBuf,
        /// The parse or read error.
        source: rustls::pki_types::pem::Error,
    },
    /// Certificate and key do not match, or rustls rejects them.
    #[error("the certificate and key cannot be used")]
    Unusable(#[from] rustls::Error),
    /// No root certificates were found.
    #[error(
        "no trusted root certificates found on this system (name a PEM file with --ca-file or SSL_CERT_FILE)"
    )]
    NoRoots,
}

/// Creates an acceptor from a certificate chain and a private key in PEM files.
pub fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let in_certificate = |source| TlsError::Certificate { path: certificate.to_owned(), source };
    let chain = CertificateDer::pem_file_iter(certificate)
        .map_err(in_certificate)?
        .collect::<Result<Vec<_>, _>>()
        .map_err(in_certificate)?;
    if chain.is_empty() {
        return Err(in_certificate(rustls::pki_types::pem::Error::NoItemsFound));
    }
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|source| TlsError::Key { path: key.to_owned(), source })?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Variable that names a PEM file of additional trusted certificate authorities.
pub const MORE_AUTHORITIES_VARIABLE: &str = "CODEX_CA_CERTIFICATE";

/// Trusts only the authorities of a PEM file; without one, the system's and those of `CODEX_CA_CERTIFICATE`.
pub fn connector(authorities: Option<&Path>) -> Result<TlsConnector, TlsError> {
    let mut roots = rustls::RootCertStore::empty();
    match authorities {
        Some(path) => add_file(&mut roots, path)?,
        None => {
            roots = system_roots().0;
            let more = std::env::var_os(MORE_AUTHORITIES_VARIABLE).filter(|path| !path.is_empty());
            if let Some(path) = more {
                add_file(&mut roots, Path::new(&path))?;
            }
        }
    }
    if roots.is_empty() {
        return Err(TlsError::NoRoots);
    }
    Ok(connector_trusting(roots)?)
}

fn add_file(roots: &mut rustls::RootCertStore, path: &Path) -> Result<(), TlsError> {
    let in_file = |source| TlsError::Certificate { path: path.to_owned(), source };
    let mut is_empty = true;
    for certificate in CertificateDer::pem_file_iter(path).map_err(in_file)? {
        roots.add(certificate.map_err(in_file)?)?;
        is_empty = false;
    }
    if is_empty { Err(in_file(rustls::pki_types::pem::Error::NoItemsFound)) } else { Ok(()) }
}

/// Loads the system's roots, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR`; also returns the first load error.
pub fn system_roots() -> (rustls::RootCertStore, Option<String>) {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    (roots, found.errors.first().map(ToString::to_string))
}

/// Creates a connector that trusts only these roots.
pub fn connector_trusting(roots: rustls::RootCertStore) -> Result<TlsConnector, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}
