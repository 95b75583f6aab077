//! The audit log: who started what, where, under which sandbox policy, and how it ended.
//!
//! | look here | for |
//! |---|---|
//! | this file | the settings, and the handle that requests record through |
//! | `record` | the members that every record has |
//! | `request` | which requests are recorded, and the members of their records |
//! | `queue` | records on their way to the writer |
//! | `writer` | the thread that owns the log, and the policy for a log that cannot be written |
//! | `file`, `journal` | the two destinations |

mod file;
#[cfg(target_os = "linux")]
mod journal;
mod queue;
mod record;
mod request;
mod writer;

use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::oneshot;

use crate::errors::RequestError;
use crate::metrics::Metrics;
use queue::{Entry, Queue};
pub use record::Who;
pub use request::{Details, Exited, Pending, StartNote, begin, shown, without_secrets};
use writer::{Sink, Writer};

/// The settings of the audit log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditConfig {
    /// Where records go.
    pub target: AuditTarget,
    /// A file of this size is rotated.
    pub max_bytes: u64,
    /// The number of rotated files that are kept; with none, a full file is emptied.
    pub keep: usize,
    /// What happens while the log cannot be written.
    pub on_full: AuditOnFull,
    /// Records the params of each request, with environment, stdin and content.
    pub payloads: bool,
}

impl AuditConfig {
    /// The default settings for a destination.
    pub fn new(target: AuditTarget) -> Self {
        let on_full = AuditOnFull::default();
        Self { target, max_bytes: 64 * 1024 * 1024, keep: 8, on_full, payloads: false }
    }

    /// The files of the log, with those that a rotation creates.
    pub(crate) fn files(&self) -> Vec<PathBuf> {
        match &self.target {
            AuditTarget::File(path) => file::names(path, self.keep),
            AuditTarget::Journald(_) => Vec::new(),
        }
    }
}

/// Where audit records go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditTarget {
    /// JSON lines in a file.
    File(PathBuf),
    /// The journal that listens on this socket.
    Journald(PathBuf),
}

impl FromStr for AuditTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Err("expected a file, or journald".to_owned()),
            "journald" => Ok(Self::Journald("/run/systemd/journal/socket".into())),
            _ => Ok(match text.strip_prefix("journald:") {
                Some(socket) => Self::Journald(socket.into()),
                None => Self::File(text.into()),
            }),
        }
    }
}

/// What happens to requests while the audit log cannot be written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum AuditOnFull {
    /// Starts, changes of files and HTTP requests are refused.
    #[default]
    Block,
    /// Requests are served; their records are dropped and counted.
    DropAndCount,
}

/// The audit log cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the audit log {target}")]
pub struct AuditError {
    target: String,
    source: io::Error,
}

/// How long the end of a server waits for the last records.
const LAST_RECORDS: Duration = Duration::from_secs(2);

/// A handle to the audit log.
#[derive(Debug)]
pub struct Audit {
    queue: Arc<Queue>,
    on_full: AuditOnFull,
    payloads: bool,
    metrics: Metrics,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl Audit {
    /// Opens the log and starts its writer.
    pub fn open(config: &AuditConfig, metrics: &Metrics) -> Result<Self, AuditError> {
        let sink: Box<dyn Sink> = match &config.target {
            AuditTarget::File(path) => {
                let opened = file::LogFile::open(path, config.max_bytes, config.keep);
                Box::new(opened.map_err(|source| refused(path.display().to_string(), source))?)
            }
            AuditTarget::Journald(socket) => journal_sink(socket)?,
        };
        Self::with_sink(sink, config, metrics).map_err(|source| refused("thread".into(), source))
    }

    fn with_sink(sink: Box<dyn Sink>, config: &AuditConfig, metrics: &Metrics) -> io::Result<Self> {
        let queue = Arc::new(Queue::new(config.on_full));
        let writer = Writer::new(sink, config.on_full, queue.clone(), metrics.clone());
        let thread = std::thread::Builder::new().name("audit".to_owned());
        let thread = thread.spawn(move || writer.run())?;
        let (on_full, payloads) = (config.on_full, config.payloads);
        let writer = Mutex::new(Some(thread));
        Ok(Self { queue, on_full, payloads, metrics: metrics.clone(), writer })
    }

    /// Whether params are recorded.
    pub fn has_payloads(&self) -> bool {
        self.payloads
    }

    /// Fails if a request must be refused because its record could not be written.
    pub fn check(&self) -> Result<(), RequestError> {
        if self.on_full == AuditOnFull::DropAndCount {
            return Ok(());
        }
        self.queue.check().map_err(|cause| {
            self.metrics.audit_refused();
            RequestError::AuditUnavailable(cause)
        })
    }

    /// Queues a record.
    pub fn record(&self, event: &str, who: Option<&Who>, details: impl Serialize) {
        self.push(record::line(event, who, details), None);
    }

    /// Queues a record, and with `block` waits until it is written.
    pub async fn record_first(
        &self,
        event: &str,
        who: &Who,
        details: impl Serialize,
    ) -> Result<(), RequestError> {
        let line = record::line(event, Some(who), details);
        if self.on_full == AuditOnFull::DropAndCount {
            self.push(line, None);
            return Ok(());
        }
        let (done, written) = oneshot::channel();
        self.push(line, Some(done));
        let result = written.await.unwrap_or_else(|_| Err("the audit log is closed".to_owned()));
        result.map_err(|cause| {
            self.metrics.audit_refused();
            RequestError::AuditUnavailable(cause)
        })
    }

    fn push(&self, line: Vec<u8>, written: Option<oneshot::Sender<Result<(), String>>>) {
        if !self.queue.push(Entry { line, written }) {
            self.metrics.audit_dropped(1);
        }
    }

    /// Writes what is queued and closes the log; records that come later are dropped.
    pub async fn close(&self) {
        self.queue.close();
        let Some(writer) = self.writer.lock().expect("no holder panics").take() else { return };
        let joined = tokio::task::spawn_blocking(move || writer.join());
        if tokio::time::timeout(LAST_RECORDS, joined).await.is_err() {
            tracing::error!("the last records of the audit log could not be written");
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.queue.close();
    }
}

fn refused(target: String, source: io::Error) -> AuditError {
    AuditError { target, source }
}

#[cfg(target_os = "linux")]
fn journal_sink(socket: &std::path::Path) -> Result<Box<dyn Sink>, AuditError> {
    let opened = journal::Journal::open(socket);
    Ok(Box::new(opened.map_err(|source| refused(socket.display().to_string(), source))?))
}

#[cfg(not(target_os = "linux"))]
fn journal_sink(socket: &std::path::Path) -> Result<Box<dyn Sink>, AuditError> {
    Err(refused(socket.display().to_string(), io::ErrorKind::Unsupported.into()))
}
