//! Who waits for what on one connection: calls, processes, HTTP bodies, watches.
//!
//! Owner: the connection; callers enter themselves, the connection's task finds them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use exec_server_machines::calls::{CallKind, Calls, MAX_CALLS};
use exec_server_protocol::process::ProcessId;
use tokio::sync::oneshot;

use crate::call::Answer;
use crate::connection::Survival;
use crate::error::ExecServerError;
use crate::http_body::{BodyBudget, BodyQueue};
use crate::process_state::Process;

/// Who waits for what on one connection.
pub(crate) struct Routes {
    calls: Calls<oneshot::Sender<Answer>>,
    processes: HashMap<ProcessId, Weak<Process>>,
    bodies: HashMap<String, Arc<BodyQueue>>,
    body_budget: Arc<BodyBudget>,
    last_body: u64,
    watches: HashMap<u64, oneshot::Sender<()>>,
    last_watch: u64,
    /// How the connection ended, once it has.
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
    /// Enters a call, and returns its id and what its answer will come out of.
    pub fn begin_call(
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

    /// Whoever waits for the answer to this call.
    pub fn end_call(&mut self, id: i64) -> Option<oneshot::Sender<Answer>> {
        self.calls.end(id)
    }

    /// Whether a call of this id was ever made.
    pub fn has_issued(&self, id: i64) -> bool {
        self.calls.has_issued(id)
    }

    /// Nobody waits for this answer any more.
    pub fn forget_call(&mut self, id: i64) {
        self.calls.end(id);
    }

    /// Sends the events of a process to it.
    pub fn add_process(&mut self, process: &Arc<Process>) {
        self.processes.insert(process.id().clone(), Arc::downgrade(process));
    }

    /// The same for a new process, whose id must be free.
    pub fn add_new_process(&mut self, process: &Arc<Process>) -> Result<(), ExecServerError> {
        self.check_open()?;
        if self.process(process.id()).is_some_and(|other| !Arc::ptr_eq(&other, process)) {
            return Err(ExecServerError::ProcessIdInUse(process.id().clone()));
        }
        self.add_process(process);
        Ok(())
    }

    /// The process of this id.
    pub fn process(&self, id: &str) -> Option<Arc<Process>> {
        self.processes.get(id)?.upgrade()
    }

    /// Nobody follows this process any more.
    pub fn remove_process(&mut self, id: &str, process: *const Process) {
        if self.processes.get(id).is_some_and(|route| std::ptr::eq(route.as_ptr(), process)) {
            self.processes.remove(id);
        }
    }

    /// Nobody is left who could follow a process on this connection.
    pub fn forget_processes(&mut self) {
        self.processes.clear();
    }

    /// Makes room for a streamed body, and returns its name on the wire.
    pub fn add_body(&mut self) -> Result<(String, Arc<BodyQueue>), ExecServerError> {
        self.check_open()?;
        self.last_body += 1;
        let id = format!("http-{}", self.last_body);
        let queue = Arc::new(BodyQueue::new(self.body_budget.clone()));
        self.bodies.insert(id.clone(), queue.clone());
        Ok((id, queue))
    }

    /// The body of this name.
    pub fn body(&self, id: &str) -> Option<Arc<BodyQueue>> {
        self.bodies.get(id).cloned()
    }

    /// Nothing more will come of this body, or nobody wants it.
    pub fn remove_body(&mut self, id: &str) {
        self.bodies.remove(id);
    }

    /// Enters a watch, and returns its name on the wire.
    pub fn add_watch(&mut self) -> Result<(u64, oneshot::Receiver<()>), ExecServerError> {
        self.check_open()?;
        let (sender, receiver) = oneshot::channel();
        self.last_watch += 1;
        // A server keeps the latest watch only.
        self.watches.clear();
        self.watches.insert(self.last_watch, sender);
        Ok((self.last_watch, receiver))
    }

    /// Whoever waits for this watch.
    pub fn end_watch(&mut self, id: u64) -> Option<oneshot::Sender<()>> {
        self.watches.remove(&id)
    }

    /// The link is gone: nobody enters any more, and everybody leaves.
    pub fn end(&mut self, reason: &Arc<str>) -> Waiting {
        self.end.get_or_insert_with(|| reason.clone());
        self.watches.clear();
        Waiting {
            calls: self.calls.end_all(),
            processes: self.processes.drain().filter_map(|(_, weak)| weak.upgrade()).collect(),
            bodies: self.bodies.drain().map(|(_, body)| body).collect(),
        }
    }

    /// Whether the link is gone.
    pub fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    fn check_open(&self) -> Result<(), ExecServerError> {
        match &self.end {
            Some(reason) => Err(ExecServerError::Disconnected { reason: reason.clone() }),
            None => Ok(()),
        }
    }
}

/// Everybody who was on a connection when it ended.
pub(crate) struct Waiting {
    calls: Vec<oneshot::Sender<Answer>>,
    processes: Vec<Arc<Process>>,
    bodies: Vec<Arc<BodyQueue>>,
}

impl Waiting {
    /// Tells everybody; processes first, so that whoever is told of a failed call finds them as they are.
    pub fn release(self, reason: &Arc<str>, survival: Survival) {
        for process in self.processes {
            match survival {
                Survival::Resync => process.handle_lost(),
                Survival::Fail => {
                    process.handle_failure(format!("exec-server transport disconnected: {reason}"));
                }
            }
        }
        for body in self.bodies {
            body.fail(ExecServerError::HttpBody(format!("the link to the server broke: {reason}")));
        }
        for call in self.calls {
            // A caller that went away need not be told.
            let _ = call.send(Answer::Lost(reason.clone()));
        }
    }
}
