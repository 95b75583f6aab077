//! The thread that owns the SQLite connection.
//!
//! ```text
//! callers ─jobs─▶ reads run at once
//!               ▶ writes queue up ▶ one transaction for all of them ▶ commit ▶ answers
//!                     └─ the database is busy ▶ wait 20 ms, reads go on ▶ again, until a write's deadline
//! ```
//!
//! Writes that wait together are committed together, so that many of them share one sync of the disk. Each write has a
//! savepoint of its own: a failed one changes nothing and does not affect the others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::database::{Database, is_busy, unwritten};
use crate::store::StoreError;

/// Sleep between two attempts while another process writes.
const PAUSE: Duration = Duration::from_millis(20);

/// Writes in one transaction; bounds how long a caller waits for writes of others.
const MOST_TOGETHER: usize = 256;

/// Jobs that wait for the thread; further callers wait for a place.
const MOST_JOBS: usize = 4096;

/// What a job needs of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Reads only; never waits for another process.
    Read,
    /// Writes; a power loss may undo it.
    Write,
    /// Writes, and survives a power loss once it is answered.
    DurableWrite,
}

/// Handle of the thread; dropping it waits until queued writes are done.
pub struct Worker {
    jobs: Option<Sender<Message>>,
    places: Arc<Semaphore>,
    thread: Option<JoinHandle<()>>,
    patience: Duration,
    is_cramped: Arc<AtomicBool>,
}

enum Message {
    Job(Job),
    Recover(oneshot::Sender<Result<bool, StoreError>>),
}

struct Job {
    kind: Kind,
    /// When a write gives up on a busy database.
    deadline: Instant,
    task: Box<dyn Task>,
    _place: OwnedSemaphorePermit,
}

trait Task: Send {
    /// Runs the work and keeps its result; returns whether it succeeded.
    fn run(&mut self, connection: &Connection) -> bool;
    fn fail(&mut self, error: StoreError);
    fn answer(self: Box<Self>);
}

struct TaskOf<T, F> {
    work: F,
    kind: Kind,
    result: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Task for TaskOf<T, F>
where
    T: Send,
    F: Fn(&Connection) -> Result<T, StoreError> + Send,
{
    fn run(&mut self, connection: &Connection) -> bool {
        let result = (self.work)(connection);
        // The savepoint or transaction of a failed write is rolled back.
        let result = if self.kind == Kind::Read { result } else { result.map_err(unwritten) };
        self.result.insert(result).is_ok()
    }

    fn fail(&mut self, error: StoreError) {
        self.result = Some(Err(error));
    }

    fn answer(self: Box<Self>) {
        // The caller may have stopped waiting.
        let _ = self.reply.send(self.result.unwrap_or(Err(StoreError::NotAsked)));
    }
}

impl Worker {
    /// Starts the thread; a write retries for `patience` while another process writes.
    pub fn spawn(database: Database, patience: Duration) -> Result<Self, StoreError> {
        let (jobs, queue) = mpsc::channel();
        let is_cramped = Arc::new(AtomicBool::new(database.is_cramped()));
        let state = is_cramped.clone();
        let thread = std::thread::Builder::new()
            .name("sqlite".to_owned())
            .spawn(move || run(database, &queue, &state))
            .map_err(|error| StoreError::Database(Box::new(error)))?;
        let places = Arc::new(Semaphore::new(MOST_JOBS));
        Ok(Self { jobs: Some(jobs), places, thread: Some(thread), patience, is_cramped })
    }

    /// Whether the database is open exclusively because the disk is full.
    pub fn is_cramped(&self) -> bool {
        self.is_cramped.load(Ordering::Relaxed)
    }

    /// Runs work on the thread; writes may run more than once, but are committed at most once.
    pub async fn ask<T: Send + 'static>(
        &self,
        kind: Kind,
        work: impl Fn(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let place = self.places.clone().acquire_owned().await;
        let place = place.map_err(|_| StoreError::NotAsked)?;
        let (reply, answer) = oneshot::channel();
        let task = Box::new(TaskOf { work, kind, result: None, reply });
        let deadline = Instant::now() + self.patience;
        self.send(Message::Job(Job { kind, deadline, task, _place: place }))?;
        answer.await.unwrap_or(Err(StoreError::NotAsked))
    }

    /// Reopens the database in shared mode if there is space again; returns whether that happened.
    pub async fn recover(&self) -> Result<bool, StoreError> {
        if !self.is_cramped() {
            return Ok(false);
        }
        let (reply, answer) = oneshot::channel();
        self.send(Message::Recover(reply))?;
        answer.await.unwrap_or(Err(StoreError::NotAsked))
    }

    /// Number of jobs that are not answered.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        MOST_JOBS - self.places.available_permits()
    }

    fn send(&self, message: Message) -> Result<(), StoreError> {
        let jobs = self.jobs.as_ref().expect("only dropping takes it");
        jobs.send(message).map_err(|_| StoreError::NotAsked)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported by its hook.
            let _ = thread.join();
        }
    }
}

fn run(mut database: Database, queue: &Receiver<Message>, is_cramped: &AtomicBool) {
    let mut writes = VecDeque::new();
    loop {
        let first = match writes.is_empty() {
            true => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => queue.recv_timeout(PAUSE),
        };
        match first {
            Ok(message) => handle(&mut database, message, &mut writes, is_cramped),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if writes.is_empty() => return,
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(PAUSE),
        }
        while writes.len() < MOST_TOGETHER
            && let Ok(message) = queue.try_recv()
        {
            handle(&mut database, message, &mut writes, is_cramped);
        }
        if !writes.is_empty() {
            commit(database.connection(), &mut writes);
        }
    }
}

fn handle(
    database: &mut Database,
    message: Message,
    writes: &mut VecDeque<Job>,
    is_cramped: &AtomicBool,
) {
    match message {
        Message::Job(mut job) if job.kind == Kind::Read => {
            job.task.run(database.connection());
            job.task.answer();
        }
        Message::Job(job) => writes.push_back(job),
        Message::Recover(reply) => {
            let recovered = database.recover();
            is_cramped.store(database.is_cramped(), Ordering::Relaxed);
            let _ = reply.send(recovered);
        }
    }
}

/// Commits the waiting writes; those of a busy database stay until their deadline.
fn commit(connection: &Connection, writes: &mut VecDeque<Job>) {
    let mut batch: Vec<Job> = writes.drain(..writes.len().min(MOST_TOGETHER)).collect();
    match try_commit(connection, &mut batch) {
        Ok(()) => {}
        Err(error) if is_busy(&error) => {
            let now = Instant::now();
            for mut job in batch.into_iter().rev() {
                if now < job.deadline {
                    writes.push_front(job);
                } else {
                    job.task.fail(StoreError::Unwritten("another process writes".into()));
                    job.task.answer();
                }
            }
            return;
        }
        Err(_) if batch.len() > 1 => {
            // One of them may be the cause, such as by its size; the others must not suffer.
            for job in &mut batch {
                let alone = std::slice::from_mut(job);
                if let Err(error) = try_commit(connection, alone) {
                    alone[0].task.fail(unwritten(StoreError::from(error)));
                }
            }
        }
        Err(error) => batch[0].task.fail(unwritten(StoreError::from(error))),
    }
    batch.into_iter().for_each(|job| job.task.answer());
}

/// Runs writes in one transaction; on an error nothing is written.
fn try_commit(connection: &Connection, batch: &mut [Job]) -> Result<(), rusqlite::Error> {
    let is_durable = batch.iter().any(|job| job.kind == Kind::DurableWrite);
    if is_durable {
        connection.pragma_update(None, "synchronous", "full")?;
    }
    let result = run_transaction(connection, batch);
    if result.is_err() && !connection.is_autocommit() {
        let _ = connection.execute_batch("ROLLBACK");
    }
    if is_durable {
        // If this fails, later writes are only slower.
        let _ = connection.pragma_update(None, "synchronous", "normal");
    }
    result
}

fn run_transaction(connection: &Connection, batch: &mut [Job]) -> Result<(), rusqlite::Error> {
    let run = |statement: &str| connection.prepare_cached(statement)?.execute([]).map(drop);
    run("BEGIN IMMEDIATE")?;
    if let [alone] = batch {
        if !alone.task.run(connection) {
            return connection.execute_batch("ROLLBACK").or(Ok(()));
        }
        return run("COMMIT");
    }
    for job in batch {
        run("SAVEPOINT one")?;
        if !job.task.run(connection) {
            // Fails if the error has ended the whole transaction; then each write is repeated alone.
            run("ROLLBACK TO one")?;
        }
        run("RELEASE one")?;
    }
    run("COMMIT")
}
