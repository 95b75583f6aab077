//! The task behind a logical client: dials, brings a broken link back, and gives up in the end.
//!
//! ```text
//! idle ▶ connecting ▶ ready ─link lost▶ recovering(until t) ─resumed, gaps filled▶ ready
//!  ▲                                         └─ refused, or t passes: the old processes fail
//!  └────────────────────────────────────────────┘
//! ```

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use exec_server_machines::backoff::Backoff;
use exec_server_machines::recovery::{
    Action, DialFailure, FIRST_PAUSE, LONGEST_PAUSE, Recovery, Resume,
};
use exec_server_protocol::errors::ErrorCode;
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::ProcessId;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep_until, timeout_at};

use crate::connection::{ExecServerConnection, Survival};
use crate::error::ExecServerError;
use crate::inbound::repair;
use crate::process_state::Process;
use crate::session::{Request, SessionShared};

/// Reads that are sent together after a resume; few enough to leave room for other calls.
const READS_AT_ONCE: usize = 128;

type Attempt = Pin<Box<dyn Future<Output = Result<ExecServerConnection, ExecServerError>> + Send>>;
type Waiter = oneshot::Sender<Result<ExecServerConnection, ExecServerError>>;

/// Serves a client's requests for connections until its last handle is gone.
pub(crate) async fn run_driver(
    shared: Arc<SessionShared>,
    mut requests: mpsc::UnboundedReceiver<Request>,
) {
    let mut driver = Driver::new(shared);
    loop {
        driver.settle();
        let link = driver.connection.clone();
        let pause = driver.recovery.poll_timeout();
        tokio::select! {
            biased;
            request = requests.recv() => match request {
                Some(Request::Connect(waiter)) => driver.handle_wanted(waiter),
                Some(Request::CleanUp(id)) => driver.handle_clean_up(id),
                Some(Request::Close(done)) => {
                    driver.close().await;
                    // Whoever asked for it may have gone away.
                    let _ = done.send(());
                    break;
                }
                None => break,
            },
            result = wait_for(&mut driver.attempt) => driver.handle_attempt(result),
            reason = closed(link.as_ref()), if link.is_some() => driver.handle_lost(reason),
            () = pause_until(pause), if pause.is_some() => driver.recovery.handle_timeout(Instant::now()),
        }
    }
    driver.shared.lock().connection = None;
}

struct Driver {
    shared: Arc<SessionShared>,
    recovery: Recovery,
    connection: Option<ExecServerConnection>,
    attempt: Option<Attempt>,
    waiters: Vec<Waiter>,
    /// Processes to end as soon as the session is back.
    cleanups: Vec<ProcessId>,
    /// How the last connection ended.
    lost: Option<Arc<str>>,
    /// What the last attempt came to.
    error: Option<ExecServerError>,
    /// How many events had come when the attempt began.
    received: u64,
}

impl Driver {
    fn new(shared: Arc<SessionShared>) -> Self {
        let backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let recovery = Recovery::new(shared.options.recovery_budget, backoff);
        Self {
            shared,
            recovery,
            connection: None,
            attempt: None,
            waiters: Vec::new(),
            cleanups: Vec::new(),
            lost: None,
            error: None,
            received: 0,
        }
    }

    /// Does what the recovery decided.
    fn settle(&mut self) {
        while let Some(action) = self.recovery.poll_output() {
            match action {
                Action::Dial { resume, deadline } => self.dial(resume, deadline),
                Action::GiveUp => self.give_up(),
            }
        }
    }

    fn handle_wanted(&mut self, waiter: Waiter) {
        if let Some(connection) = self.live() {
            // A caller that went away need not be told.
            let _ = waiter.send(Ok(connection.clone()));
            return;
        }
        self.waiters.push(waiter);
        let has_session = self.shared.lock().session_id.is_some();
        let resume = if has_session { Resume::Yes } else { Resume::No };
        self.recovery.handle_wanted(Instant::now(), resume);
    }

    fn handle_clean_up(&mut self, id: ProcessId) {
        match self.live() {
            Some(connection) => connection.shared().clean_up_process(&id),
            // Without a session the process is gone as well.
            None if self.shared.lock().session_id.is_some() => self.cleanups.push(id),
            None => {}
        }
    }

    fn received(&self) -> u64 {
        self.shared.live_processes().iter().map(|process| process.received()).sum()
    }

    fn live(&self) -> Option<&ExecServerConnection> {
        self.connection.as_ref().filter(|connection| !connection.is_closed())
    }

    /// The client is told to end.
    async fn close(&mut self) {
        for process in self.shared.take_processes() {
            process.handle_failure("the client was closed");
        }
        if let Some(connection) = self.connection.take() {
            connection.close();
            connection.closed().await;
        }
    }

    fn dial(&mut self, resume: Resume, deadline: Option<Instant>) {
        let session_id = match resume {
            Resume::Yes => self.shared.lock().session_id.clone(),
            Resume::No => None,
        };
        self.shared.lock().is_dialing = true;
        self.received = self.received();
        let attempt = attempt(self.shared.clone(), session_id);
        self.attempt = Some(match deadline {
            None => Box::pin(attempt),
            Some(deadline) => Box::pin(async move {
                match timeout_at(deadline.into(), attempt).await {
                    Ok(result) => result,
                    Err(_) => Err(ExecServerError::Disconnected {
                        reason: "no new connection in time".into(),
                    }),
                }
            }),
        });
    }

    fn handle_attempt(&mut self, result: Result<ExecServerConnection, ExecServerError>) {
        self.attempt = None;
        match result {
            Ok(connection) => self.handle_connected(connection),
            Err(error) => {
                tracing::debug!(%error, "could not connect");
                let failure = classify(&error);
                self.error = Some(error);
                // The session was back for a while, so that the server keeps it anew.
                if self.received() != self.received {
                    self.recovery.handle_progress(Instant::now());
                }
                self.recovery.handle_failed(Instant::now(), failure, fastrand::f64());
            }
        }
    }

    fn handle_connected(&mut self, connection: ExecServerConnection) {
        self.recovery.handle_connected();
        for id in self.cleanups.drain(..) {
            connection.shared().clean_up_process(&id);
        }
        {
            let mut state = self.shared.lock();
            state.session_id = Some(connection.session_id().to_owned());
            state.terminal = None;
            state.is_dialing = false;
            state.connection = Some(connection.clone());
        }
        for waiter in self.waiters.drain(..) {
            // A caller that went away need not be told.
            let _ = waiter.send(Ok(connection.clone()));
        }
        self.connection = Some(connection);
    }

    fn handle_lost(&mut self, reason: Arc<str>) {
        tracing::info!(%reason, "the link to the server broke");
        self.connection = None;
        self.lost = Some(reason.clone());
        self.shared.lock().connection = None;
        if self.shared.dial.can_resume() {
            self.recovery.handle_lost(Instant::now());
        } else {
            self.error = Some(ExecServerError::Disconnected { reason });
            self.recovery.handle_lost_for_good();
        }
    }

    /// The old session is lost; the next call opens a fresh one.
    fn give_up(&mut self) {
        let last = self
            .error
            .take()
            .unwrap_or_else(|| ExecServerError::Disconnected { reason: "no connection".into() });
        let was_connected = self.lost.is_some();
        let error = match self.lost.take() {
            None => last.clone(),
            Some(reason) => ExecServerError::SessionLost { reason, source: Arc::new(last.clone()) },
        };
        self.cleanups.clear();
        // A session that was to be resumed by the first connection is not lost because nobody answered.
        let is_lost = was_connected || classify(&last) == DialFailure::Refused;
        {
            let mut state = self.shared.lock();
            if is_lost {
                state.session_id = None;
            }
            state.is_dialing = false;
            state.terminal = Some(error.clone());
        }
        let text: Arc<str> = error.to_string().into();
        for process in self.shared.take_processes() {
            process.handle_failure(text.clone());
        }
        for waiter in self.waiters.drain(..) {
            // A caller that went away need not be told.
            let _ = waiter.send(Err(error.clone()));
        }
    }
}

/// Whether another attempt is worth it.
fn classify(error: &ExecServerError) -> DialFailure {
    match error {
        ExecServerError::Server { code, .. } if *code == ErrorCode::SessionAttached as i64 => {
            DialFailure::StillAttached
        }
        ExecServerError::Server { .. } if error.is_retryable() => DialFailure::Unreachable,
        ExecServerError::Relay { source, .. } if !source.may_pass() => DialFailure::Refused,
        ExecServerError::Server { .. }
        | ExecServerError::Protocol(_)
        | ExecServerError::Spawn { .. } => DialFailure::Refused,
        _ => DialFailure::Unreachable,
    }
}

/// Connects, resumes, and reads the first page of what every live process did before anybody gets the connection.
async fn attempt(
    shared: Arc<SessionShared>,
    session_id: Option<String>,
) -> Result<ExecServerConnection, ExecServerError> {
    let wire = shared.dial.dial().await?;
    let processes = if session_id.is_some() { shared.live_processes() } else { Vec::new() };
    let mut options = shared.options.clone();
    // Only to begin with: two clients that both insist would take a session from each other for ever.
    options.take_over &= shared.is_first();
    let connection =
        ExecServerConnection::open(wire, &options, session_id, &processes, Survival::Resync)
            .await?;
    shared.lock().was_connected = true;
    for some in processes.chunks(READS_AT_ONCE) {
        recover(&connection, some).await?;
    }
    Ok(connection)
}

/// Reads the first page of what happened to some processes meanwhile, and has the rest read; fails only if the link
/// broke again.
async fn recover(
    connection: &ExecServerConnection,
    processes: &[Arc<Process>],
) -> Result<(), ExecServerError> {
    let mut reads = Vec::with_capacity(processes.len());
    for process in processes {
        let params = process.missing_params();
        reads.push((process, connection.request(Method::ProcessRead.name(), &params)?));
    }
    for (process, read) in reads {
        match read.await.and_then(|reply| reply.decode()) {
            Ok(answer) => {
                if let Some(more) = process.handle_read(answer) {
                    // It ends with the connection that it asks, or with the answer.
                    tokio::spawn(repair(connection.shared().clone(), process.clone(), more));
                }
            }
            Err(error) if error.is_disconnected() => return Err(error),
            Err(error) => {
                let id = process.id();
                connection.shared().clean_up_process(id);
                process.handle_failure(format!("failed to recover process {id}: {error}"));
            }
        }
    }
    Ok(())
}

async fn wait_for(attempt: &mut Option<Attempt>) -> Result<ExecServerConnection, ExecServerError> {
    match attempt {
        Some(attempt) => attempt.await,
        None => std::future::pending().await,
    }
}

async fn closed(connection: Option<&ExecServerConnection>) -> Arc<str> {
    match connection {
        Some(connection) => connection.closed().await,
        None => std::future::pending().await,
    }
}

async fn pause_until(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}
