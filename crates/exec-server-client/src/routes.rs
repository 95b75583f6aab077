//! The routing table of one connection: pending calls, followed processes, HTTP bodies, watches.
//!
//! Owner: the connection. Callers add entries; the connection task looks them up.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use exec_server_core::calls::{CallKind, Calls, MAX_CALLS};
use exec_server_protocol::process::ProcessId;
use tokio::sync::oneshot;

use crate::call::Answer;
use crate::connection::Survival;
use crate::error::ExecServerError;
use crate::http_body::{BodyBudget, BodyQueue};
use crate::process_state::Process;

/// The routing table of one connection.
pub(crate) struct Routes {
    calls: Calls<oneshot::Sender<Answer>>,
    processes: HashMap<ProcessId, Weak<Process>>,
    bodies: HashMap<String, Arc<BodyQueue>>,
    body_budget: Arc<BodyBudget>,
    last_body: u64,
    watches: HashMap<u64, oneshot::Sender<()>>,
    last_watch: u64,
    /// Why the connection ended; `None` while it is open.
    end: Option<Arc<str>>,
}

impl Default for Routes {
    fn default() -> Self {
        Self {
            calls: Calls::new(MAX_CALLS),
            processes: HashMap::new(),
            bodies: HashMap::new(),
            body_budget: Arc::default(),
            last_body: 0,
            watches: HashMap::new(),
            last_watch: 0,
            end: None,
        }
    }
}

impl Routes {
    /// Adds a call and returns its id and the receiver of its answer.
    pub(crate) fn begin_call(
        &mut self,
        kind: CallKind,
    ) -> Result<(i64, oneshot::Receiver<Answer>), ExecServerError> {
        self.check_open()?;
        let (sender, receiver) = oneshot::channel();
        match self.calls.begin(kind, sender) {
            Ok(id) => Ok((id, receiver)),
            Err(full) => Err(ExecServerError::TooManyCalls { limit: full.limit }),
        }
    }

    /// Removes a call and returns the sender for its answer.
    pub(crate) fn end_call(&mut self, id: i64) -> Option<oneshot::Sender<Answer>> {
        self.calls.end(id)
    }

    /// Whether a call with this id was ever made.
    pub(crate) fn has_issued(&self, id: i64) -> bool {
        self.calls.has_issued(id)
    }

    /// Removes a call whose future was dropped.
    pub(crate) fn forget_call(&mut self, id: i64) {
        self.calls.end(id);
    }

    /// Routes the events of a process to it.
    pub(crate) fn add_process(&mut self, process: &Arc<Process>) {
        self.processes.insert(process.id().clone(), Arc::downgrade(process));
    }

    /// Adds a new process, whose id must be free.
    pub(crate) fn add_new_process(
        &mut self,
        process: &Arc<Process>,
    ) -> Result<(), ExecServerError> {
        self.check_open()?;
        if self.process(process.id()).is_some_and(|other| !Arc::ptr_eq(&other, process)) {
            return Err(ExecServerError::ProcessIdInUse(process.id().clone()));
        }
        self.add_process(process);
        Ok(())
    }

    /// The process of this id.
    pub(crate) fn process(&self, id: &str) -> Option<Arc<Process>> {
        self.processes.get(id)?.upgrade()
    }

    /// Removes a process, unless its id belongs to a newer one.
    pub(crate) fn remove_process(&mut self, id: &str, process: *const Process) {
        if self.processes.get(id).is_some_and(|route| std::ptr::eq(route.as_ptr(), process)) {
            self.processes.remove(id);
        }
    }

    /// Removes all processes, so that the end of this connection does not reach them.
    pub(crate) fn forget_processes(&mut self) {
        self.processes.clear();
    }

    /// Adds a streamed body and returns its request id.
    pub(crate) fn add_body(&mut self) -> Result<(String, Arc<BodyQueue>), ExecServerError> {
        self.check_open()?;
        self.last_body += 1;
        let id = format!("http-{}", self.last_body);
        let queue = Arc::new(BodyQueue::new(self.body_budget.clone()));
        self.bodies.insert(id.clone(), queue.clone());
        Ok((id, queue))
    }

    /// The body with this request id.
    pub(crate) fn body(&self, id: &str) -> Option<Arc<BodyQueue>> {
        self.bodies.get(id).cloned()
    }

    /// Removes a body that has ended or whose reader was dropped.
    pub(crate) fn remove_body(&mut self, id: &str) {
        self.bodies.remove(id);
    }

    /// Adds a watch and returns its id.
    pub(crate) fn add_watch(&mut self) -> Result<(u64, oneshot::Receiver<()>), ExecServerError> {
        self.check_open()?;
        let (sender, receiver) = oneshot::channel();
        self.last_watch += 1;
        // A server keeps only the latest watch.
        self.watches.clear();
        self.watches.insert(self.last_watch, sender);
        Ok((self.last_watch, receiver))
    }

    /// Removes a watch and returns the sender for its notification.
    pub(crate) fn end_watch(&mut self, id: u64) -> Option<oneshot::Sender<()>> {
        self.watches.remove(&id)
    }

    /// Closes the table: rejects new entries, returns all pending ones.
    pub(crate) fn end(&mut self, reason: &Arc<str>) -> Waiting {
        self.end.get_or_insert_with(|| reason.clone());
        self.watches.clear();
        Waiting {
            calls: self.calls.end_all(),
            processes: self.processes.drain().filter_map(|(_, weak)| weak.upgrade()).collect(),
            bodies: self.bodies.drain().map(|(_, body)| body).collect(),
        }
    }

    /// Whether the connection has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    fn check_open(&self) -> Result<(), ExecServerError> {
        match &self.end {
            Some(reason) => Err(ExecServerError::Disconnected { reason: reason.clone() }),
            None => Ok(()),
        }
    }
}

/// The entries of a connection when it ended.
pub(crate) struct Waiting {
    calls: Vec<oneshot::Sender<Answer>>,
    processes: Vec<Arc<Process>>,
    bodies: Vec<Arc<BodyQueue>>,
}

impl Waiting {
    /// Releases all entries; processes first, so that the caller of a failed call sees their new state.
    pub(crate) fn release(self, reason: &Arc<str>, survival: Survival) {
        for process in self.processes {
            match survival {
                Survival::Resync => process.handle_lost(),
                Survival::Leave => {}
                Survival::Fail => {
                    process.handle_failure(format!("exec-server transport disconnected: {reason}"));
                }
            }
        }
        for body in self.bodies {
            body.fail(ExecServerError::HttpBody(format!(
                "the connection to the server ended: {reason}"
            )));
        }
        for call in self.calls {
            // The caller may have been dropped.
            let _ = call.send(Answer::Lost(reason.clone()));
        }
    }
}
