//! The state of a client across connections: its session, its current connection, the processes that it follows.
//!
//! Owner: the driver, which alone dials and replaces the connection. Callers look up the live connection here, or ask
//! the driver for the next one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use exec_server_protocol::process::ProcessId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::connection::ExecServerConnection;
use crate::dial::Dial;
use crate::error::ExecServerError;
use crate::options::ExecServerClientConnectOptions;
use crate::process_state::Process;

/// A request to the driver.
pub(crate) enum Request {
    /// Return a live connection, now or as soon as there is one.
    Connect(oneshot::Sender<Result<ExecServerConnection, ExecServerError>>),
    /// Terminate a process that is no longer followed.
    CleanUp(ProcessId),
    /// Close the client; answered when the connection has ended.
    Close(oneshot::Sender<()>),
}

/// The durable state behind a [`RemoteExecServerClient`](crate::RemoteExecServerClient); cheap to clone.
#[derive(Clone)]
pub struct RemoteExecServerSession {
    shared: Arc<SessionShared>,
    requests: mpsc::UnboundedSender<Request>,
}

/// The connection state of a client.
#[derive(Debug, Clone)]
pub enum SessionStatus {
    /// Not connected; the next call connects.
    Idle,
    /// The first connection is being established.
    Connecting,
    /// Connected; calls are sent at once.
    Ready,
    /// A session is being resumed; calls wait.
    Recovering,
    /// The last attempt to connect or resume failed for good; the next call connects again.
    Lost(ExecServerError),
}

/// State that the driver and the handles of a session share.
pub(crate) struct SessionShared {
    pub dial: Arc<dyn Dial>,
    pub options: ExecServerClientConnectOptions,
    state: Mutex<SessionState>,
    /// The driver's task; it ends after the last handle of the session, because it still sends what is queued.
    driver: Mutex<Option<JoinHandle<()>>>,
}

pub(crate) struct SessionState {
    pub connection: Option<ExecServerConnection>,
    /// The session to resume; `None` before the first connection and after a lost session.
    pub session_id: Option<String>,
    /// Why the driver gave up; `None` after the next connection.
    pub terminal: Option<ExecServerError>,
    pub is_dialing: bool,
    /// The instance id of the server at the first connection.
    pub first_instance: Option<String>,
    /// Whether there has been a connection.
    pub was_connected: bool,
    processes: HashMap<ProcessId, Weak<Process>>,
}

impl RemoteExecServerSession {
    pub(crate) fn new(
        dial: Arc<dyn Dial>,
        options: ExecServerClientConnectOptions,
        requests: mpsc::UnboundedSender<Request>,
    ) -> Self {
        let state = SessionState {
            connection: None,
            session_id: options.resume_session_id.clone(),
            terminal: None,
            is_dialing: false,
            first_instance: None,
            was_connected: false,
            processes: HashMap::new(),
        };
        let shared = Arc::new(SessionShared {
            dial,
            options,
            state: Mutex::new(state),
            driver: Mutex::default(),
        });
        Self { shared, requests }
    }

    /// The transport of this session, for connections beside the client's own.
    pub fn transport(&self) -> Arc<dyn Dial> {
        self.shared.dial.clone()
    }

    /// The id of the session; `None` before the first connection and after a lost session.
    pub fn session_id(&self) -> Option<String> {
        self.shared.lock().session_id.clone()
    }

    /// The connection state; sends no request and does not connect.
    pub fn status(&self) -> SessionStatus {
        let state = self.shared.lock();
        match (&state.connection, &state.terminal) {
            (Some(connection), _) if !connection.is_closed() => SessionStatus::Ready,
            (Some(_), _) => SessionStatus::Recovering,
            (None, _) if state.is_dialing && state.session_id.is_some() => {
                SessionStatus::Recovering
            }
            (None, _) if state.is_dialing => SessionStatus::Connecting,
            (None, Some(error)) => SessionStatus::Lost(error.clone()),
            (None, None) => SessionStatus::Idle,
        }
    }

    /// Why the client gave up the last connection attempts; `None` after the next connection.
    pub fn terminal_error(&self) -> Option<ExecServerError> {
        self.shared.lock().terminal.clone()
    }

    /// Whether the server was restarted or replaced since the first connection, by its instance id; `None` if unknown.
    pub fn is_other_server(&self) -> Option<bool> {
        let first = self.shared.lock().first_instance.clone()?;
        let connection = self.live_connection()?;
        let now = connection.environment_info()?.instance_id.clone()?;
        Some(first != now)
    }

    /// The number of followed processes.
    pub fn process_count(&self) -> usize {
        let state = self.shared.lock();
        state.processes.values().filter(|process| process.strong_count() > 0).count()
    }

    /// The live connection; without one, waits for the driver's attempt, which all callers share.
    pub async fn connection(&self) -> Result<ExecServerConnection, ExecServerError> {
        if let Some(connection) = self.live_connection() {
            return Ok(connection);
        }
        let gone = || ExecServerError::Disconnected { reason: "the client is closed".into() };
        let (sender, answer) = oneshot::channel();
        self.requests.send(Request::Connect(sender)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }

    /// The current connection, if it is open; does not connect.
    pub fn live_connection(&self) -> Option<ExecServerConnection> {
        let connection = self.shared.lock().connection.clone()?;
        (!connection.is_closed()).then_some(connection)
    }

    /// Keeps the driver's task, for [`RemoteExecServerSession::close`].
    pub(crate) fn hold_driver(&self, driver: JoinHandle<()>) {
        *self.shared.driver.lock().expect("no holder panics") = Some(driver);
    }

    /// Closes the client after the queued requests are sent, and waits until the driver has ended.
    pub(crate) async fn close(&self) {
        let (sender, done) = oneshot::channel();
        if self.requests.send(Request::Close(sender)).is_ok() {
            // A driver that has stopped has closed the connection already.
            let _ = done.await;
        }
        let driver = self.shared.driver.lock().expect("no holder panics").take();
        if let Some(driver) = driver {
            // A panic of the driver has been reported by the panic hook.
            let _ = driver.await;
        }
    }

    pub(crate) fn track(&self, process: &Arc<Process>) -> Result<(), ExecServerError> {
        let mut state = self.shared.lock();
        let other = state.processes.get(process.id()).and_then(Weak::upgrade);
        if other.is_some_and(|other| !Arc::ptr_eq(&other, process)) {
            return Err(ExecServerError::ProcessIdInUse(process.id().clone()));
        }
        state.processes.insert(process.id().clone(), Arc::downgrade(process));
        Ok(())
    }

    pub(crate) fn untrack(&self, process: &Arc<Process>) {
        let mut state = self.shared.lock();
        let pointer = Arc::as_ptr(process);
        if state.processes.get(process.id()).is_some_and(|known| known.as_ptr() == pointer) {
            state.processes.remove(process.id());
        }
        if let Some(connection) = &state.connection {
            connection.shared().routes().remove_process(process.id(), pointer);
        }
    }

    pub(crate) fn clean_up_process(&self, id: &ProcessId) {
        match self.live_connection() {
            Some(connection) => connection.shared().clean_up_process(id),
            // If the driver has stopped, the client is closed and cannot send the request.
            None => drop(self.requests.send(Request::CleanUp(id.clone()))),
        }
    }

    pub(crate) fn shared(&self) -> &Arc<SessionShared> {
        &self.shared
    }
}

impl std::fmt::Debug for RemoteExecServerSession {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        formatter
            .debug_struct("RemoteExecServerSession")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl SessionShared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().expect("no holder panics")
    }

    /// Whether there has been no connection yet.
    pub(crate) fn is_first(&self) -> bool {
        !self.lock().was_connected
    }

    /// The followed processes that are started and not over.
    pub(crate) fn live_processes(&self) -> Vec<Arc<Process>> {
        let all: Vec<_> = self.lock().processes.values().filter_map(Weak::upgrade).collect();
        all.into_iter().filter(|process| process.needs_recovery()).collect()
    }

    /// Removes and returns all followed processes.
    pub(crate) fn take_processes(&self) -> Vec<Arc<Process>> {
        let all: Vec<_> = self.lock().processes.drain().collect();
        all.into_iter().filter_map(|(_, process)| process.upgrade()).collect()
    }
}
