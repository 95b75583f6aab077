//! Opens the state of a rendezvous: a data directory, or a database that several nodes share.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::admin::{self, PUBLIC_URL};
use crate::clock::Seconds;
use crate::config::ClusterConfig;
use crate::data_dir::DataDir;
use crate::key_ring::KeyRing;
use crate::server::{Base, StartError};
use crate::store::{PostgresStore, SharedStore, SqliteStore, Store, StoreError};

/// Name of the stored value that holds the name of the cluster.
const CLUSTER: &str = "cluster";

/// Where the state of a rendezvous is.
pub struct Opened {
    pub store: SharedStore,
    pub cluster: Option<Arc<PostgresStore>>,
    pub keys: Arc<KeyRing>,
    pub data: Option<(DataDir, File)>,
}

impl Opened {
    /// A single node with its own database.
    pub fn data_dir(path: &Path) -> Result<Self, StartError> {
        let data = DataDir::create(path)?;
        let lock = data.lock()?;
        let keys = Arc::new(data.signing_keys()?);
        let store = Arc::new(open_store(&data)?);
        Ok(Self { store, cluster: None, keys, data: Some((data, lock)) })
    }

    /// A node of a cluster.
    pub async fn cluster(config: &ClusterConfig) -> Result<Self, StartError> {
        let keys = Arc::new(KeyRing::load(&config.signing_keys)?);
        let store = Arc::new(PostgresStore::open(&config.store).await?);
        match store.note(CLUSTER).await? {
            None => store.set_note(CLUSTER, config.name.clone()).await?,
            Some(found) if found == config.name => {}
            Some(found) => {
                let (address, wanted) = (store.address().to_owned(), config.name.clone());
                return Err(StartError::OtherCluster { address, found, wanted });
            }
        }
        Ok(Self { store: store.clone(), cluster: Some(store), keys, data: None })
    }
}

/// Notes the URL for commands with `--data`; the first start makes an admin token.
pub async fn first_start(
    store: &dyn Store,
    data: &DataDir,
    base: &Base,
    now: Seconds,
) -> Result<Option<String>, StartError> {
    if store.is_cramped() {
        tracing::warn!(
            data = %data.path().display(),
            "the disk is full: existing data is served, new tokens and registrations are rejected, and commands with \
             --data fail until there is free space"
        );
    }
    match store.set_note(PUBLIC_URL, base.http.clone()).await {
        // Only commands with `--data` read this note.
        Err(error @ StoreError::Unwritten(_)) => {
            tracing::warn!(
                %error,
                "the database cannot be written: existing data is served, new tokens and registrations are rejected"
            )
        }
        noted => noted.map_err(|source| StartError::Store { path: data.database(), source })?,
    }
    // Created last: after a failed start the secret would be lost, and no other admin token would be created.
    Ok(admin::first_admin_token(store, now).await?)
}

/// Opens the database of a data directory, creating it if necessary.
pub fn open_store(data: &DataDir) -> Result<SqliteStore, StartError> {
    let path = data.prepare_database()?;
    SqliteStore::open(&path).map_err(|source| StartError::Store { path, source })
}
