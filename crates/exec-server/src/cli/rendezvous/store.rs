//! `exec-server rendezvous migrate` and `import`: the shared store of a cluster.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use exec_server_rendezvous::admin::{self, AdminError};
use exec_server_rendezvous::clock;
use exec_server_rendezvous::data_dir::{DataDir, DataDirError};
use exec_server_rendezvous::store::{ImportError, OpenError, PostgresStore};

const URL: &str = "EXEC_SERVER_STORE";
const URL_FILE: &str = "EXEC_SERVER_STORE_FILE";

const MIGRATE_EXAMPLES: &str = "\
Examples:
  exec-server rendezvous migrate --store postgres://meet@db.example.org/meet
  EXEC_SERVER_STORE_FILE=/etc/exec-server/store exec-server rendezvous migrate";

const IMPORT_EXAMPLES: &str = "\
Examples:
  exec-server rendezvous import --from /var/lib/exec-server-rendezvous --store postgres://meet@db.example.org/meet";

/// What to do with a shared store.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Create the tables of a shared store, or bring them to the version of this program.
    ///
    /// Nodes of the version before go on meanwhile. The first run creates an admin token and prints it.
    #[command(after_help = MIGRATE_EXAMPLES)]
    Migrate {
        /// PostgreSQL URL [default: EXEC_SERVER_STORE, or the file that EXEC_SERVER_STORE_FILE names].
        #[arg(long, value_name = "URL")]
        store: Option<String>,
    },
    /// Copy the environments and tokens of a single rendezvous into an empty shared store.
    #[command(after_help = IMPORT_EXAMPLES)]
    Import {
        /// Data directory of the single rendezvous, which must not be running.
        #[arg(long, value_name = "DIR")]
        from: PathBuf,
        /// PostgreSQL URL [default: EXEC_SERVER_STORE, or the file that EXEC_SERVER_STORE_FILE names].
        #[arg(long, value_name = "URL")]
        store: Option<String>,
    },
}

/// Why there is no store URL.
#[derive(Debug, thiserror::Error)]
pub enum StoreUrlSourceError {
    /// Every user of a machine can read arguments.
    #[error(
        "--store must not contain a password, because every user of this machine can read it; use {URL} or {URL_FILE}"
    )]
    Readable,
    /// The file cannot be read.
    #[error("could not read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

#[derive(Debug, thiserror::Error)]
enum StoreCommandError {
    #[error(transparent)]
    Url(#[from] StoreUrlSourceError),
    #[error("no store given: use --store URL, {URL}, or {URL_FILE}")]
    NoUrl,
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Data(#[from] DataDirError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error("could not create the first admin token")]
    FirstToken(#[from] AdminError),
    #[error("could not start the runtime")]
    Runtime(#[source] io::Error),
}

/// The URL of the shared store: the option, then the variable, then the file.
pub fn store_url(option: Option<String>) -> Result<Option<String>, StoreUrlSourceError> {
    if let Some(url) = option {
        let has_password = url::Url::parse(&url).is_ok_and(|url| url.password().is_some());
        return if has_password { Err(StoreUrlSourceError::Readable) } else { Ok(Some(url)) };
    }
    let from = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    if let Some(url) = from(URL) {
        return Ok(Some(url.trim().to_owned()));
    }
    let Some(path) = from(URL_FILE).map(PathBuf::from) else { return Ok(None) };
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(source) => Err(StoreUrlSourceError::File { path, source }),
    }
}

/// Runs the command.
pub fn run(command: StoreCommand) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = match (runtime.map_err(StoreCommandError::Runtime), command) {
        (Err(error), _) => Err(error),
        (Ok(runtime), StoreCommand::Migrate { store }) => runtime.block_on(migrate(store)),
        (Ok(runtime), StoreCommand::Import { from, store }) => {
            runtime.block_on(import(&from, store))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => crate::fail(&error),
    }
}

async fn migrate(store: Option<String>) -> Result<(), StoreCommandError> {
    let url = store_url(store)?.ok_or(StoreCommandError::NoUrl)?;
    let store = PostgresStore::migrate(&url).await?;
    eprintln!("exec-server: {} is up to date", store.address());
    if let Some(token) = admin::first_admin_token(&store, clock::now()).await? {
        eprintln!(
            "This is a new rendezvous. Its admin token, which is not shown again:\n\n  {token}\n"
        );
    }
    Ok(())
}

async fn import(from: &std::path::Path, store: Option<String>) -> Result<(), StoreCommandError> {
    let url = store_url(store)?.ok_or(StoreCommandError::NoUrl)?;
    let data = DataDir::open(from)?;
    // A running rendezvous would go on changing what was copied.
    let _lock = data.lock()?;
    let store = PostgresStore::open(&url).await?;
    let [environments, registrations, tokens] = store.import(&data).await?;
    let counted =
        |count: usize, noun: &str| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    eprintln!(
        "exec-server: copied {}, {} and {}; give {} to every node with --signing-keys, so that executors keep their URLs",
        counted(environments, "environment"),
        counted(registrations, "registration"),
        counted(tokens, "token"),
        from.join("signing-keys").display()
    );
    Ok(())
}
