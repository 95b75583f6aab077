//! Connections to PostgreSQL: a pool whose commits are synced, one whose commits are not, and one for leases.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use exec_server_transport::causes::chain;
use exec_server_transport::tls::{self, TlsError};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;

use super::tls::PostgresTls;
use crate::store::{Cause, StoreError};

/// Connections for statements that are not synced; each carries thousands of them per second.
const QUICK_CONNECTIONS: usize = 12;

/// Connections for registrations and tokens.
const DURABLE_CONNECTIONS: usize = 4;

/// Connections for leases.
const LEASE_CONNECTIONS: usize = 2;

/// A person or a peer waits for the answer.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Why a store URL cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreUrlError {
    /// Not a PostgreSQL URL.
    #[error("the store URL must be postgres://USER@HOST[:PORT]/DATABASE[?sslmode=require]")]
    Syntax(#[source] Cause),
    /// The certificates to trust cannot be used.
    #[error("TLS to PostgreSQL cannot be set up")]
    Tls(#[from] TlsError),
}

/// The pools, with the address for error messages.
pub struct Pools {
    quick: Pool,
    durable: Pool,
    lease: Pool,
    address: Arc<str>,
}

impl Pools {
    /// Prepares connections; none is opened yet.
    pub fn new(url: &str) -> Result<Self, StoreUrlError> {
        let (url, authorities) = split_authorities(url)?;
        let config: tokio_postgres::Config =
            url.as_str().parse().map_err(|error| StoreUrlError::Syntax(Box::new(error)))?;
        if config.get_hosts().is_empty() || config.get_user().is_none() {
            return Err(StoreUrlError::Syntax("a user and a host are required".into()));
        }
        let tls = match config.get_ssl_mode() {
            SslMode::Disable => None,
            // Without any trusted authority, only a connection that requires TLS is impossible.
            SslMode::Prefer => tls::connector(authorities.as_deref()).ok(),
            _ => Some(tls::connector(authorities.as_deref())?),
        };
        let pool = |size, is_synced| pool(&config, tls.clone(), size, is_synced);
        Ok(Self {
            quick: pool(QUICK_CONNECTIONS, false),
            durable: pool(DURABLE_CONNECTIONS, true),
            lease: pool(LEASE_CONNECTIONS, false),
            address: address(&config).into(),
        })
    }

    /// Host, port and database; never the password.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A connection whose commits may be lost when the database crashes.
    pub async fn quick(&self) -> Result<Object, StoreError> {
        self.quick.get().await.map_err(|error| self.unreachable(error))
    }

    /// A connection whose commits survive a crash of the database.
    pub async fn durable(&self) -> Result<Object, StoreError> {
        self.durable.get().await.map_err(|error| self.unreachable(error))
    }

    /// A connection that is not used for anything but leases.
    pub async fn lease(&self) -> Result<Object, StoreError> {
        self.lease.get().await.map_err(|error| self.unreachable(error))
    }

    /// The server has not answered a statement in time.
    pub fn silent(&self, time: Duration) -> StoreError {
        self.away(format!("no answer within {} s", time.as_secs()))
    }

    fn unreachable(&self, error: deadpool_postgres::PoolError) -> StoreError {
        self.away(match error {
            deadpool_postgres::PoolError::Backend(error) => reason(&error),
            deadpool_postgres::PoolError::Timeout(_) => "no connection within 3 s".to_owned(),
            error => error.to_string(),
        })
    }

    fn away(&self, why: String) -> StoreError {
        let hint = match why.contains("invalid peer certificate") {
            true => {
                "; name the authority of its certificate with sslrootcert=FILE in the store URL"
            }
            false => "; check the store URL and whether the server runs",
        };
        let address = self.address.to_string();
        StoreError::Unreachable { engine: "PostgreSQL", address, why: why + hint }
    }

    /// Classifies the error of a statement: it was not executed, or its outcome is not known.
    pub fn failed(&self, error: tokio_postgres::Error) -> StoreError {
        let Some(known) = error.as_db_error() else { return self.away(reason(&error)) };
        let hint = if *known.code() == SqlState::DISK_FULL {
            "; its disk is full: free space there"
        } else if *known.code() == SqlState::READ_ONLY_SQL_TRANSACTION {
            "; it is a replica: name the primary in the store URL"
        } else {
            ""
        };
        let text = format!("PostgreSQL at {}: {}{hint}", self.address, reason(&error));
        StoreError::Unwritten(text.into())
    }
}

/// The text of an error with its causes; tokio-postgres leaves them out.
pub fn reason(error: &tokio_postgres::Error) -> String {
    if let Some(error) = error.as_db_error() {
        return error.to_string();
    }
    chain(error)
}

fn pool(
    config: &tokio_postgres::Config,
    tls: Option<tokio_rustls::TlsConnector>,
    size: usize,
    is_synced: bool,
) -> Pool {
    let mut config = config.clone();
    let commit = if is_synced { "on" } else { "off" };
    let timeout = STATEMENT_TIMEOUT.as_millis();
    let options = config.get_options().unwrap_or_default().to_owned();
    config
        .options(format!("{options} -c synchronous_commit={commit} -c statement_timeout={timeout}"))
        .application_name("exec-server rendezvous")
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_user_timeout(STATEMENT_TIMEOUT);
    let settings = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let manager = match tls {
        Some(tls) => Manager::from_config(config, PostgresTls(tls), settings),
        None => Manager::from_config(config, tokio_postgres::NoTls, settings),
    };
    Pool::builder(manager)
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(STATEMENT_TIMEOUT))
        .create_timeout(Some(CONNECT_TIMEOUT))
        .build()
        .expect("a runtime is given")
}

/// Takes `sslrootcert` out of a URL: the file with the certificates to trust, in place of the system's.
fn split_authorities(text: &str) -> Result<(url::Url, Option<PathBuf>), StoreUrlError> {
    let mut url = url::Url::parse(text).map_err(|error| StoreUrlError::Syntax(Box::new(error)))?;
    if !matches!(url.scheme(), "postgres" | "postgresql") {
        return Err(StoreUrlError::Syntax(format!("unknown scheme {}", url.scheme()).into()));
    }
    let (mut kept, mut authorities) = (Vec::new(), None);
    for (name, value) in url.query_pairs() {
        match &*name {
            "sslrootcert" => authorities = Some(PathBuf::from(&*value)),
            // Chain and name are always verified.
            "sslmode" if matches!(&*value, "verify-ca" | "verify-full") => {
                kept.push((name.into_owned(), "require".to_owned()));
            }
            _ => kept.push((name.into_owned(), value.into_owned())),
        }
    }
    let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(kept).finish();
    // A plus is no space in this URL.
    let query = query.replace('+', "%20");
    url.set_query(if query.is_empty() { None } else { Some(&query) });
    Ok((url, authorities))
}

fn address(config: &tokio_postgres::Config) -> String {
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let hosts = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => format!("{name}:{port}"),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    });
    let hosts: Vec<String> = hosts.collect();
    let database = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("{}/{database}", hosts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_url_is_checked_and_its_password_is_never_shown() {
        let pools = Pools::new("postgres://me:secret@db.example.org/meet?sslmode=disable").unwrap();
        assert_eq!(pools.address(), "db.example.org:5432/meet");
        for bad in ["postgres://", "mysql://a@b/c", "nonsense", "postgres://host/db?what=1"] {
            let error = Pools::new(bad).map(drop).unwrap_err().to_string();
            assert!(error.contains("the store URL must be postgres://"), "{error}");
        }
        let missing = "postgres://a@b/c?sslmode=require&sslrootcert=/nowhere.pem";
        let error = Pools::new(missing).map(drop).unwrap_err();
        let cause = std::error::Error::source(&error).expect("a file is missing").to_string();
        assert!(cause.contains("/nowhere.pem"), "{cause}");
    }
}
