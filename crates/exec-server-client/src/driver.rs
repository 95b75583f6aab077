//! The driver task of a client: connects, reconnects after a disconnect, and gives up after the recovery budget.
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

use exec_server_core::backoff::Backoff;
use exec_server_core::recovery::{
    Action, DialFailure, FIRST_PAUSE, LONGEST_PAUSE, Recovery, Resume,
};
use exec_server_protocol::errors::ErrorCode;
use exec_server_protocol::methods::Method;
use exec_server_protocol::process::ProcessId;
use exec_server_transport::causes::chain;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep_until, timeout_at};

use crate::connection::{ExecServerConnection, LinkEnd, ResumedSession, Survival};
use crate::error::ExecServerError;
use crate::process_state::Process;
use crate::session::{Request, SessionShared};

/// Reads that are sent together after a resume; few enough to leave room for other calls.
const READS_AT_ONCE: usize = 128;

type Attempt = Pin<Box<dyn Future<Output = Result<ExecServerConnection, ExecServerError>> + Send>>;
type Waiter = oneshot::Sender<Result<ExecServerConnection, ExecServerError>>;

/// Serves a client's requests for connections until its last handle is dropped.
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
                    // The caller may have been dropped.
                    let _ = done.send(());
                    break;
                }
                None => break,
            },
            result = wait_for(&mut driver.attempt) => driver.handle_attempt(result),
            end = ended(link.as_ref()), if link.is_some() => driver.handle_lost(end),
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
    /// Processes to terminate after the session has been resumed.
    cleanups: Vec<ProcessId>,
    /// How the last connection ended.
    lost: Option<Arc<str>>,
    /// The error of the last attempt.
    error: Option<ExecServerError>,
    /// The number of received events when the attempt began.
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

    /// Executes the actions of the recovery.
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
            // The caller may have been dropped.
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
            // Without a session there is no process to terminate.
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

    /// Fails the followed processes and closes the connection.
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
                tracing::debug!(error = chain(&error), "could not connect");
                let failure = match classify(&error) {
                    // The end of a child or of a single link is final, and its reason must not be replaced.
                    DialFailure::Cut if !self.shared.dial.can_resume() => DialFailure::Unreachable,
                    failure => failure,
                };
                self.error = Some(error);
                // New events prove that the session was resumed, so its linger time on the server has started again.
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
            if state.first_instance.is_none() {
                let info = connection.environment_info();
                state.first_instance = info.and_then(|info| info.instance_id.clone());
            }
            state.connection = Some(connection.clone());
        }
        for waiter in self.waiters.drain(..) {
            // The caller may have been dropped.
            let _ = waiter.send(Ok(connection.clone()));
        }
        self.connection = Some(connection);
    }

    fn handle_lost(&mut self, end: LinkEnd) {
        let LinkEnd { reason, is_taken_over } = end;
        tracing::info!(%reason, "the connection to the server ended");
        self.connection = None;
        self.lost = Some(reason.clone());
        self.shared.lock().connection = None;
        if is_taken_over {
            self.error = Some(ExecServerError::TakenOver);
            self.recovery.handle_lost_for_good();
        } else if self.shared.dial.can_resume() {
            self.recovery.handle_lost(Instant::now());
        } else {
            self.error = Some(ExecServerError::Disconnected { reason });
            self.recovery.handle_lost_for_good();
        }
    }

    /// Fails waiting calls and processes; after a lost session, the next call opens a new one.
    fn give_up(&mut self) {
        let last = self
            .error
            .take()
            .unwrap_or_else(|| ExecServerError::Disconnected { reason: "no connection".into() });
        let was_connected = self.lost.is_some();
        let error = match self.lost.take() {
            None => last.clone(),
            Some(_) if matches!(last, ExecServerError::TakenOver) => last.clone(),
            Some(reason) => ExecServerError::SessionLost { reason, source: Arc::new(last.clone()) },
        };
        self.cleanups.clear();
        // If the first connection could not be made, the session that it was to resume may still exist.
        let is_lost = was_connected || classify(&last) == DialFailure::Refused;
        {
            let mut state = self.shared.lock();
            if is_lost {
                state.session_id = None;
            }
            state.is_dialing = false;
            state.terminal = Some(error.clone());
        }
        let text: Arc<str> = chain(&error).into();
        for process in self.shared.take_processes() {
            process.handle_failure(text.clone());
        }
        for waiter in self.waiters.drain(..) {
            // The caller may have been dropped.
            let _ = waiter.send(Err(error.clone()));
        }
    }
}

/// Classifies a failed attempt, which decides whether another one follows.
fn classify(error: &ExecServerError) -> DialFailure {
    match error {
        ExecServerError::Server { code, .. } if *code == ErrorCode::SessionAttached as i64 => {
            DialFailure::StillAttached
        }
        ExecServerError::Server { .. } if error.is_retryable() => DialFailure::Unreachable,
        ExecServerError::Relay { source, .. } if !source.is_transient() => DialFailure::Refused,
        ExecServerError::Server { .. }
        | ExecServerError::Protocol(_)
        | ExecServerError::Spawn { .. } => DialFailure::Refused,
        ExecServerError::Disconnected { .. } => DialFailure::Cut,
        _ => DialFailure::Unreachable,
    }
}

/// Connects, resumes the session, and reads a first page of missed events per process before callers get the connection.
async fn attempt(
    shared: Arc<SessionShared>,
    session_id: Option<String>,
) -> Result<ExecServerConnection, ExecServerError> {
    let wire = shared.dial.dial().await?;
    let processes = if session_id.is_some() { shared.live_processes() } else { Vec::new() };
    // Only the first connection takes over: two clients that always do would take the session from each other forever.
    // A later one resumes the client's own session.
    let take_over = shared.is_first().then_some(shared.options.take_over);
    let resume = session_id.map(|session_id| ResumedSession { session_id, take_over });
    let connection =
        ExecServerConnection::open(wire, &shared.options, resume, &processes, Survival::Resync)
            .await?;
    shared.lock().was_connected = true;
    for some in processes.chunks(READS_AT_ONCE) {
        recover(&connection, some).await?;
    }
    Ok(connection)
}

/// Reads the first page of missed events of some processes and spawns the reads of the rest; fails only on a disconnect.
/// Pages that arrived before it are kept: the server may count them as received.
async fn recover(
    connection: &ExecServerConnection,
    processes: &[Arc<Process>],
) -> Result<(), ExecServerError> {
    let mut reads = Vec::with_capacity(processes.len());
    for process in processes {
        let (link, params) = (process.link(), process.missing_params());
        let read = connection.request(Method::ProcessRead.name(), &params)?;
        reads.push((process, link, read));
    }
    let mut broken = None;
    for (process, link, read) in reads {
        match read.await.and_then(|reply| reply.decode()) {
            Ok(answer) => {
                if let Some(more) = process.handle_read_over(link, answer) {
                    connection.shared().spawn_repair(process.clone(), more);
                }
            }
            Err(error) if error.is_disconnected() => broken = Some(error),
            Err(error) => {
                let id = process.id();
                connection.shared().clean_up_process(id);
                process.handle_failure(format!("failed to recover process {id}: {error}"));
            }
        }
    }
    broken.map_or(Ok(()), Err)
}

async fn wait_for(attempt: &mut Option<Attempt>) -> Result<ExecServerConnection, ExecServerError> {
    match attempt {
        Some(attempt) => attempt.await,
        None => std::future::pending().await,
    }
}

async fn ended(connection: Option<&ExecServerConnection>) -> LinkEnd {
    match connection {
        Some(connection) => connection.ended().await,
        None => std::future::pending().await,
    }
}

async fn pause_until(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}
