//! The sandboxes of the control plane: names for groups of commands and watchers on the one machine.
//!
//! ```text
//! create -> running(until t) -timeout changes t-> running
//!                | kill, or t passes: commands and watchers end
//!                v
//!              gone
//! ```

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::refusal::{Code, Refusal};

/// The id that SDKs in debug mode use; this sandbox always runs.
pub const DEBUG_ID: &str = "debug_sandbox_id";
/// Seconds that a sandbox runs if nothing else is asked for.
const DEFAULT_TIMEOUT: u64 = 300;
/// The longest time, as at E2B.
const MAX_TIMEOUT: u64 = 24 * 60 * 60;
/// Each has little memory; this many are a mistake of the caller.
const MAX_SANDBOXES: usize = 1000;

/// The sandboxes that run.
pub struct Sandboxes {
    by_id: Mutex<BTreeMap<String, Sandbox>>,
    templates: Vec<String>,
}

/// One sandbox.
#[derive(Debug, Clone)]
pub struct Sandbox {
    pub id: String,
    pub template: String,
    pub metadata: BTreeMap<String, String>,
    pub started: OffsetDateTime,
    pub ends: OffsetDateTime,
    envs: BTreeMap<String, String>,
    idempotency_key: Option<String>,
    /// Tells the timer of a new end.
    end: watch::Sender<Instant>,
}

/// What a sandbox is made of.
pub struct NewSandbox {
    pub template: String,
    pub timeout: Option<u64>,
    pub metadata: BTreeMap<String, String>,
    pub envs: BTreeMap<String, String>,
    pub idempotency_key: Option<String>,
}

impl Sandboxes {
    pub fn new(mut templates: Vec<String>) -> Self {
        templates.push("base".to_owned());
        Self { by_id: Mutex::default(), templates }
    }

    /// Creates a sandbox; the receiver is for its timer, and missing if the same request was made before.
    pub fn create(
        &self,
        new: NewSandbox,
    ) -> Result<(Sandbox, Option<watch::Receiver<Instant>>), Refusal> {
        if !self.templates.contains(&new.template) {
            let text = format!(
                "template {:?} not found: this is one machine, as template {} (--template adds names)",
                new.template,
                self.templates.join(", ")
            );
            return Err(Refusal::new(Code::NotFound, text));
        }
        let (end, ends) = end_after(new.timeout.unwrap_or(DEFAULT_TIMEOUT))?;
        let mut sandboxes = self.lock();
        let is_same = |known: &&Sandbox| {
            known.idempotency_key.is_some() && known.idempotency_key == new.idempotency_key
        };
        if let Some(known) = sandboxes.values().find(is_same) {
            return Ok((known.clone(), None));
        }
        if sandboxes.len() >= MAX_SANDBOXES {
            let text = format!("{MAX_SANDBOXES} sandboxes are running");
            return Err(Refusal::new(Code::ResourceExhausted, text));
        }
        let (end, timer) = watch::channel(end);
        let id = format!("i{}", &uuid::Uuid::new_v4().simple().to_string()[..19]);
        let sandbox = Sandbox {
            id: id.clone(),
            template: new.template,
            metadata: new.metadata,
            started: OffsetDateTime::now_utc(),
            ends,
            envs: new.envs,
            idempotency_key: new.idempotency_key,
            end,
        };
        sandboxes.insert(id, sandbox.clone());
        Ok((sandbox, Some(timer)))
    }

    /// Sets how long a sandbox runs from now on.
    pub fn set_timeout(
        &self,
        id: &str,
        seconds: u64,
        is_only_later: bool,
    ) -> Result<Sandbox, Refusal> {
        let (end, ends) = end_after(seconds)?;
        let mut sandboxes = self.lock();
        let sandbox = sandboxes.get_mut(id).ok_or_else(|| unknown(id))?;
        if !is_only_later || ends > sandbox.ends {
            sandbox.ends = ends;
            sandbox.end.send_replace(end);
        }
        Ok(sandbox.clone())
    }

    pub fn get(&self, id: &str) -> Result<Sandbox, Refusal> {
        self.lock().get(id).cloned().ok_or_else(|| unknown(id))
    }

    /// All sandboxes, the oldest first.
    pub fn all(&self) -> Vec<Sandbox> {
        let mut all: Vec<Sandbox> = self.lock().values().cloned().collect();
        all.sort_by(|first, second| (first.started, &first.id).cmp(&(second.started, &second.id)));
        all
    }

    pub fn is_running(&self, id: &str) -> bool {
        id == DEBUG_ID || self.lock().contains_key(id)
    }

    /// The variables of all commands of a sandbox.
    pub fn envs_of(&self, id: &str) -> BTreeMap<String, String> {
        self.lock().get(id).map(|sandbox| sandbox.envs.clone()).unwrap_or_default()
    }

    /// Forgets a sandbox; false if there is none.
    pub fn remove(&self, id: &str) -> bool {
        self.lock().remove(id).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Sandbox>> {
        self.by_id.lock().expect("no holder panics")
    }
}

/// Resolves when the time of a sandbox has passed; false if the sandbox was removed before.
pub async fn time_passes(mut end: watch::Receiver<Instant>) -> bool {
    loop {
        let at = *end.borrow_and_update();
        tokio::select! {
            () = tokio::time::sleep_until(at) => return true,
            changed = end.changed() => if changed.is_err() { return false },
        }
    }
}

fn end_after(seconds: u64) -> Result<(Instant, OffsetDateTime), Refusal> {
    if seconds > MAX_TIMEOUT {
        let text = format!("a sandbox runs for at most {MAX_TIMEOUT} s, not {seconds}");
        return Err(Refusal::invalid(text));
    }
    let time = Duration::from_secs(seconds);
    Ok((Instant::now() + time, OffsetDateTime::now_utc() + time))
}

fn unknown(id: &str) -> Refusal {
    Refusal::new(Code::NotFound, format!("sandbox {id} not found"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(template: &str, key: Option<&str>) -> NewSandbox {
        NewSandbox {
            template: template.to_owned(),
            timeout: None,
            metadata: BTreeMap::new(),
            envs: BTreeMap::new(),
            idempotency_key: key.map(str::to_owned),
        }
    }

    #[test]
    fn a_repeated_request_gives_the_same_sandbox() {
        let sandboxes = Sandboxes::new(vec!["mine".to_owned()]);
        let (first, timer) = sandboxes.create(new("mine", Some("k"))).unwrap();
        assert!(timer.is_some());
        let (again, timer) = sandboxes.create(new("mine", Some("k"))).unwrap();
        assert!(timer.is_none() && again.id == first.id);
        assert_ne!(sandboxes.create(new("base", None)).unwrap().0.id, first.id);
        assert_eq!(sandboxes.create(new("other", None)).unwrap_err().code, Code::NotFound);
        assert!(sandboxes.is_running(&first.id) && sandboxes.is_running(DEBUG_ID));
        assert!(sandboxes.remove(&first.id) && !sandboxes.is_running(&first.id));
    }

    #[tokio::test(start_paused = true)]
    async fn a_timer_follows_a_new_timeout() {
        let sandboxes = Sandboxes::new(Vec::new());
        let (sandbox, timer) = sandboxes.create(new("base", None)).unwrap();
        let begin = Instant::now();
        sandboxes.set_timeout(&sandbox.id, 10, false).unwrap();
        sandboxes.set_timeout(&sandbox.id, 5, true).unwrap();
        assert!(time_passes(timer.unwrap()).await);
        assert_eq!(begin.elapsed().as_secs(), 10);
        assert!(sandboxes.set_timeout(&sandbox.id, MAX_TIMEOUT + 1, false).is_err());
    }
}
