//! Moves the data directory of a single node into PostgreSQL.

use rusqlite::types::Value;
use tokio_postgres::types::ToSql;

use super::PostgresStore;
use crate::data_dir::DataDir;
use crate::store::{Cause, StoreError};

/// Why data cannot be moved.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The source cannot be read.
    #[error("could not read {}", path.display())]
    Source {
        /// The database file.
        path: std::path::PathBuf,
        /// The cause.
        source: rusqlite::Error,
    },
    /// The destination is in use.
    #[error("the PostgreSQL database {0} already has environments; import into an empty one")]
    NotEmpty(String),
    /// The destination failed; nothing was written.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The tables that move, with their columns. What is short-lived stays behind: authorizations and nonces.
const TABLES: [(&str, &[&str]); 3] = [
    ("environments", &["id", "policy", "created_at", "generation", "registration"]),
    (
        "registrations",
        &["id", "environment", "generation", "executor_key", "created_at", "superseded_at"],
    ),
    (
        "tokens",
        &[
            "id",
            "hash",
            "role",
            "environment",
            "created_at",
            "expires_at",
            "revoked_at",
            "last_used_at",
            "max_streams",
            "label",
            "deleted_at",
        ],
    ),
];

impl PostgresStore {
    /// Copies environments, registrations and tokens; returns their numbers.
    pub async fn import(&self, from: &DataDir) -> Result<[usize; 3], ImportError> {
        let path = from.database();
        let failed = |source| ImportError::Source { path: path.clone(), source };
        // Opening the store migrates it, so that all columns exist.
        crate::store::SqliteStore::open(&path)?;
        let source = rusqlite::Connection::open(&path).map_err(failed)?;
        let mut tables = Vec::new();
        for (table, columns) in TABLES {
            tables.push((table, columns, read(&source, table, columns).map_err(failed)?));
        }
        let mut client = self.pools.durable().await?;
        let failed = |error| self.pools.failed(error);
        let transaction = client.transaction().await.map_err(failed)?;
        let is_used = "SELECT EXISTS (SELECT 1 FROM environments)";
        if transaction.query_one(is_used, &[]).await.map_err(failed)?.get(0) {
            return Err(ImportError::NotEmpty(self.address().to_owned()));
        }
        let mut counts = [0; 3];
        for (place, (table, columns, rows)) in tables.into_iter().enumerate() {
            counts[place] = rows.len();
            let places: Vec<String> = (1..=columns.len()).map(|it| format!("${it}")).collect();
            let (names, places) = (columns.join(", "), places.join(", "));
            let insert = format!("INSERT INTO {table} ({names}) VALUES ({places})");
            let insert = transaction.prepare(&insert).await.map_err(failed)?;
            for row in &rows {
                let row = row.iter().map(parameter).collect::<Result<Vec<_>, _>>()?;
                let row: Vec<&(dyn ToSql + Sync)> = row.iter().map(|it| &**it as _).collect();
                transaction.execute(&insert, &row).await.map_err(failed)?;
            }
        }
        transaction.commit().await.map_err(failed)?;
        Ok(counts)
    }
}

fn read(
    source: &rusqlite::Connection,
    table: &str,
    columns: &[&str],
) -> rusqlite::Result<Vec<Vec<Value>>> {
    let mut statement = source.prepare(&format!("SELECT {} FROM {table}", columns.join(", ")))?;
    let rows =
        statement.query_map([], |row| (0..columns.len()).map(|index| row.get(index)).collect())?;
    rows.collect()
}

type Parameter = Box<dyn ToSql + Sync + Send>;

fn parameter(value: &Value) -> Result<Parameter, StoreError> {
    Ok(match value {
        Value::Null => Box::new(Absent),
        Value::Integer(number) => Box::new(*number),
        Value::Text(text) => Box::new(text.clone()),
        Value::Blob(bytes) => Box::new(bytes.clone()),
        Value::Real(_) => return Err(StoreError::Unwritten(Cause::from("an unexpected number"))),
    })
}

/// A missing value of any type.
#[derive(Debug)]
struct Absent;

impl ToSql for Absent {
    fn to_sql(
        &self,
        _: &tokio_postgres::types::Type,
        _: &mut bytes::BytesMut,
    ) -> Result<tokio_postgres::types::IsNull, Cause> {
        Ok(tokio_postgres::types::IsNull::Yes)
    }

    fn accepts(_: &tokio_postgres::types::Type) -> bool {
        true
    }

    tokio_postgres::types::to_sql_checked!();
}
